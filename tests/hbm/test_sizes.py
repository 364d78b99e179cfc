"""Hot buffers of unlike sizes: pages go to where rows are missed, and stay there."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from flexkv_tiers.hbm.pool import LENDING_SPARE_PAGES, HotPool
from flexkv_tiers.hbm.rooms import PoolLimits, Stage
from flexkv_tiers.hbm.sizes import HELD_DECISIONS, HotBuffer, HotSizes
from flexkvd.selections.generator import Selections
from flexkvd.selections.workload import PRESETS, Workload

PAGE_IDS, TOKENS, SELECTED = 64, 4096, 256
STEPS, REPORT_STEPS = 320, 16
REQUESTS, EQUAL_PAGES, LEAST, MOST = 4, 8, 4, 16
BLOCKS = TOKENS // PAGE_IDS + STEPS // PAGE_IDS + 1


class Lru:
    """What one hot buffer does: it keeps the rows used last, as many as it has slots."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, None] = OrderedDict()

    def select(self, ids: list[int], slots: int) -> int:
        """Returns how many were missed."""
        while len(self._rows) > slots:
            self._rows.popitem(last=False)
        missed = [number for number in ids if number not in self._rows]
        for number in ids:
            self._rows[number] = None
            self._rows.move_to_end(number)
        while len(self._rows) > slots:
            self._rows.popitem(last=False)
        return len(missed)


def hot_pool() -> HotPool:
    """Four requests with hot buffers of one size, and not a page to spare beyond the page each may grow by."""
    pages = REQUESTS * (EQUAL_PAGES + 1 + LENDING_SPARE_PAGES)
    pool = HotPool(PoolLimits(REQUESTS, pages, BLOCKS, LEAST, MOST, EQUAL_PAGES))
    for request in range(REQUESTS):
        pool.admit(request, TOKENS // PAGE_IDS + 1, TOKENS // PAGE_IDS)
    assert [room.stage for room in pool.rooms.values()] == [Stage.HOT] * REQUESTS
    return pool


def decode(presets: list[str], *, steered: bool) -> tuple[int, list[tuple[int, ...]]]:
    """Rows missed after the first quarter, and the sizes after each report."""
    pool, buffers = hot_pool(), [Lru() for _ in range(REQUESTS)]
    selections = [
        Selections(Workload(preset=PRESETS[preset], tokens=TOKENS, top_k=SELECTED, steps=STEPS, seed=request))
        for request, preset in enumerate(presets)
    ]
    total, sizes, misses = 0, [], dict.fromkeys(range(REQUESTS), 0)
    for step, selected in enumerate(zip(*selections, strict=True), 1):
        for request, selection in enumerate(selected):
            missed = buffers[request].select(selection.positions.tolist(), len(pool.rooms[request].hot) * PAGE_IDS)
            misses[request] += missed
            total += missed * (step > STEPS // 4)
        if step % REPORT_STEPS == 0:
            if steered:
                assert pool.steer(misses)[0] is None
                pool.check()
            sizes.append(tuple(len(room.hot) for room in pool.rooms.values()))
            misses = dict.fromkeys(misses, 0)
    return total, sizes


def test_sizes_that_follow_misses_miss_fewer_rows():
    """Of unlike requests under one budget: clearly fewer misses than with equal sizes, and the sizes settle."""
    presets = ["easy", "easy", "poor", "poor"]
    equal, _ = decode(presets, steered=False)
    steered, sizes = decode(presets, steered=True)
    assert steered < 0.85 * equal
    assert sizes[-1][0] < EQUAL_PAGES < sizes[-1][2]
    assert all(sum(each) == REQUESTS * EQUAL_PAGES for each in sizes)
    settled = sizes[len(sizes) // 2 :]
    assert len(set(settled)) == 1, settled


def test_like_requests_keep_like_sizes():
    """Where all miss as much, nothing is moved for chance differences."""
    _, sizes = decode(["mid"] * REQUESTS, steered=True)
    assert set(sizes) == {(EQUAL_PAGES,) * REQUESTS}


@pytest.fixture
def sizes():
    """Hot buffers of one to sixteen pages."""
    return HotSizes(PoolLimits(4, 64, 64, 1, 16))


def test_what_made_it_worse_is_undone(sizes):
    """Both together miss more after a move: the page goes back, and is not asked for again for a while."""
    before = [HotBuffer(1, 4, 2), HotBuffer(2, 4, 200)]
    assert sizes.choose(before, 0) == {2: 1, 1: -1}
    assert sizes.choose([HotBuffer(1, 3, 50), HotBuffer(2, 5, 190)], 0) == {2: -1, 1: 1}
    for _ in range(HELD_DECISIONS - 1):
        assert sizes.choose(before, 0) == {}
    assert sizes.choose(before, 0) == {2: 1, 1: -1}


def test_a_move_is_not_undone_with_pages_that_are_gone(sizes):
    """Pressure took the taker's pages meanwhile, or the giver has ended: nothing is given back."""
    before = [HotBuffer(1, 4, 2), HotBuffer(2, 2, 200)]
    for after in ([HotBuffer(1, 3, 50), HotBuffer(2, 1, 400)], [HotBuffer(2, 3, 400)]):
        assert sizes.choose(before, 0) == {2: 1, 1: -1}
        assert sizes.choose(after, 0).get(1, 0) <= 0


def test_spare_pages_go_to_the_neediest_first(sizes):
    """One each, from who misses most per page; who misses nothing gets none, and what is full neither."""
    buffers = [HotBuffer(1, 4, 8), HotBuffer(2, 4, 80), HotBuffer(3, 16, 900), HotBuffer(4, 4, 0)]
    assert sizes.choose(buffers, 1) == {2: 1}
    assert sizes.choose(buffers, 9) == {2: 1, 1: 1}
