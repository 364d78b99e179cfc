"""Heat decays without anybody counting it down, and the order of what leaves follows it."""

from __future__ import annotations

import time

import pytest

from flexkv_py.rows.heat import HALF_LIFE_REPORTS, INTERVAL_NS, ColdOrder, Heat, Mark, StepClock
from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import RequestId


def heat_of(number: int = 1) -> Heat:
    return Heat(number, RequestId(number))


def grant(order: ColdOrder, heat: Heat, block: int, clock: float = 0.0) -> None:
    heat.touch(block, 0, clock, 1.0)
    heat.marks[0][block] = Mark.KNOWN
    order.add(heat, block, 0)


def coldest(order: ColdOrder) -> list[int]:
    return [block for _, block, _ in order.coldest()]


def test_heat_halves_with_every_half_life():
    """An event of one half-life ago counts half of one of now."""
    heat = heat_of()
    heat.touch(0, 0, 0.0, 1.0)
    heat.touch(0, 0, 1.0, 1.0)
    assert 2.0 ** (heat.scores[0][0] - 1.0) == pytest.approx(1.5)


def test_what_was_not_counted_keeps_its_order():
    """Time alone moves nothing: a score is the same however late it is looked at."""
    order, heat = ColdOrder(), heat_of()
    for block, clock in ((0, 3.0), (1, 1.0), (2, 2.0)):
        grant(order, heat, block, clock)
    assert coldest(order) == [1, 2, 0]


def test_what_is_counted_moves_up_when_the_order_comes_by():
    """A report moves nothing by itself; whoever asks for the coldest finds each chunk where its heat is now."""
    order, heat = ColdOrder(), heat_of()
    for block in range(3):
        grant(order, heat, block)
    heat.count([HeatEntry(1, 0, 0, 100), HeatEntry(1, 1, 0, 10)], 2.0)
    assert coldest(order) == [2, 1, 0]


def test_a_chunk_stands_in_the_order_once():
    """Granted, revoked and granted again: the order offers it once; not granted: not at all."""
    order, heat = ColdOrder(), heat_of()
    grant(order, heat, 0)
    grant(order, heat, 1)
    heat.marks[0][0] = Mark.BELOW
    grant(order, heat, 0, 5.0)
    heat.marks[0][1] = Mark.BELOW
    assert coldest(order) == [0]
    grant(order, heat, 1, 6.0)
    assert coldest(order) == [0, 1]


def test_asking_for_the_coldest_may_be_given_up():
    """A walk that ends early loses nobody: the next one offers the same."""
    order, heat = ColdOrder(), heat_of()
    for block in range(50):
        grant(order, heat, block, float(block % 7))
    first = next(iter(order.coldest()))[1]
    assert sorted(coldest(order)) == list(range(50))
    assert coldest(order)[0] == first


def test_beside_what_is_hot_a_chunk_counts_as_warmer():
    """Of chunks as cold as each other the one with a hot neighbour leaves later, but before what is hot itself."""
    order, heat = ColdOrder(beside=20.0), heat_of()
    for block in (0, 3, 4):
        grant(order, heat, block)
    heat.count([HeatEntry(1, 4, 0, 100)], 40.0)
    assert coldest(order) == [0, 3, 4]
    assert coldest(order) == [0, 3, 4]


def test_a_report_tells_what_was_selected_below():
    """Counting returns the chunks that are not known to be granted, in the order of the report."""
    order, heat = ColdOrder(), heat_of()
    grant(order, heat, 1)
    assert heat.count([HeatEntry(1, 2, 0, 5), HeatEntry(1, 1, 0, 4), HeatEntry(1, 700, 1, 3)], 0.0) == [
        (2, 0),
        (700, 1),
    ]


def test_the_clock_goes_as_fast_as_steps_do():
    """With reports twice as far apart, a half-life comes to last twice as long."""
    clock = StepClock()
    assert clock.advance(INTERVAL_NS) == pytest.approx(1 / HALF_LIFE_REPORTS)
    for _ in range(200):
        clock.reported(2 * INTERVAL_NS)
        clock.reported(1)  # another rank's report of the same steps
    before = clock.now
    assert clock.advance(3 * INTERVAL_NS) - before == pytest.approx(1 / HALF_LIFE_REPORTS, rel=0.01)


def test_a_report_costs_what_it_holds():
    """4,096 entries take no longer in a request of a million blocks than in one of 4,096."""

    def seconds(blocks: int) -> float:
        heat = heat_of()
        heat.reach(blocks - 1, 0)
        entries = [HeatEntry(1, block, 0, 3) for block in range(0, blocks, blocks // 4096)]
        best = float("inf")
        for turn in range(7):
            started = time.process_time()
            heat.count(entries, float(turn))
            best = min(best, time.process_time() - started)
        return best

    assert seconds(1 << 20) < 4 * seconds(4096)
