"""Events in, instructions out: loads, saves, staged moves, and what dies with a session."""

from __future__ import annotations

import pytest

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.messages import (
    BlocksFound,
    ChunkLanded,
    EndSession,
    Fault,
    FlushAsked,
    FoundBlock,
    LeaseReleased,
    MatchAsked,
    MoveKind,
    NamespaceReset,
    NamespaceSpec,
    Outcome,
    RequestDone,
    RequestRefused,
    SessionClosed,
    SessionOpened,
    StartCopies,
    TicketCancelled,
    TicketFinished,
    Tier,
    TierChanged,
    TimePassed,
)
from flexkv_py.keys import ROOT, NamespaceDigest
from tests.core.conftest import CHUNKS, NAMESPACE, SPEC, chain

TWO = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20}
THREE = {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": 1 << 20}


def test_a_saved_block_is_matched_only_when_it_has_landed(benches):
    """A save becomes visible whole and at once, not while its frames fill."""
    bench = benches()
    keys = chain(3)
    ticket = bench.save(keys)
    assert bench.match(keys).length == 0
    bench.settle()
    assert bench.match(keys).length == 3
    assert bench.outcomes(ticket) == [Outcome.STORED] * 3


def test_a_load_pins_its_blocks_until_its_copies_end(benches):
    """While a load reads a block nothing can evict it, and afterwards it stands in the order again."""
    bench = benches()
    keys = chain(2)
    bench.save(keys)
    bench.settle()
    ticket = bench.load(keys)
    assert bench.copy(keys[0], Tier.DRAM).readers == 1
    bench.settle()
    assert bench.copy(keys[0], Tier.DRAM).readers == 0
    assert bench.outcomes(ticket) == [Outcome.LOADED] * 2


def test_a_load_is_cut_at_the_first_miss(benches):
    """What follows a miss is of no use to a prefix and is reported as a miss too."""
    bench = benches()
    keys = chain(3)
    bench.save(keys[:1])
    bench.settle()
    ticket = bench.load(keys)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED, Outcome.MISS, Outcome.MISS]


def test_a_full_arena_evicts_the_tail_first(benches):
    """With DRAM alone the least recently used block goes, and within a request the tail is older."""
    bench = benches()  # 16 frames of 8 KiB: 8 blocks of 2 chunks
    old, new = chain(8, "old"), chain(2, "new")
    bench.save(old)
    bench.settle()
    bench.save(new)
    bench.settle()
    assert bench.match(old).length == 6
    assert bench.match(new).length == 2
    assert [event.what for event in bench.planner.story(old[7])] == ["save", "evict"]


def test_a_block_leaving_dram_is_written_below_first(benches):
    """With SSD below, eviction demotes: every stored block stays matchable."""
    bench = benches(**TWO)
    keys = chain(24)
    for start in range(0, 24, 4):
        bench.save(keys[start : start + 4], keys[start - 1] if start else bytes(16))
        bench.settle()
    answer = bench.match(keys)
    assert answer.length == 24
    assert {run.tier for run in answer.runs} == {Tier.DRAM, Tier.SSD}


def test_a_promotion_delivers_by_chunk(benches):
    """A landed chunk is copied into the worker while later chunks are still on their way."""
    bench = benches(**TWO)
    keys = chain(16)
    bench.save(keys)
    bench.settle()
    below = next(key for key in keys if bench.copy(key, Tier.DRAM) is None)
    bench.load([below])
    [move] = bench.moves(MoveKind.PROMOTE)
    [copies] = bench.post(ChunkLanded(move.transfer, 0, 0))
    assert isinstance(copies, StartCopies)
    assert copies.chunks == 0b01
    [copies] = bench.post(ChunkLanded(move.transfer, 1, 0))
    assert copies.chunks == 0b10


def test_a_corrupt_record_is_a_miss_and_is_dropped(benches):
    """A promotion that finds wrong bytes fails its load, frees its frames and drops the record."""
    bench = benches(**TWO)
    keys = chain(16)
    bench.save(keys)
    bench.settle()
    below = next(key for key in keys if bench.copy(key, Tier.DRAM) is None)
    ticket = bench.load([below])
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.CORRUPT)
    assert bench.outcomes(ticket) == [Outcome.FAILED]
    bench.settle()
    assert bench.copy(below, Tier.SSD) is None
    assert bench.match([below]).length == 0


def test_a_corrupt_ssd_record_is_read_from_s3_instead(benches):
    """With a second copy below, the load does not notice the first one was bad."""
    bench = benches(**THREE)
    keys = chain(16)
    bench.save(keys)
    bench.settle()
    bench.post(FlushAsked(1, 90, NAMESPACE, Tier.S3, 0, 0))
    bench.settle()
    below = next(key for key in keys if bench.copy(key, Tier.DRAM) is None and bench.copy(key, Tier.SSD))
    ticket = bench.load([below])
    [move] = bench.moves(MoveKind.PROMOTE)
    bench.finish(move.transfer, Fault.CORRUPT)
    bench.settle()
    assert bench.outcomes(ticket) == [Outcome.LOADED]


def test_flush_copies_everything_down(benches):
    """After a flush to S3 every block is there, also those that were only on SSD."""
    bench = benches(**THREE)
    keys = chain(20)
    for start in range(0, 20, 4):
        bench.save(keys[start : start + 4], keys[start - 1] if start else bytes(16))
        bench.settle()
    bench.post(FlushAsked(1, 90, NAMESPACE, Tier.S3, 0, 0))
    bench.settle()
    [finished] = [told for told in bench.told if isinstance(told, TicketFinished) and told.ticket == 90]
    assert finished.stored == 20
    assert all(bench.copy(key, Tier.S3).state is CopyState.READY for key in keys)


def test_a_dead_session_leaves_nothing_behind(benches):
    """Leases, tickets and pins go at once; frames after their last copy; nothing it saved is visible."""
    bench = benches()
    keys, saving = chain(2), chain(2, "saving")
    bench.save(keys)
    bench.settle()
    assert bench.match(keys, hold_ns=10**9).lease
    bench.load(keys)
    bench.save(saving)
    [ended] = bench.post(SessionClosed(1, 0))
    assert isinstance(ended, EndSession)
    assert not bench.planner.state.tickets
    assert not bench.planner.state.leases
    bench.settle()
    assert bench.planner.state.index(NAMESPACE, 0).blocks.keys() == set(keys)
    assert bench.planner.state.frames.used_pages == 2 * 4


def test_a_cancelled_save_is_dropped_on_landing(benches):
    """The worker may have reused the pages of a cancelled save, so its bytes are never shown."""
    bench = benches()
    keys = chain(1)
    ticket = bench.save(keys)
    bench.post(TicketCancelled(1, ticket, 0))
    assert bench.outcomes(ticket) == [Outcome.CANCELLED]
    bench.settle()
    assert bench.match(keys).length == 0
    assert bench.planner.state.frames.used_pages == 0


def test_a_second_saver_takes_over_when_the_first_fails(benches):
    """Two save the same key; when the first copy fails, the second's own bytes are used."""
    bench = benches()
    keys = chain(1)
    first = bench.save(keys)
    second = bench.save(keys)
    [transfer] = bench.running
    bench.finish(transfer, Fault.MEMORY)
    assert bench.outcomes(first) == [Outcome.REFUSED]
    bench.settle()
    assert bench.outcomes(second) == [Outcome.STORED]


def test_saves_without_room_wait_and_are_then_throttled(benches):
    """A save that gets no frames until its deadline says so; what had room is stored."""
    bench = benches()
    keys = chain(8)
    bench.save(keys)
    bench.settle()
    bench.load(keys)  # pins all of DRAM
    ticket = bench.save(chain(2, "more"), deadline_ns=1000)
    bench.post(TimePassed(1000))
    bench.now_ns = 1000
    assert bench.outcomes(ticket) == [Outcome.THROTTLED] * 2
    bench.settle()


def test_losing_a_middle_block_orphans_its_descendants_until_it_returns(benches):
    """A hole ends the match; the blocks behind it are found again once the hole is filled."""
    bench = benches(**TWO)
    keys = chain(4)
    bench.save([keys[0]])
    bench.save(keys[2:], parent=keys[1])
    bench.settle()
    assert bench.match(keys).length == 1
    bench.save([keys[1]], parent=keys[0])
    bench.settle()
    bench.post(TimePassed(0))
    assert bench.match(keys).length == 4


def test_a_lease_keeps_a_block_that_lies_nowhere_else(benches):
    """Held blocks survive any pressure while the lease lives, and go like others afterwards."""
    bench = benches()
    keys = chain(2)
    bench.save(keys)
    bench.settle()
    lease = bench.match(keys, hold_ns=10**12).lease
    for round_ in range(4):
        bench.save(chain(6, f"flood{round_}"), deadline_ns=1)
        bench.settle()
    assert bench.match(keys).length == 2
    bench.post(LeaseReleased(1, 5, lease, 0))
    assert isinstance(bench.told[-1], RequestDone)
    for round_ in range(4, 8):
        bench.save(chain(8, f"flood{round_}"))
        bench.settle()
    assert bench.match(keys).length == 0


def test_a_lease_ends_with_its_time(benches):
    """An expired lease is unknown afterwards, with a code."""
    bench = benches()
    keys = chain(1)
    bench.save(keys)
    bench.settle()
    lease = bench.match(keys, hold_ns=100).lease
    bench.post(TimePassed(100))
    bench.now_ns = 100
    bench.post(LeaseReleased(1, 5, lease, 100))
    assert isinstance(bench.told[-1], RequestRefused)


def test_a_reset_forgets_every_tier_and_answers_when_it_has(benches):
    """After a reset nothing of the namespace is matched, stored or counted."""
    bench = benches(**TWO)
    keys = chain(12)
    bench.save(keys)
    bench.settle()
    bench.load(keys[:1])
    bench.post(NamespaceReset(1, 7, NAMESPACE, 0))
    assert bench.match(keys).length == 0
    assert not any(isinstance(told, RequestDone) for told in bench.told)
    bench.settle()
    assert isinstance(bench.told[-1], RequestDone)
    assert bench.planner.state.levels[Tier.SSD].used_bytes == 0
    assert bench.planner.state.frames.used_pages == 0


def test_a_tier_that_is_down_is_no_hit(benches):
    """Blocks that only a tier that is down could supply are not matched, and are again when it is up."""
    bench = benches(**TWO)
    keys = chain(12)
    bench.save(keys)
    bench.settle()
    bench.post(TierChanged(Tier.SSD, False, "unplugged", 0))
    length = bench.match(keys).length
    assert 0 < length < 12
    ticket = bench.load(keys)
    bench.settle()
    assert bench.outcomes(ticket)[length] is Outcome.FAILED
    bench.post(TierChanged(Tier.SSD, True, "", 0))
    assert bench.match(keys).length == 12


def test_second_use_admits_only_what_was_used_again(benches):
    """Under `second-use` a block saved once is dropped with a reason, one that was loaded is demoted."""
    bench = benches(**TWO, ssd_hits_min=2)
    used, unused = chain(2, "used"), chain(2, "unused")
    bench.save(used)
    bench.save(unused)
    bench.settle()
    bench.load(used)
    bench.settle()
    for round_ in range(3):
        bench.save(chain(8, f"flood{round_}"))
        bench.settle()
    assert bench.match(used).length == 2
    assert bench.match(unused).length == 0
    detail = bench.planner.story(unused[0])[-1].detail
    assert detail == "admission refused it below: used 1 times, ssd_hits_min = 2"


def test_an_acknowledged_depth_is_kept(benches):
    """A save with ack=ssd is `stored` only when the record is written."""
    bench = benches(**TWO)
    keys = chain(1)
    ticket = bench.save(keys, ack=Tier.SSD)
    [transfer] = bench.running
    bench.finish(transfer)
    [move] = bench.moves(MoveKind.DEMOTE)
    assert not any(isinstance(told, TicketFinished) for told in bench.told)
    bench.finish(move.transfer, location=5)
    assert bench.outcomes(ticket) == [Outcome.STORED]


def test_two_shards_are_usable_only_as_far_as_both_have_them(benches):
    """A prefix counts in blocks that every named shard holds."""
    from flexkv_py.core.messages import SessionOpened

    bench = benches()
    bench.post(SessionOpened(2, SPEC, 1, 0))
    keys = chain(3)
    bench.save(keys, session=1)
    bench.save(keys[:2], session=2)
    bench.settle()
    assert bench.match(keys, shards=(0, 1)).length == 2
    assert bench.match(keys, shards=(0,)).length == 3


def test_a_record_found_twice_is_dropped_once(benches):
    """A block saved before recovery met its old record keeps the new one; the old one's room comes back."""
    bench = benches(**TWO)
    keys = chain(1)
    bench.save(keys, ack=Tier.SSD)
    bench.settle()
    record_bytes = bench.planner.state.levels[Tier.SSD].used_bytes
    location = bench.copy(keys[0], Tier.SSD).location
    bench.post(BlocksFound(Tier.SSD, NAMESPACE, 0, record_bytes, [FoundBlock(keys[0], ROOT, location + 1)], 0))
    [drop] = bench.moves(MoveKind.DROP)
    assert drop.location == location + 1
    bench.settle()
    assert bench.planner.state.levels[Tier.SSD].used_bytes == record_bytes
    assert bench.match(keys).length == 1


@pytest.mark.parametrize("sizes", [(8192, 16384, 16384), (32768, 16384, 16384), (16384, 32768, 8192)])
def test_objects_of_wrong_sizes_do_not_hide_the_right_ones(benches, sizes):
    """Listed before the geometry is known, every object counts as the smallest; then all count as they should."""
    bench = benches(**THREE)
    other = NamespaceDigest(bytes(32))
    keys = chain(3)
    for key, parent, size in zip(keys, [ROOT, *keys], sizes, strict=False):
        bench.post(BlocksFound(Tier.S3, other, 0, size, [FoundBlock(key, parent, 0)], 0))
    assert bench.planner.state.levels[Tier.S3].used_bytes == 3 * min(sizes)
    bench.post(SessionOpened(2, NamespaceSpec(other, CHUNKS), 0, 0))
    assert bench.planner.state.levels[Tier.S3].used_bytes == 3 * (4096 + sum(CHUNKS))
    bench.post(MatchAsked(2, 7, keys, (), 0, 0))
    assert bench.told[-1].length == 3


def test_a_namespace_without_blocks_is_forgotten_with_its_last_session(benches):
    """Sessions of ever new epochs leave nothing; a namespace that has blocks, or another session, stays."""
    bench = benches()
    for number in range(2, 12):
        spec = NamespaceSpec(NamespaceDigest(bytes([number]) * 32), CHUNKS)
        bench.post(SessionOpened(number, spec, 0, 0))
    assert len(bench.planner.state.indexes) == 11
    bench.save(chain(1), session=3)
    bench.settle()
    bench.post(SessionOpened(12, NamespaceSpec(NamespaceDigest(bytes([4]) * 32), CHUNKS), 0, 0))
    for number in range(2, 12):
        bench.post(SessionClosed(number, 0))
    assert {namespace[0] for namespace, _ in bench.planner.state.indexes} == {NAMESPACE[0], 3, 4}


def test_a_key_that_hangs_on_another_chain_ends_the_match(benches):
    """Two cached chains spliced together match only as far as each block hangs on the key before it."""
    bench = benches()
    ours, theirs = chain(2, "ours"), chain(2, "theirs")
    bench.save(ours)
    bench.save(theirs)
    bench.settle()
    spliced = [ours[0], theirs[1]]
    assert bench.match(spliced).length == 1
    assert bench.match(spliced, hold_ns=10**9).length == 1
