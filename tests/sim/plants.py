"""Bugs to plant, each one change to one function: a simulator that never failed proves nothing.

Each resembles what a real cache got wrong once. `scripts/simulate --plant NAME` plants one;
`test_plants` plants each and expects it to be caught within 60 seeds.
"""

from __future__ import annotations

from array import array
from typing import Any

from flexkv_py.core import demands, endings, links, loading, moves, placement, planner, recovery, room, saving
from flexkv_py.core.blocks import Block, Copy, CopyList, CopyState, DramCopy
from flexkv_py.core.forecast import Forecast
from flexkv_py.core.frames import FramePool
from flexkv_py.core.messages import Outcome, TicketKind, Tier
from flexkv_py.core.state import Level, State
from flexkv_py.core.tickets import settle_key
from flexkv_py.core.transfers import Demand, InFlight
from flexkv_py.rows import attached, leaving, replays
from flexkv_py.rows.grants import Request
from flexkv_py.tenants import tending
from flexkv_py.tenants.shelf import Shelf
from flexkv_tiers.codec import HEADER_BYTES, parse_header
from flexkv_tiers.fake import FakeRecords
from tests.sim import stores
from tests.sim.executor import Executor
from tests.sim.plant import Plant, planter
from tests.sim.wish_plants import WISH_PLANTS

PLANTS: dict[str, Plant] = {**WISH_PLANTS}
_plant = planter(PLANTS)


# ------------------------------------------------- the five of the style guide


@_plant("a demotion does not pin the frames it reads", (moves, "start_demotion"), (room, "start_demotion"),
        (demands, "start_demotion"))  # fmt: skip
def _source_not_pinned(right: Any) -> Any:
    def start_demotion(state: State, block: Block, *rest: Any) -> Copy:
        target: Copy = right(state, block, *rest)
        source = block.dram
        assert source is not None
        moves.unpin(state, source)
        return target

    return start_demotion


@_plant("whoever waits for a fill that fails is never told", (endings, "_tell_waiters"))
def _waiter_forgotten(right: Any) -> Any:
    def tell_waiters(state: State, copy: Copy, *, ok: bool, why: str = "") -> None:
        if ok:
            right(state, copy, ok=ok, why=why)
        else:
            state.waiters.pop(copy, None)

    return tell_waiters


@_plant("a block counts as a hit while its frames are still being filled", (loading, "_join_load"))
def _hit_while_filling(right: Any) -> Any:
    def join_load(state: State, ticket: Any, position: int, dram: Copy, copies: list[Any]) -> None:
        was, dram.state = dram.state, CopyState.READY
        right(state, ticket, position, dram, copies)
        dram.state = was

    return join_load


@_plant("ending one load lets go of another's reader", (loading, "_end_load"))
def _release_of_another(right: Any) -> Any:
    def end_load(state: State, transfer: Any) -> None:
        if transfer.copy.readers > 1:
            moves.unpin(state, transfer.copy)
        right(state, transfer)

    return end_load


@_plant("a failed copy out of the worker counts as a stored block", (saving, "on_saved"), (endings, "on_saved"))
def _failure_as_success(right: Any) -> Any:
    def on_saved(state: State, transfer: Any, result: Any) -> Any:
        result.fault = None
        return right(state, transfer, result)

    return on_saved


# ------------------------------------------------------- what others got wrong


@_plant("a save that was cancelled becomes visible all the same", (saving, "on_saved"), (endings, "on_saved"))
def _cancelled_save_visible(right: Any) -> Any:
    def on_saved(state: State, transfer: Any, result: Any) -> Any:
        over, transfer.ticket.over = transfer.ticket.over, False
        answer = right(state, transfer, result)
        transfer.ticket.over = over
        return answer

    return on_saved


@_plant("a deadline frees the frames that copies still fill", (planner, "expire_ticket"))
def _timeout_frees_frames(right: Any) -> Any:
    def expire_ticket(state: State, ticket: Any) -> None:
        right(state, ticket)
        for transfer in state.transfers.values():
            if transfer.ticket is ticket and transfer.kind is TicketKind.SAVE:
                moves.free_frames(state, transfer.copy)

    return expire_ticket


@_plant("a save is acknowledged on SSD when its write begins", (demands, "_stage"))
def _stored_before_written(right: Any) -> Any:
    def stage(state: State, tier: Tier, want: Demand) -> bool:
        started: bool = right(state, tier, want)
        if want.block.copy_in(tier) is not None and want.ticket is not None and want.ticket.kind is TicketKind.SAVE:
            settle_key(state, want.ticket, want.position, Outcome.STORED)
        return started

    return stage


@_plant("an orphan stays matchable", (links, "relink"))
def _orphan_matched(right: Any) -> Any:
    def relink(state: State, block: Block) -> None:
        if block.ready:
            right(state, block)

    return relink


@_plant("a delete on its way takes the object written anew", (placement, "being_reset"), (demands, "being_reset"))
def _late_delete(_: Any) -> Any:
    def being_reset(_state: State, _block: Block) -> bool:
        return False

    return being_reset


@_plant("a leased block is evicted like any other", (placement, "judge"), (tending, "judge"), (moves, "judge"))
def _evicted_while_leased(right: Any) -> Any:
    def judge(state: State, copy: Copy) -> placement.Verdict:
        held, copy.block.holds = copy.block.holds, 0
        verdict: placement.Verdict = right(state, copy)
        copy.block.holds = held
        return verdict

    return judge


@_plant("a failed demotion counts as in flight for ever", (Level, "wrote"))
def _demotion_leaks(right: Any) -> Any:
    def wrote(self: Level, result: Any, now_ns: int) -> None:
        right(self, result, now_ns)
        self.writes.count += result.fault is not None

    return wrote


@_plant("a frame is given out and stays in the free list", (FramePool, "take"))
def _frame_given_twice(right: Any) -> Any:
    def take(self: FramePool, frame_pages: int, count: int) -> bytes | None:
        frames: bytes | None = right(self, frame_pages, count)
        if frames is not None and (first := array("I", frames)[0]) % 3 == 0:
            self._free[frame_pages].insert(0, first)
        return frames

    return take


@_plant("a reset forgets one shard only", (recovery, "on_reset"))
def _reset_of_one_shard(right: Any) -> Any:
    def on_reset(state: State, event: Any) -> None:
        kept = {at: state.indexes.pop(at) for at in list(state.indexes) if at[1] != 0}
        right(state, event)
        state.indexes.update(kept)

    return on_reset


@_plant("what recovery meets after a reset is taken in again", (recovery, "_index_of_found"))
def _reset_before_the_listing(_: Any) -> Any:
    def index_of_found(state: State, event: Any) -> Any:
        return state.index(event.namespace, event.shard)

    return index_of_found


@_plant("a reset is answered before its records are gone", (recovery, "_all_gone"))
def _reset_answered_early(_: Any) -> Any:
    def all_gone(_state: State, _reset: Any) -> bool:
        return True

    return all_gone


@_plant("a promotion does not look at checksums", (FakeRecords, "read"))
def _checksums_ignored(right: Any) -> Any:
    def read(self: FakeRecords, block: Any, location: int, chunk: int, *rest: Any) -> tuple[bytes, bytes]:
        entry = self.header(block, location).chunks[chunk]
        data = bytes(self.raw[location][entry.offset : entry.offset + entry.raw_bytes])
        return data.ljust(entry.raw_bytes, b"\0"), entry.checksum

    return read


@_plant("a promotion does not look whose record it reads", (FakeRecords, "read"))
def _name_ignored(right: Any) -> Any:
    def read(self: FakeRecords, block: Any, location: int, chunk: int, *rest: Any) -> tuple[bytes, bytes]:
        if location in self.raw:
            block = parse_header(self.raw[location][:HEADER_BYTES]).block
        data: tuple[bytes, bytes] = right(self, block, location, chunk, *rest)
        return data

    return read


@_plant("the newest end of a list keeps pointing at what was removed", (CopyList, "remove"))
def _list_corrupted(right: Any) -> Any:
    def remove(self: CopyList, copy: Copy) -> None:
        newest = self.newest
        right(self, copy)
        if newest is copy and self.count:
            self.newest = copy

    return remove


@_plant("after a restart usage is counted from zero", (recovery, "_adopt"))
def _usage_from_zero(right: Any) -> Any:
    def adopt(state: State, copy: Copy, shelf: Shelf) -> None:
        right(state, copy, shelf)
        shelf.used_bytes -= copy.block.index.record_bytes

    return adopt


@_plant("the leases of a dead session live on", (planner.Planner, "_on_session_closed"))
def _leases_of_the_dead(right: Any) -> Any:
    def on_session_closed(self: planner.Planner, event: Any) -> None:
        session = self.state.sessions.get(event.session)
        if session is not None:
            session.leases.clear()
        right(self, event)

    return on_session_closed


@_plant("a chunk counts as landed in a later one's place", (endings, "on_chunk_landed"), (planner, "on_chunk_landed"))
def _chunks_out_of_step(right: Any) -> Any:
    def on_chunk_landed(state: State, event: Any) -> None:
        full = state.transfers[event.transfer].copy.block.index.chunk_count
        event.chunk = full - 1 - event.chunk
        right(state, event)

    return on_chunk_landed


@_plant("a demand that waits for room is forgotten", (demands, "demand_heard"), (endings, "demand_heard"))
def _demand_forgotten(right: Any) -> Any:
    def demand_heard(state: State, want: Demand, copy: Copy, *, ok: bool, why: str = "") -> None:
        if copy.tier is want.tier or not ok:
            right(state, want, copy, ok=ok, why=why)
        else:
            want.block.holds -= 1

    return demand_heard


@_plant("what a request's first slice leaves is forgotten", (planner, "look_at_arrivals"))
def _later_slices_forgotten(right: Any) -> Any:
    def look_at_arrivals(state: State) -> None:
        right(state)
        for session in state.arrivals:
            session.arrived.clear()
        state.arrivals.clear()

    return look_at_arrivals


# ------------------------------------------------------------ below DRAM


@_plant("a read that ends early counts as a whole one", (FakeRecords, "read"))
def _short_read_accepted(right: Any) -> Any:
    def read(self: FakeRecords, block: Any, location: int, chunk: int, *rest: Any) -> tuple[bytes, bytes]:
        entry = self.header(block, location).chunks[chunk]
        data = bytes(self.raw[location][entry.offset : entry.offset + entry.room_bytes])
        if len(data) < entry.room_bytes:
            return data.ljust(entry.room_bytes, b"\0"), entry.checksum
        answer: tuple[bytes, bytes] = right(self, block, location, chunk, *rest)
        return answer

    return read


@_plant("restart believes a footer whose checksum does not hold", (stores, "footer_holds"))
def _footer_trusted_without_checksum(_: Any) -> Any:
    def footer_holds(_footer: bytes) -> bool:
        return True

    return footer_holds


@_plant("a store reclaims a record that is being read", (stores.Store, "pinned"))
def _reclaim_of_a_pinned_record(_: Any) -> Any:
    def pinned(_self: stores.Store, _block: Any) -> bool:
        return False

    return pinned


@_plant("a tier that came back stays out of service", (recovery, "on_tier_changed"))
def _breaker_stuck(right: Any) -> Any:
    def on_tier_changed(state: State, event: Any) -> None:
        if not event.up:
            right(state, event)

    return on_tier_changed


@_plant("a write is acknowledged before it is synced", (Executor, "_make_durable"))
def _durability_acknowledged_before_it_holds(_: Any) -> Any:
    def make_durable(self: Executor, move: Any, location: int, _disk: Any) -> None:
        self._acknowledge(move, location, None)

    return make_durable


@_plant("a tier that was slow once is given up for ever", (Forecast, "arrival_ns"))
def _forecast_never_forgets(right: Any) -> Any:
    def arrival_ns(self: Forecast, ahead_bytes: int, now_ns: int) -> int:
        newest_ns = max((reads.newest_ns for reads in self._classes.values()), default=now_ns)
        arrival: int = right(self, ahead_bytes, newest_ns)
        return arrival - newest_ns + now_ns

    return arrival_ns


@_plant("bytes on their way are forgotten only in part", (InFlight, "end"))
def _bytes_in_flight_leak(right: Any) -> Any:
    def end(self: InFlight, record_bytes: int) -> None:
        right(self, record_bytes - 4096)

    return end


@_plant("a record lost before its write was told counts as stored", (endings, "lost_early"))
def _lost_early_ignored(_: Any) -> Any:
    def lost_early(_location: int) -> int:
        return -1 << 60

    return lost_early


# ------------------------------------------------------------ decisions that undo each other


@_plant("a record that makes room leaves the copy above to be written again", (room, "had_their_turn"))
def _written_again(_: Any) -> Any:
    def had_their_turn(_state: State, _record: Copy) -> None:
        return

    return had_their_turn


@_plant("SSD blocks are set aside for an S3 that takes none", (tending, "judge"))
def _staged_in_vain(right: Any) -> Any:
    def judge(state: State, copy: Copy) -> placement.Verdict:
        verdict: placement.Verdict = right(state, copy)
        in_vain = copy.tier is Tier.SSD and verdict is placement.Verdict.NO_TIER and Tier.S3 in state.levels
        return placement.Verdict.WRITE if in_vain else verdict

    return judge


# ------------------------------------------------------------ the row path


@_plant("a frame is used again before its revocation is acknowledged", (Request, "held"))
def _reused_before_the_acknowledgement(_: Any) -> Any:
    def held(self: Any, position: int) -> int:
        granted: int = self.granted[position]
        return granted

    return held


@_plant("acknowledging an old version frees what a newer one revoked", (Request, "acknowledge"))
def _old_version_frees_newer(right: Any) -> Any:
    def acknowledge(self: Any, rank: Any, _version: int) -> Any:
        return right(self, rank, rank.told)

    return acknowledge


@_plant("the acknowledgement of one rank counts for all", (Request, "behind"))
def _one_rank_frees_for_all(_: Any) -> Any:
    def behind(self: Any) -> bool:
        told = self._told
        return bool(told) and told[0][0] <= max(rank.acknowledged for rank in self.ranks.values())

    return property(behind)


@_plant("what the first slice leaves of a request that ended is forgotten", (attached, "let_go"))
def _later_ends_forgotten(right: Any) -> Any:
    def let_go(state: State) -> None:
        right(state)
        state.rows.letting_go.clear()

    return let_go


@_plant("the frames of a killed worker are freed before its process has ended", (attached, "close_ranks"))
def _freed_before_the_process_ended(_: Any) -> Any:
    def close_ranks(state: State, session: Any) -> None:
        for request in list(state.rows.of_session.get(session.id, {}).values()):
            state.rows.leave(request, request.ranks[session.id])

    return close_ranks


@_plant("a copy that is there in part counts as whole", (DramCopy, "lacks"))
def _part_counts_as_whole(_: Any) -> Any:
    return property(lambda _copy: 0)


@_plant("a chunk leaves DRAM though the block is not whole below", (leaving, "is_below"))
def _gone_for_good(_: Any) -> Any:
    def is_below(_block: Block, _tier: Tier) -> bool:
        return True

    return is_below


@_plant("a worker that never acknowledges keeps its session", (attached, "lose_late_ranks"))
def _late_for_ever(_: Any) -> Any:
    def lose_late_ranks(_state: State, _request: Any) -> None:
        return

    return lose_late_ranks


@_plant("what a failed step needs is asked for, and then forgotten", (replays, "serve_wants"))
def _replay_forgotten(_: Any) -> Any:
    def serve_wants(state: State) -> None:
        for request in state.rows.by_id.values():
            for rank in request.ranks.values():
                rank.wanted.clear()

    return serve_wants
