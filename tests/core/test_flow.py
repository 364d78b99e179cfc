"""What is on its way at a time: limits by count and bytes, write-behind that tells what it dropped, late listings."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import (
    BlocksFound,
    ChunkLanded,
    Fault,
    FoundBlock,
    LostRecord,
    MoveKind,
    NamespaceSpec,
    Outcome,
    Priority,
    RecordsLost,
    RecoveryFinished,
    SessionOpened,
    StartCopies,
    Tier,
    TierChanged,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.room import VICTIMS_PER_TAKE_MAX
from flexkv_py.core.transfers import IN_FLIGHT_BLOCKS_MIN, InFlight
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from tests.core.conftest import CHUNKS, NAMESPACE, Bench, chain

RECORD_BYTES = ALIGN_BYTES + sum(CHUNKS)
THREE = {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": 8 * RECORD_BYTES, "recovers": (Tier.S3,)}


def tell_found(bench: Bench, tier: Tier, keys: list[BlockKey], location: int) -> None:
    """A listing met these blocks."""
    blocks = [FoundBlock(key, parent, location) for parent, key in zip([ROOT, *keys], keys, strict=False)]
    bench.post(BlocksFound(tier, NAMESPACE, 0, RECORD_BYTES, blocks, bench.now_ns, CHUNKS))


def test_small_blocks_are_limited_by_count_and_large_ones_by_bytes() -> None:
    """A thousand small ones may be on their way, of large ones as many as fit the bytes, and a few of any size."""
    small, large, huge = InFlight(1000, 1 << 20), InFlight(1000, 1 << 20), InFlight(1000, 1 << 20)
    for flow, record_bytes, fits in ((small, 512, 1000), (large, 1 << 17, 8), (huge, 1 << 30, IN_FLIGHT_BLOCKS_MIN)):
        while flow.takes(record_bytes):
            flow.begin(record_bytes)
        assert flow.count == fits
        flow.end(record_bytes)
        assert flow.takes(record_bytes)


def test_a_share_of_the_limits_is_never_nothing() -> None:
    """Half of a limit of one is one, or what only may use half would wait for ever."""
    flow = InFlight(1, 1)
    assert flow.takes(1 << 20, share=2)
    flow.begin(1 << 20)
    assert not flow.takes(1 << 20)


def test_many_small_demotions_run_at_a_time(benches: Any) -> None:
    """Demotions are not held to a few blocks: those of one save all start together."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 30, dram_segments=64)
    ticket = bench.save(chain(40), ack=Tier.SSD)
    bench.settle_once()
    bench.post(TierChanged(Tier.SSD, True, "", 0))
    assert len(bench.moves(MoveKind.DEMOTE)) == 40
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED] * 40


def test_a_write_behind_that_failed_is_told(benches: Any) -> None:
    """A block that could not be staged from SSD to S3 stays on SSD, and its story and a counter say so."""
    bench = benches(**THREE)
    bench.save(chain(8), ack=Tier.SSD)
    bench.settle_once()
    bench.settle_once()
    bench.post(TimePassed(0))
    staged = next(move for move in bench.moves(MoveKind.DEMOTE) if move.tier is Tier.S3)
    bench.finish(staged.transfer, Fault.IO)
    told = [event for event in bench.planner.story(staged.block.key) if event.what == "not staged"]
    assert [event.tier for event in told] == [Tier.S3]
    assert bench.planner.counters["not_staged", "s3"] == 1
    assert bench.copy(staged.block.key, Tier.SSD) is not None
    bench.settle()


def test_blocks_another_daemon_wrote_are_taken_at_any_time(benches: Any) -> None:
    """A block told of long after the listing had ended is a hit like any other."""
    bench = benches(**THREE)
    bench.post(RecoveryFinished(Tier.S3, 0))
    tell_found(bench, Tier.S3, chain(3), 5)
    assert bench.match(chain(3)).length == 3
    ticket = bench.load(chain(3))
    assert [move.location for move in bench.moves(MoveKind.PROMOTE)] == [5, 5, 5]
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED] * 3


def test_a_late_listing_of_a_known_copy_changes_nothing(benches: Any) -> None:
    """What is there already keeps its place, whether the other record is elsewhere or the same."""
    bench = benches(**THREE)
    bench.post(RecoveryFinished(Tier.S3, 0))
    for location in (5, 5, 9):
        tell_found(bench, Tier.S3, chain(1), location)
    assert bench.copy(chain(1)[0], Tier.S3).location == 5
    assert bench.planner.state.levels[Tier.S3].used_bytes == RECORD_BYTES
    assert bench.moves(MoveKind.DROP) == []


@pytest.mark.parametrize("fault", [None, Fault.FULL])
def test_a_late_listing_of_a_block_being_demoted_is_harmless(benches: Any, fault: Fault | None) -> None:
    """Two daemons write one block at a time: our own write decides what we know of it."""
    bench = benches(**THREE)
    bench.post(RecoveryFinished(Tier.S3, 0))
    ticket = bench.save(chain(1), ack=Tier.S3)
    bench.settle_once()
    [move] = [move for move in bench.moves(MoveKind.DEMOTE) if move.tier is Tier.S3]
    tell_found(bench, Tier.S3, chain(1), 77)
    bench.finish(move.transfer, fault, location=11)
    copy = bench.copy(chain(1)[0], Tier.S3)
    assert copy is None if fault else copy.location == 11
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.REFUSED if fault else Outcome.STORED]


def test_a_late_listing_of_a_block_being_dropped_is_harmless(benches: Any) -> None:
    """A record found while ours of that name is on its way out stays unknown until it is found again."""
    bench = benches(**THREE)
    bench.post(RecoveryFinished(Tier.S3, 0))
    tell_found(bench, Tier.S3, chain(1), 5)
    ticket = bench.load(chain(1))
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.CORRUPT)
    [drop] = bench.moves(MoveKind.DROP)
    tell_found(bench, Tier.S3, chain(1), 6)
    bench.finish(drop.transfer)
    assert bench.outcomes(ticket) == [Outcome.FAILED]
    assert bench.match(chain(1)).length == 0
    tell_found(bench, Tier.S3, chain(1), 6)
    assert bench.match(chain(1)).length == 1


def test_a_record_lost_before_its_write_was_told_is_not_acknowledged(benches: Any) -> None:
    """A tier may reclaim a record while the word of its write is on its way: then nothing was stored."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20)
    ticket = bench.save(chain(1), ack=Tier.SSD)
    bench.settle_once()
    [move] = bench.moves(MoveKind.DEMOTE)
    bench.post(RecordsLost(Tier.SSD, [LostRecord(move.block, 7)], "reclaimed", 0))
    bench.finish(move.transfer, location=7)
    assert bench.told == []
    [again] = bench.moves(MoveKind.DEMOTE)
    assert again.transfer != move.transfer
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED]


def test_a_flood_of_demotions_keeps_no_load_waiting(benches: Any) -> None:
    """While every demotion that may run runs, a load's read starts at once and its first chunk is handed on at once."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 30, dram_segments=32, demotions_in_flight_max=12)
    wanted = chain(1, "wanted")
    tell_found(bench, Tier.SSD, wanted, 5)
    for number in range(6):
        bench.save(chain(4, f"flood {number}"), ack=Tier.SSD)
        bench.post(TransfersFinished(ended_copies(bench), 0))
    assert len(bench.moves(MoveKind.DEMOTE)) == 12
    bench.load(wanted)
    [read] = bench.moves(MoveKind.PROMOTE)
    assert read.priority is Priority.LOAD
    [copies] = bench.post(ChunkLanded(read.transfer, 0, 0))
    assert isinstance(copies, StartCopies)
    assert copies.chunks == 1
    bench.post(ChunkLanded(read.transfer, 1, 0))
    bench.post(TransfersFinished([TransferResult(read.transfer)], 0))
    del bench.running[read.transfer]
    bench.settle()


def ended_copies(bench: Bench) -> list[TransferResult]:
    """The ends of all copies out of the worker that run now; everything else goes on."""
    ended = []
    for transfer, [order, *_] in list(bench.running.items()):
        if isinstance(order, StartCopies):
            del bench.running[transfer]
            ended.append(TransferResult(transfer, chunks=order.chunks))
    return ended


def test_a_block_that_needs_a_whole_segment_of_small_ones_gets_it_without_another_event(benches: Any) -> None:
    """More victims than one event may take: the planner asks to be woken, where an idle daemon throttled the save."""
    victims = 3 * VICTIMS_PER_TAKE_MAX
    bench = benches(segment_bytes=victims * len(CHUNKS) * max(CHUNKS), dram_segments=1)
    other = NamespaceDigest(bytes([7]) * 32)
    bench.post(SessionOpened(2, NamespaceSpec(other, (16 * max(CHUNKS),)), 0, 0))
    for at in range(victims):
        bench.save(chain(1, str(at)))
        bench.settle()
    ticket = bench.save(chain(1, "large"), deadline_ns=1 << 40, session=2)
    while (due_ns := bench.planner.next_deadline_ns()) is not None and due_ns < 1 << 40 and not bench.running:
        bench.now_ns = max(due_ns, bench.now_ns + 1)
        bench.tick()
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED]


def test_a_block_that_was_changed_in_dram_is_no_block_any_more(benches: Any) -> None:
    """A write down that finds other bytes than were saved stores nothing, and nobody may hit that copy again."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20)
    ticket = bench.save(chain(2), ack=Tier.SSD)
    bench.settle_copies()
    first, second = bench.moves(MoveKind.DEMOTE)
    bench.finish(first.transfer, Fault.CORRUPT)
    bench.finish(second.transfer)
    assert bench.outcomes(ticket)[0] is Outcome.REFUSED
    assert bench.match(chain(2)).length == 0
    assert bench.copy(chain(2)[0], Tier.DRAM) is None
    assert bench.planner.state.levels[Tier.SSD].up
