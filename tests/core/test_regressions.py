"""Bugs that the simulator and first users found, each as the few events that showed it."""

from __future__ import annotations

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.messages import (
    BlockName,
    BlocksFound,
    ChunkLanded,
    Fault,
    FlushAsked,
    FoundBlock,
    LostRecord,
    MoveKind,
    NamespaceReset,
    Outcome,
    RecordsLost,
    RecoveryFinished,
    RequestDone,
    StartMove,
    TicketCancelled,
    TicketFinished,
    TicketKind,
    Tier,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.keys import ROOT
from tests.core.conftest import CHUNKS, NAMESPACE, chain

RECORD_BYTES = 4096 + sum(CHUNKS)
TWO = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20}
THREE = {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": 1 << 20}
S3_ONLY = {"tiers": (Tier.DRAM, Tier.S3)}
SECOND_NS = 1_000_000_000


def found(keys, location=0):
    """Records of a chain as a tier tells of them."""
    return [FoundBlock(key, parent, location) for key, parent in zip(keys, [ROOT, *keys], strict=False)]


def answers(bench):
    """How many resets have been answered."""
    return sum(isinstance(told, RequestDone) for told in bench.told)


def test_a_promotion_of_a_reset_namespace_gives_its_frames_back_once(benches):
    """The last waiting load of a closed index lets its copy go; the promotion must not do so again."""
    bench = benches(**TWO)
    keys = chain(1)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(keys, 7), 0))
    ticket = bench.load(keys)
    bench.post(TicketCancelled(1, ticket, 0))
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    bench.settle()
    assert bench.planner.state.frames.used_pages == 0


def test_an_ssd_record_lost_while_it_is_staged_stands_in_no_order(benches):
    """A staged SSD copy found corrupt is dropped, not put back where victims are looked for."""
    bench = benches(**THREE | {"ssd_bytes": 2 * RECORD_BYTES}, dram_clean_ahead=0.9, ssd_clean_ahead=0.9)
    ssd, keys = bench.planner.state.levels[Tier.SSD], chain(1)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(keys, 7), 0))
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(chain(1, "other"), 8), 0))
    [move] = bench.moves(MoveKind.PROMOTE)  # from SSD to S3 through DRAM
    assert move.block.key == keys[0]
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    bench.finish(move.transfer, Fault.CORRUPT)
    bench.settle()
    assert bench.copy(keys[0], Tier.S3).state is CopyState.READY
    assert bench.copy(keys[0], Tier.SSD) is None
    assert sum(shelf.count for shelf in ssd.shelves) == ssd.used_bytes // RECORD_BYTES


def test_an_ssd_smaller_than_dram_does_not_keep_saves_waiting(benches):
    """A DRAM copy whose record was pushed out of SSD leaves the head of the line, so room is always found."""
    bench = benches(**TWO | {"ssd_bytes": 2 * RECORD_BYTES}, dram_clean_ahead=0.5, ssd_clean_ahead=0.5)
    for number in range(6):
        bench.save(chain(4, f"flood{number}"))
        bench.settle()
    assert not bench.planner.state.lines[TicketKind.SAVE]
    assert bench.match(chain(4, "flood5")).length == 4


def test_an_idle_planner_writes_nothing(benches):
    """Keeping DRAM clean ends by itself, even when less fits below than is to be kept clean."""
    bench = benches(**TWO | {"ssd_bytes": 3 * RECORD_BYTES}, dram_clean_ahead=0.9, ssd_clean_ahead=0.9)
    bench.save(chain(8))
    moves = 0
    while bench.running:
        moves += len(bench.moves(MoveKind.DEMOTE))
        assert moves <= 16, "records are written and dropped in turns, for nobody"
        bench.settle_once()


def test_a_demand_nobody_waits_for_lets_go_of_its_block(benches):
    """Saves that wait for SSD hold their blocks; when their tickets end, those may be evicted again."""
    bench = benches(**TWO)
    keys = chain(4)
    bench.planner.state.levels[Tier.SSD].pause_until_ns = SECOND_NS
    ticket = bench.save(keys, ack=Tier.SSD)
    bench.settle()
    index = bench.planner.state.index(NAMESPACE, 0)
    assert [index.blocks[key].holds for key in keys] == [1] * 4
    bench.post(TicketCancelled(1, ticket, 0))
    bench.post(TimePassed(0))
    assert [index.blocks[key].holds for key in keys] == [0] * 4


def test_a_failed_drop_is_asked_for_again(benches):
    """A record the tier could not drop would be back after a restart, so a reset is answered only when it is gone."""
    bench = benches(**TWO)
    keys = chain(1)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(keys, 7), 0))
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    [move] = bench.moves(MoveKind.DROP)
    bench.finish(move.transfer, Fault.IO)
    assert not answers(bench)
    bench.now_ns = bench.planner.next_deadline_ns()
    bench.post(TimePassed(bench.now_ns))
    [move] = bench.moves(MoveKind.DROP)
    assert move.location == 7
    bench.finish(move.transfer)
    assert answers(bench) == 1


def test_an_s3_write_in_doubt_is_dropped(benches):
    """A write that failed may have reached the bucket; its object is deleted before anything else is written there."""
    bench = benches(**S3_ONLY)
    keys = chain(1)
    bench.save(keys, ack=Tier.S3)
    bench.finish(next(iter(bench.running)))
    [move] = bench.moves(MoveKind.DEMOTE)
    bench.finish(move.transfer, Fault.LATE)
    [drop] = bench.moves(MoveKind.DROP)
    assert drop.block == move.block
    bench.settle()
    assert bench.copy(keys[0], Tier.S3) is None


def test_what_recovery_meets_after_a_reset_is_forgotten_too(benches):
    """A reset during recovery also drops what is found later, and is answered only when all is known."""
    bench = benches(**S3_ONLY | {"recovers": (Tier.S3,)})
    keys = chain(3)
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    assert bench.match(keys).length == 0
    assert len(bench.moves(MoveKind.DROP)) == 3
    bench.post(RecoveryFinished(Tier.S3, 0))
    assert not answers(bench)
    bench.settle()
    assert answers(bench) == 1


def test_a_second_reset_waits_for_the_first(benches):
    """A reset that finds nothing left is not answered while an earlier one still drops records."""
    bench = benches(**TWO)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(chain(2), 7), 0))
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    bench.post(NamespaceReset(1, 51, NAMESPACE, 0))
    assert not answers(bench)
    bench.settle()
    assert answers(bench) == 2


def test_nothing_new_is_written_below_while_its_namespace_is_being_reset(benches):
    """An S3 object has one name: a delete of the reset still on its way would take the new object with it."""
    bench = benches(**S3_ONLY)
    keys = chain(1)
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    [drop] = bench.moves(MoveKind.DROP)
    bench.save(keys)
    saving = next(number for number in bench.running if number != drop.transfer)
    bench.finish(saving)
    bench.post(FlushAsked(1, 90, NAMESPACE, Tier.S3, 0, 0))
    assert not bench.moves(MoveKind.DEMOTE)
    bench.finish(drop.transfer)
    bench.post(FlushAsked(1, 91, NAMESPACE, Tier.S3, 0, 0))
    assert len(bench.moves(MoveKind.DEMOTE)) == 1
    bench.settle()
    assert bench.copy(keys[0], Tier.S3).state is CopyState.READY


def test_an_ssd_is_written_to_only_once_it_is_read_in(benches):
    """A block written anew before its old record is met would lie there twice, and the old one might be lost first."""
    bench = benches(**TWO | {"recovers": (Tier.SSD,)})
    bench.save(chain(1), ack=Tier.SSD)
    bench.settle()
    assert not bench.running
    bench.post(RecoveryFinished(Tier.SSD, 0))
    [move] = bench.moves(MoveKind.DEMOTE)
    assert isinstance(move, StartMove)
    bench.settle()


def test_a_record_of_another_size_is_dropped(benches):
    """What is longer than its block can never be served; it is not left for a later life to find alone.

    What is shorter may be compressed.
    """
    bench = benches(**S3_ONLY)
    keys = chain(1)
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES + 4096, found(keys), 0))
    assert bench.match(keys).length == 0
    assert len(bench.moves(MoveKind.DROP)) == 1
    bench.settle()
    assert bench.planner.state.levels[Tier.S3].used_bytes == 0


def test_a_listing_older_than_a_drop_brings_nothing_back(benches):
    """A page of a listing may still name an object that was dropped since; believing it would acknowledge nothing."""
    bench = benches(**S3_ONLY | {"recovers": (Tier.S3,)})
    keys = chain(1)
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    bench.load(keys)
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.CORRUPT)
    bench.settle()
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    assert bench.match(keys).length == 0


def test_nothing_is_promoted_for_a_tier_without_room(benches):
    """Two demands that cannot be written yet would push each other out of a small DRAM for ever."""
    bench = benches(**THREE | {"ssd_bytes": RECORD_BYTES}, segment_bytes=2 * 8192, dram_segments=1)
    held, wanted = chain(1, "held"), chain(1, "wanted")
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(held, 7), 0))
    bench.planner.state.levels[Tier.S3].pause_until_ns = SECOND_NS
    assert bench.match(held, hold_ns=SECOND_NS).lease
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(wanted), 0))
    bench.post(FlushAsked(1, 90, NAMESPACE, Tier.SSD, 0, 0))
    assert not bench.moves(MoveKind.PROMOTE)


def test_a_tier_smaller_than_one_block_is_no_tier_for_it(benches):
    """Blocks that could never fit on the SSD may leave DRAM without it: nobody waits for ever."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=8192)
    for round_ in range(4):
        ticket = bench.save(chain(4, f"round{round_}"))
        bench.settle()
        assert bench.outcomes(ticket) == [Outcome.STORED] * 4
    ticket = bench.save(chain(1, "deep"), ack=Tier.SSD)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.REFUSED]
    [*_, told] = [told for told in bench.told if isinstance(told, TicketFinished)]
    assert "larger than the whole tier" in told.detail


def test_a_tier_that_failed_is_tried_again(benches):
    """Faults pause a tier, three in a row make it a failing one; still the next write within the deadline opens it."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 20)
    level = bench.planner.state.levels[Tier.SSD]
    ticket = bench.save(chain(1), ack=Tier.SSD)
    bench.settle_once()
    for _ in range(3):
        [move] = bench.moves(MoveKind.DEMOTE)
        bench.finish(move.transfer, Fault.IO)
        assert not bench.moves(MoveKind.DEMOTE)
        bench.now_ns = level.pause_until_ns
        bench.post(TimePassed(bench.now_ns))
    assert level.failing
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.STORED]
    assert not level.failing


def test_a_record_its_tier_let_go_of_is_a_miss_and_is_not_dropped(benches):
    """What a tier reclaimed by itself frees its room at once; a location that is no longer the record's is ignored."""
    bench = benches(**TWO)
    keys = chain(2)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(keys, 7), 0))
    gone = [
        LostRecord(BlockName(NAMESPACE, 0, keys[0], ROOT), 8),
        LostRecord(BlockName(NAMESPACE, 0, keys[1], keys[0]), 7),
    ]
    bench.post(RecordsLost(Tier.SSD, gone, "reclaimed", 0))
    assert bench.moves(MoveKind.DROP) == []
    assert bench.match(keys).length == 1
    assert bench.planner.state.levels[Tier.SSD].used_bytes == RECORD_BYTES


def test_a_record_let_go_of_while_it_is_read_goes_with_its_last_reader(benches):
    """The promotion under way meets a miss; the block is gone after it, and nothing is counted twice."""
    bench = benches(**TWO)
    keys = chain(1)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(keys, 7), 0))
    ticket = bench.load(keys)
    bench.post(RecordsLost(Tier.SSD, [LostRecord(BlockName(NAMESPACE, 0, keys[0], ROOT), 7)], "reclaimed", 0))
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.MISSING)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.FAILED]
    assert bench.planner.state.levels[Tier.SSD].used_bytes == 0


def test_a_block_that_fails_in_mid_copy_is_told_when_the_copy_has_ended(benches):
    """Its second chunk cannot be read while its first is copied: until that ends the worker's pages are not its own."""
    bench = benches(**TWO)
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, RECORD_BYTES, found(chain(1), 7), 0))
    ticket = bench.load(chain(1))
    [move] = bench.moves(MoveKind.PROMOTE)
    [copies] = bench.post(ChunkLanded(move.transfer, 0, 0))
    bench.finish(move.transfer, Fault.CORRUPT)
    assert not [told for told in bench.told if isinstance(told, TicketFinished)]
    bench.post(TransfersFinished([TransferResult(copies.blocks[0].transfer, chunks=1)], 0))
    del bench.running[copies.blocks[0].transfer]
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.FAILED]


def test_an_object_met_again_while_its_namespace_is_reset_is_dropped_again(benches):
    """A listing that names what was dropped already may be new, not old: a reset does not guess."""
    bench = benches(**S3_ONLY, recovers=(Tier.S3,))
    keys = chain(1)
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    bench.post(NamespaceReset(1, 50, NAMESPACE, 0))
    bench.settle()
    bench.post(BlocksFound(Tier.S3, NAMESPACE, 0, RECORD_BYTES, found(keys), 0))
    assert len(bench.moves(MoveKind.DROP)) == 1
    bench.settle()
    bench.post(RecoveryFinished(Tier.S3, 0))
    assert answers(bench) == 1


def test_a_child_that_is_saved_before_its_parent_is_not_the_first_victim(benches):
    """Copies of one save end in any order: a child acknowledged while its parent is still copied is no orphan."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=9 * RECORD_BYTES, policy="lru", dram_segments=16)
    old, new = chain(6, "old"), chain(2, "new")
    bench.save(old, ack=Tier.SSD)
    bench.settle()
    bench.save(new, ack=Tier.SSD)
    by_key = {each.key: each.transfer for [copies] in bench.running.values() for each in copies.blocks}
    bench.finish(by_key[new[1]])
    [write] = bench.moves(MoveKind.DEMOTE)
    assert write.block.key == new[1]
    bench.finish(write.transfer)
    for round_ in range(2):
        bench.save(chain(1, f"other{round_}"), ack=Tier.SSD)
        bench.settle()
    assert bench.copy(new[1], Tier.SSD) is not None
    assert bench.match(new).length == 2


def test_a_child_whose_parent_is_nowhere_is_the_first_victim(benches):
    """An orphan cannot be matched, so its room is the first to be taken."""
    bench = benches(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=9 * RECORD_BYTES, policy="lru", dram_segments=16)
    old, lone = chain(6, "old"), chain(3, "lone")
    bench.save(old, ack=Tier.SSD)
    bench.settle()
    bench.save(lone[1:], parent=lone[0], ack=Tier.SSD)
    bench.settle()
    for round_ in range(2):
        bench.save(chain(1, f"other{round_}"), ack=Tier.SSD)
        bench.settle()
    assert [bench.copy(key, Tier.SSD) for key in lone[1:]] == [None, None]
    assert bench.match(old).length == 6
