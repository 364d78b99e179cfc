"""Loads with a deadline: what cannot come in time is said early, and no guess costs more than a shorter hit."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.forecast import AGE_NS_MAX, SAMPLES_MIN, Forecast
from flexkv_py.core.messages import (
    BlocksFound,
    Fault,
    FoundBlock,
    MoveKind,
    Outcome,
    PrefetchAsked,
    Priority,
    TicketFinished,
    Tier,
    TimePassed,
)
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey
from tests.core.conftest import CHUNKS, NAMESPACE, Bench, chain

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
RECORD_BYTES = ALIGN_BYTES + sum(CHUNKS)
TIERS = (Tier.DRAM, Tier.SSD, Tier.S3)


def found(bench: Bench, keys: list[BlockKey], tier: Tier = Tier.S3) -> None:
    """These blocks are in a tier since the last life."""
    blocks = [FoundBlock(key, parent, at) for at, (parent, key) in enumerate(zip([ROOT, *keys], keys, strict=False))]
    bench.post(BlocksFound(tier, NAMESPACE, 0, RECORD_BYTES, blocks, bench.now_ns, CHUNKS))


def read_slowly(bench: Bench, keys: list[BlockKey], took_ns: int) -> None:
    """Load these one after another, each read taking so long."""
    for key in keys:
        bench.load([key])
        bench.now_ns += took_ns
        bench.settle()


def finished(bench: Bench, ticket: int) -> TicketFinished:
    [told] = [told for told in bench.told if isinstance(told, TicketFinished) and told.ticket == ticket]
    return told


def test_a_load_that_must_come_late_says_so_at_once(benches: Any) -> None:
    """When every read takes two seconds, a load with one second left is told so without a read being started."""
    bench = benches(tiers=TIERS)
    known, wanted = chain(SAMPLES_MIN, "known"), chain(2, "wanted")
    found(bench, known)
    found(bench, wanted)
    read_slowly(bench, known, 2 * SECOND)
    ticket = bench.load(wanted, bench.now_ns + SECOND)
    assert bench.outcomes(ticket) == [Outcome.LATE] * 2
    assert "block 0 would arrive from s3 in 2 s, the deadline is in 1 s" in finished(bench, ticket).detail
    assert bench.moves(MoveKind.PROMOTE) == []
    assert any(event.what == "given up" for event in bench.planner.story(wanted[0]))


def test_the_prefix_that_can_arrive_is_loaded(benches: Any) -> None:
    """What lies in DRAM is loaded and told as loaded; the rest is told late, all in one early answer."""
    bench = benches(tiers=TIERS)
    known, wanted = chain(SAMPLES_MIN, "known"), chain(3, "wanted")
    found(bench, known)
    found(bench, wanted)
    read_slowly(bench, known + wanted[:1], 2 * SECOND)
    ticket = bench.load(wanted, bench.now_ns + SECOND)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED, Outcome.LATE, Outcome.LATE]


@pytest.mark.parametrize("left_ns", [0, 2 * SECOND, 2 * SECOND * 10 // 14])
def test_a_load_that_may_yet_arrive_is_tried(benches: Any, left_ns: int) -> None:
    """Without a deadline, with time enough, or with a little too little by the forecast, the read begins."""
    bench = benches(tiers=TIERS)
    known, wanted = chain(SAMPLES_MIN, "known"), chain(2, "wanted")
    found(bench, known)
    found(bench, wanted)
    read_slowly(bench, known, 2 * SECOND)
    bench.load(wanted, bench.now_ns + left_ns if left_ns else 0)
    assert bench.moves(MoveKind.PROMOTE)


def test_few_samples_and_old_ones_say_nothing(benches: Any) -> None:
    """A tier that was slow is tried again: a forecast needs enough reads, and it ages."""
    bench = benches(tiers=TIERS)
    known, wanted = chain(SAMPLES_MIN, "known"), chain(1, "wanted")
    found(bench, known)
    found(bench, wanted)
    read_slowly(bench, known[:-1], 2 * SECOND)
    few = bench.load(wanted, bench.now_ns + SECOND)
    assert bench.moves(MoveKind.PROMOTE)
    bench.settle()
    assert bench.outcomes(few) == [Outcome.LOADED]
    bench.now_ns += AGE_NS_MAX + 1
    bench.load(known[-1:], bench.now_ns + SECOND)
    assert bench.moves(MoveKind.PROMOTE)
    bench.settle()


def test_keys_that_wait_for_their_turn_are_given_up_when_time_runs_out(benches: Any) -> None:
    """A key that could have come in time when it was asked for is told late while it still waits for its turn."""
    bench = benches(tiers=TIERS, promotions_in_flight_max=1)
    known, wanted = chain(SAMPLES_MIN, "known"), chain(2, "wanted")
    found(bench, known)
    found(bench, wanted)
    read_slowly(bench, known, 900 * MILLISECOND)
    ticket = bench.load(wanted, bench.now_ns + 1400 * MILLISECOND)
    [move] = bench.moves(MoveKind.PROMOTE)
    assert move.deadline_ns == bench.now_ns + 1400 * MILLISECOND
    bench.now_ns += 900 * MILLISECOND
    bench.finish(move.transfer)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED, Outcome.LATE]


def test_a_forecast_knows_latency_from_bandwidth() -> None:
    """Where depth costs nothing it is not multiplied; where it does, the line goes on beyond what was measured."""
    flat, steep = Forecast(), Forecast()
    for _ in range(SAMPLES_MIN):
        for depth in (1, 2, 4):
            flat.note(depth << 20, 50 * MILLISECOND, 0)
            steep.note(depth << 20, depth * 50 * MILLISECOND, 0)
    assert flat.arrival_ns(64 << 20, 0) == 50 * MILLISECOND
    assert steep.arrival_ns(64 << 20, 0) == pytest.approx(64 * 50 * MILLISECOND, rel=0.01)
    assert steep.arrival_ns(1 << 18, 7) == 7  # nothing so small was ever read: no word about it


def test_a_read_that_was_not_begun_in_time_is_read_for_whoever_waits_longer(benches: Any) -> None:
    """Two loads of one block: the first one's deadline passes on the link, the second still gets its block."""
    bench = benches(tiers=TIERS)
    wanted = chain(1)
    found(bench, wanted)
    first = bench.load(wanted, 10 * MILLISECOND)
    second = bench.load(wanted, SECOND)
    [move] = bench.moves(MoveKind.PROMOTE)
    assert move.deadline_ns == 10 * MILLISECOND
    bench.now_ns = 11 * MILLISECOND
    bench.post(TimePassed(bench.now_ns))
    assert bench.outcomes(first) == [Outcome.LATE]
    bench.finish(move.transfer, Fault.LATE)
    [again] = bench.moves(MoveKind.PROMOTE)
    assert again.deadline_ns == SECOND
    bench.settle()
    assert bench.outcomes(second) == [Outcome.LOADED]


def test_nothing_is_read_again_for_nobody(benches: Any) -> None:
    """When the only load that wanted a read is over, the read that was not begun stays so."""
    bench = benches(tiers=TIERS)
    found(bench, chain(1))
    bench.load(chain(1), 10 * MILLISECOND)
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.now_ns = 11 * MILLISECOND
    bench.post(TimePassed(bench.now_ns))
    bench.finish(move.transfer, Fault.LATE)
    assert bench.moves(MoveKind.PROMOTE) == []
    assert bench.copy(chain(1)[0], Tier.DRAM) is None


def test_a_load_waits_neither_for_prefetches_nor_for_staging(benches: Any) -> None:
    """Half of the promotions in flight are for loads alone, and waiting loads go before waiting prefetches."""
    bench = benches(tiers=TIERS, ssd_bytes=1 << 20, promotions_in_flight_max=4)
    ahead, wanted = chain(6, "ahead"), chain(2, "wanted")
    found(bench, ahead, Tier.SSD)
    found(bench, wanted, Tier.SSD)
    bench.post(PrefetchAsked(1, 1000, ahead, SECOND, Tier.DRAM, 0))
    assert [move.priority for move in bench.moves(MoveKind.PROMOTE)] == [Priority.PREFETCH] * 2
    ticket = bench.load(wanted)
    assert [move.block.key for move in bench.moves(MoveKind.PROMOTE)][2:] == wanted
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED] * 2
    assert bench.outcomes(1000) == [Outcome.LOADED] * 6
