"""The counting of overlap, hits and pages, against plain models that follow one row at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.selections import Selection, Selections, Workload
from flexkvd.selections import statistics as counting
from flexkvd.selections.lru import Newest, lru_step
from flexkvd.selections.statistics import LAGS, WINDOWS, Statistics


class PlainSlots:
    """The step rule of the slots as a person would carry it out: one list, oldest first; None is an empty slot."""

    def __init__(self, slots: int, newest: Newest) -> None:
        self.order: list[int | None] = [None] * slots
        self.newest = newest

    def step(self, selected: list[int]) -> list[int]:
        hits = [row for row in self.order if row in selected]
        unused = [row for row in self.order if row not in selected]
        loaded = []
        for position in selected:
            if position not in hits:
                unused.pop(0)
                loaded.append(position)
        self.order = unused + (loaded + hits if self.newest is Newest.HITS else hits + loaded)
        return loaded


def selection(step: int, positions: list[int], token_count: int = 1000, request: int = 0, layer: int = 0) -> Selection:
    return Selection(step, request, layer, token_count, np.array(positions, np.int32))


@pytest.mark.parametrize("newest", Newest)
@pytest.mark.parametrize("slots", [8, 9, 20, 40])
def test_the_exact_lru_equals_a_plain_one(slots, newest):
    """Order and what is loaded are the same after each of 300 random steps, from empty slots on."""
    draw = random.Random(slots)
    plain, order, marks = PlainSlots(slots, newest), np.full(slots, -1, np.int32), np.zeros(51, np.bool_)
    for _ in range(300):
        selected = draw.sample(range(50), draw.randint(1, 8))
        order, loaded = lru_step(order, np.array(selected, np.int32), marks, newest)
        assert loaded.tolist() == plain.step(selected)
        assert order.tolist() == [-1 if row is None else row for row in plain.order]
        assert not marks.any()


@pytest.mark.parametrize("newest", Newest)
def test_hit_rates_are_those_of_plain_slots(newest):
    """Per request and layer, without the newest token, and without the first quarter of each one's steps."""
    workload = Workload(tokens=600, top_k=160, steps=40, requests=2, groups=2)
    plain = {(request, layer): PlainSlots(320, newest) for request in range(2) for layer in range(2)}
    rates: dict[tuple, list[float]] = {key: [] for key in plain}
    for each in Selections(workload):
        older = [position for position in each.positions.tolist() if position < each.token_count - 1]
        loaded = plain[each.request, each.layer].step(older)
        rates[each.request, each.layer].append(1 - len(loaded) / len(older))
    expected = np.mean([rate for stream in rates.values() for rate in stream[10:]])
    summary = Statistics((320,)).add_all(Selections(workload)).summary()
    counted = summary.buffer_hit_rates if newest is Newest.HITS else summary.hit_rates
    assert counted[320] == pytest.approx(expected)


def test_a_sequence_that_fits_into_the_slots_is_resident_as_a_whole():
    """All hits up to a length of H; from then on the rows in the slots are the first H, the oldest first."""
    statistics = Statistics((8,))
    for step, (count, positions) in enumerate([(7, [0, 3]), (8, [1, 2]), (9, [0, 7, 8]), (10, [1, 8]), (11, [0, 2])]):
        statistics.add(selection(step, positions, count))
    # The first step does not count. Position 8 was the newest, in a slot of its own: it is missed next, and takes the
    # slot of position 2, the oldest not selected, which is missed after that.
    assert statistics.summary().hit_rates[8] == pytest.approx((1 + 1 + 1 / 2 + 1 / 2) / 4)


def test_overlaps_and_pages_are_those_of_plain_sets():
    """Lags and windows count a request's own steps, idle gaps or not."""
    workload = Workload(tokens=2000, top_k=150, steps=60, requests=2, turn_steps=10, idle_steps=3)
    pages: dict[int, list[set[int]]] = {0: [], 1: []}
    chosen: dict[int, list[set[int]]] = {0: [], 1: []}
    lengths: dict[int, list[int]] = {0: [], 1: []}
    for each in Selections(workload):
        chosen[each.request].append(set(each.positions.tolist()))
        pages[each.request].append({position // 16 for position in each.positions.tolist()})
        lengths[each.request].append(-(-each.token_count // 16))
    summary = Statistics((), page_tokens=16).add_all(Selections(workload)).summary()
    for lag in LAGS:
        shares = [len(a & b) / 150 for run in chosen.values() for a, b in zip(run[lag:], run, strict=False)]
        assert summary.overlaps[lag] == pytest.approx(np.mean(shares))
    for window in WINDOWS[:-1]:
        shares = [
            len(set().union(*pages[run][end - window : end])) / lengths[run][end - 1]
            for run in pages
            for end in range(window, len(pages[run]) + 1)
        ]
        assert summary.pages_touched[window] == pytest.approx(np.mean(shares))
    assert summary.pages_touched[WINDOWS[-1]] is None


def test_adjacent_groups_are_compared_within_a_step_only():
    """The group before is the one of the same request and step; the first group of a step is compared with none."""
    statistics = Statistics(())
    for layer, positions in ((0, [1, 2, 3, 4]), (1, [1, 2, 3, 9]), (2, [1, 2, 8, 9])):
        statistics.add(selection(0, positions, layer=layer))
    statistics.add(selection(1, [50, 51, 52, 53], layer=0))
    assert statistics.summary().group_overlap == pytest.approx(0.75)
    assert statistics.summary(0).group_overlap is None


def test_a_step_needs_a_slot_for_each_position():
    """Fewer hot slots than selected positions: refused, as an engine would have to."""
    with pytest.raises(FlexKVError, match="only 2 hot slots") as refused:
        Statistics((4, 2)).add(selection(0, [1, 2, 3]))
    assert refused.value.code is ErrorCode.BAD_ARGUMENT


def test_requests_times_layers_are_bounded(monkeypatch):
    """One more than the limit ends the counting with a coded error instead of taking all memory."""
    monkeypatch.setattr(counting, "STREAMS_MAX", 2)
    statistics = Statistics(())
    for layer in range(2):
        statistics.add(selection(0, [1], layer=layer))
    with pytest.raises(FlexKVError, match="more than 2 requests times layers") as refused:
        statistics.add(selection(0, [1], layer=2))
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED


def test_what_all_streams_keep_is_bounded(monkeypatch):
    """Many layers of long sequences and small pages: a coded error before memory is gone."""
    monkeypatch.setattr(counting, "KEPT_MAX", 150)
    statistics = Statistics((8,), page_tokens=10)
    statistics.add(selection(0, [1]))
    with pytest.raises(FlexKVError, match="more than 150 pages and hot slots") as refused:
        statistics.add(selection(0, [1], layer=1))
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED


@pytest.mark.parametrize("sizes", [((1 << 25,), 64), ((), 1 << 25)], ids=str)
def test_slots_and_pages_longer_than_any_sequence_are_refused(sizes):
    """A slip of the finger, before a buffer of that size is made."""
    with pytest.raises(FlexKVError, match="no sequence is longer") as refused:
        Statistics(*sizes)
    assert refused.value.code is ErrorCode.BAD_ARGUMENT


def test_a_sequence_that_becomes_shorter_has_fewer_pages():
    """As after a rejected speculation: pages it gave up do not count as touched."""
    statistics = Statistics((), page_tokens=10)
    statistics.add(selection(0, [1, 95], 100))
    statistics.add(selection(1, [1], 50))
    assert statistics.summary().pages_touched[1] == pytest.approx((2 / 10 + 1 / 5) / 2)
