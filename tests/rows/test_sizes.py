"""Hot slots go to where they save most misses, under one budget."""

from __future__ import annotations

from flexkv_py.rows.policy import RequestId
from flexkv_py.rows.sizes import HotSizes

ONE, TWO, THREE = RequestId(1), RequestId(2), RequestId(3)


def test_slots_climb_to_where_misses_per_slot_are_equal():
    """Two requests whose misses fall as a power of their slots: sizes end where a slot is worth the same to both."""
    sizes, slots = HotSizes(), {ONE: 4096, TWO: 4096}
    for _ in range(100):
        sizes.measured(ONE, 2048 - int(1600 * (2048 / slots[ONE]) ** 0.5), int(1600 * (2048 / slots[ONE]) ** 0.5))
        sizes.measured(TWO, 2048 - int(200 * (2048 / slots[TWO]) ** 0.5), int(200 * (2048 / slots[TWO]) ** 0.5))
        slots = sizes.move(slots, 2048, 128)
    assert sum(slots.values()) == 8192
    assert slots[TWO] == 2048  # it gains least, and keeps what a step selects
    assert sizes.miss_share(ONE) > sizes.miss_share(TWO)


def test_little_gain_moves_nothing():
    """Requests that miss about as much keep what they have: moved rows must be fetched again."""
    sizes = HotSizes()
    sizes.measured(ONE, 1000, 1000)
    sizes.measured(TWO, 1100, 900)
    assert sizes.move({ONE: 4096, TWO: 4096}, 2048, 128) == {ONE: 4096, TWO: 4096}


def test_one_alone_or_all_at_the_least_move_nothing():
    """Nobody to take from: sizes stay."""
    sizes = HotSizes()
    sizes.measured(ONE, 0, 100)
    sizes.measured(TWO, 100, 0)
    assert sizes.move({ONE: 4096}, 2048, 128) == {ONE: 4096}
    assert sizes.move({ONE: 2048, TWO: 2048}, 2048, 128) == {ONE: 2048, TWO: 2048}


def test_a_request_never_measured_counts_as_missing_all():
    """A new request is not robbed before it has shown what it needs; one that is over is forgotten."""
    sizes = HotSizes()
    sizes.measured(ONE, 1900, 148)
    assert sizes.move({ONE: 4096, THREE: 4096}, 2048, 128) == {ONE: 3968, THREE: 4224}
    sizes.forget(ONE)
    assert sizes.miss_share(ONE) == 1.0
