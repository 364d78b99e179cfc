"""Pins: what they keep, for how long, and what ends them before their time."""

from __future__ import annotations

from typing import Any

from flexkv_py.core.messages import (
    Fault,
    LostRecord,
    MoveKind,
    NamespaceReset,
    Outcome,
    RecordsLost,
    RequestDone,
    Tier,
)
from flexkv_py.errors import ErrorCode
from flexkv_py.operating.messages import PinAnswered, WishRefused
from tests.core.conftest import NAMESPACE, chain
from tests.operating.conftest import SECOND

DRAM_BLOCKS = 8


def test_a_pinned_block_outlives_any_pressure(benches: Any) -> None:
    """Far more is saved than DRAM holds: what is pinned is still there, all else has made room."""
    bench, [pinned, *_] = benches(), [chain(2, "pinned")]
    bench.save(pinned)
    bench.settle()
    answer = bench.pin(pinned)
    assert (answer.pinned, answer.missing) == (2, [])
    for branch in range(5):
        bench.save(chain(6, f"{branch}"))
        bench.settle()
    assert all(bench.copy(key, Tier.DRAM) is not None for key in pinned)


def test_after_its_time_a_pinned_block_goes_like_any_other(benches: Any) -> None:
    """The time is over: the same pressure takes it."""
    bench, pinned = benches(), chain(2, "pinned")
    bench.save(pinned)
    bench.settle()
    bench.pin(pinned, SECOND)
    assert bench.planner.next_deadline_ns() == SECOND
    bench.now_ns = SECOND
    bench.tick()
    assert bench.state.pinned == {}
    for branch in range(5):
        bench.save(chain(6, f"{branch}"))
        bench.settle()
    assert all(bench.copy(key, Tier.DRAM) is None for key in pinned)


def test_pinned_anew_the_time_counts_anew(benches: Any) -> None:
    """Half a second before the end another second is asked for: it ends a second after that, not before."""
    bench, pinned = benches(), chain(1)
    bench.save(pinned)
    bench.settle()
    bench.pin(pinned, SECOND)
    bench.now_ns = SECOND // 2
    bench.pin(pinned, SECOND)
    bench.now_ns = SECOND
    bench.tick()
    assert len(bench.state.pinned) == 1
    bench.now_ns = SECOND + SECOND // 2
    bench.tick()
    assert bench.state.pinned == {}


def test_what_is_in_no_tier_is_said_to_be_missing(benches: Any) -> None:
    """Of three keys one was saved: one is pinned, two are named as missing."""
    bench, keys = benches(), chain(3)
    bench.save(keys[:1])
    bench.settle()
    answer = bench.pin(keys)
    assert isinstance(answer, PinAnswered)
    assert (answer.pinned, answer.missing) == (1, keys[1:])
    assert bench.unpin(keys).unpinned == 1


def test_more_than_a_share_of_dram_is_not_pinned(benches: Any) -> None:
    """Half of DRAM may be pinned; five of its eight blocks are refused together, with the key that limits them."""
    bench, keys = benches(), chain(5)
    bench.save(keys)
    bench.settle()
    refused = bench.pin(keys)
    assert isinstance(refused, WishRefused)
    assert refused.code is ErrorCode.LIMIT_EXCEEDED
    assert "pinned_share_max" in refused.message
    assert bench.state.pinned == {}
    assert bench.pin(keys[:4]).pinned == 4


def test_no_more_copies_than_the_limit_are_pinned(benches: Any) -> None:
    """With pins_max = 1 a second copy is refused, the first may be pinned anew."""
    bench, keys = benches(pins_max=1), chain(2)
    bench.save(keys)
    bench.settle()
    assert bench.pin(keys[:1]).pinned == 1
    assert "pins_max" in bench.pin(keys[1:]).message
    assert bench.pin(keys[:1]).pinned == 1


def test_a_reset_does_not_wait_for_pins(benches: Any) -> None:
    """The namespace of a pinned block is reset: it is gone at once, and the reset is answered."""
    bench, keys = benches(), chain(2)
    bench.save(keys)
    bench.settle()
    bench.pin(keys)
    bench.post(NamespaceReset(1, 77, NAMESPACE, bench.now_ns))
    bench.settle()
    assert RequestDone(1, 77) in bench.told
    assert bench.state.pinned == {}


def test_a_lost_record_loses_its_pin(benches: Any) -> None:
    """The tier tells that a pinned record is gone: the block may be written there again at once."""
    bench, [key] = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20), chain(1)
    ticket = bench.save([key], ack=Tier.SSD)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED]
    bench.pin([key])
    record = bench.copy(key, Tier.SSD)
    lost = LostRecord(record.block.name, record.location)
    bench.post(RecordsLost(Tier.SSD, [lost], "reclaimed", bench.now_ns))
    assert bench.copy(key, Tier.SSD) is None
    assert [copy.tier for copy in bench.state.pinned] == [Tier.DRAM]


def test_a_damaged_record_is_dropped_though_it_is_pinned(benches: Any) -> None:
    """A pinned record turns out to be garbage when it is read: it is dropped, not kept for its pin."""
    bench, keys = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20), chain(1)
    bench.save(keys, ack=Tier.SSD)
    bench.settle()
    for branch in range(5):
        bench.save(chain(6, f"{branch}"))
        bench.settle()
    assert bench.copy(keys[0], Tier.DRAM) is None
    bench.pin(keys)
    ticket = bench.load(keys)
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.CORRUPT)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.FAILED]
    assert bench.copy(keys[0], Tier.SSD) is None
    assert bench.state.pinned == {}
