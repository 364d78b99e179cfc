"""What happens when transfers end: ledger rows close, copies change state, waiters hear of it."""

from __future__ import annotations

from flexkv_py.core import messages
from flexkv_py.core.blocks import DROPPED, FILLING, READY, Copy, DramCopy
from flexkv_py.core.demands import demand_heard
from flexkv_py.core.links import settle
from flexkv_py.core.loading import copy_chunks, load_heard, on_load_copied
from flexkv_py.core.messages import DRAM, LOAD, S3, SAVE, Fault, MoveKind, Outcome, Priority, TransferResult
from flexkv_py.core.moves import detach, drop_record, fail_fill, give_frames, lose_record, start_reading, unpin
from flexkv_py.core.placement import is_below, source_below
from flexkv_py.core.recovery import lost_early
from flexkv_py.core.room import make_room_after_fault
from flexkv_py.core.saving import acknowledge_saved, on_saved, present_heard
from flexkv_py.core.state import State
from flexkv_py.core.tickets import settle_key
from flexkv_py.core.transfers import Demand, Transfer
from flexkv_py.rows.attached import grant, revoke_copy

LOST_FAULTS = (Fault.CORRUPT, Fault.MISSING)
"""Faults that mean the record is worthless: it is dropped, so nobody asks for it again."""

IN_DOUBT_FAULTS = (Fault.IO, Fault.LATE, Fault.INTERNAL)
"""Faults of a write after which the object may be in the bucket all the same; it has a name, so it can be dropped."""

DROP_PAUSE_NS = 1_000_000_000


def on_chunk_landed(state: State, event: messages.ChunkLanded) -> None:
    """Copy the chunk on into every load that waits for this block."""
    transfer = state.transfers[event.transfer]
    assert transfer.kind is MoveKind.PROMOTE
    assert transfer.other is not None
    copy, bit = transfer.copy, 1 << event.chunk
    assert isinstance(copy, DramCopy)
    assert bit <= copy.block.index.full_mask
    assert copy.filling & bit
    copy.present |= bit
    copy.filling ^= bit
    for waiter in state.waiters.get(copy, ()):
        if isinstance(waiter, Transfer):
            waiter.source = transfer.other.tier
            copy_chunks(state, waiter, bit)


def on_transfers_finished(state: State, event: messages.TransfersFinished) -> None:
    """Close each ledger row. Saves become visible head first, but stand in the order tail first."""
    saved: list[Transfer] = []
    loads: list[tuple[Transfer, TransferResult]] = []
    for result in event.results:
        transfer = state.transfers[result.transfer]
        kind = transfer.kind
        if kind is not LOAD:  # of which another copy may run
            del state.transfers[transfer.id]
        if kind is SAVE:
            on_saved(state, transfer, result)
            saved.append(transfer)
        elif kind is LOAD:
            loads.append((transfer, result))
        elif kind is MoveKind.PROMOTE:
            _promoted(state, transfer, result)
        elif kind is MoveKind.DEMOTE:
            _demoted(state, transfer, result)
        else:
            _dropped(state, transfer, result)
    for transfer, result in reversed(loads):
        on_load_copied(state, transfer, result)
    for transfer in reversed(saved):
        if transfer.copy.state is READY and transfer.copy.readers == 0:
            transfer.copy.block.index.shelves[transfer.copy.tier].add(transfer.copy)
    for transfer in saved:
        acknowledge_saved(state, transfer)
        if transfer.copy in state.waiters:
            ok = transfer.copy.state is READY
            _tell_waiters(state, transfer.copy, ok=ok, why="the save that was filling it failed")


def _promoted(state: State, transfer: Transfer, result: TransferResult) -> None:
    state.promotions.end(transfer.copy.block.index.record_bytes)
    copy, source, block = transfer.copy, transfer.other, transfer.copy.block
    assert source is not None
    assert isinstance(copy, DramCopy)
    assert copy.state is FILLING
    level = state.levels[source.tier]
    if transfer.ahead_bytes:
        level.loading_bytes -= block.index.record_bytes
    if result.fault is None:
        if transfer.ahead_bytes:
            level.forecast.note(transfer.ahead_bytes, state.now_ns - transfer.started_ns, state.now_ns)
        assert not copy.filling, "a promotion ended before all its chunks had landed"
        unpin(state, source)
        state.count("promotions", source.tier.name.lower())
        if copy.lacks and not is_below(block, DRAM):
            fail_fill(state, copy)
            _tell_waiters(state, copy, ok=False, why="the record it was read from was lost meanwhile")
            return
        copy.state = READY
        settle(state, block)
        wanted = copy.readers > 0 or copy in state.waiters
        grant(state, copy)
        copy.readers += 1  # until all have heard of it
        _tell_waiters(state, copy, ok=True)
        unpin(state, copy, cold=not wanted)
        return
    _source_failed(state, source, result)
    until_ns = _wanted_until_ns(state, copy)
    not_begun = result.fault is Fault.LATE and 0 < transfer.deadline_ns <= state.now_ns and until_ns is not None
    again = source_below(state, block, DRAM if not_begun else source.tier)
    if again is not None and copy.filling == transfer.todo and not block.index.closed:
        state.tell(block.key, "promote", again.tier, "somebody waits longer" if not_begun else "second source")
        start_reading(state, copy, again, Priority.LOAD, until_ns or 0)
        return
    _fill_failed(state, transfer, copy)
    _tell_waiters(state, copy, ok=False, why=result.detail or f"promotion failed: {result.fault.value}")


def _fill_failed(state: State, transfer: Transfer, copy: DramCopy) -> None:
    """A copy that was there in part before is so again, while the block is whole below; another comes to nothing."""
    index = copy.block.index
    begun = not copy.present or transfer.todo == index.full_mask
    if begun or index.closed or not is_below(copy.block, DRAM):
        fail_fill(state, copy)
        return
    give_frames(state, copy, copy.filling)
    copy.filling, copy.state = 0, READY
    copy.readers += 1
    grant(state, copy)
    unpin(state, copy, cold=True)


def _wanted_until_ns(state: State, copy: Copy) -> int | None:
    """The latest deadline of those who still wait for this fill, 0 for one without; None when nobody waits."""
    tickets = [None if isinstance(waiter, Demand) else waiter.ticket for waiter in state.waiters.get(copy, ())]
    deadlines = [0 if ticket is None else ticket.deadline_ns for ticket in tickets if ticket is None or not ticket.over]
    return None if not deadlines else 0 if 0 in deadlines else max(deadlines)


def _source_failed(state: State, source: Copy, result: TransferResult) -> None:
    """A record that is not there or not right is dropped; other faults leave it for another try."""
    _note_fault(state, source, "", result)
    if result.fault in LOST_FAULTS and source.state is READY:
        lose_record(state, source)
    unpin(state, source, cold=True)


def _note_fault(state: State, copy: Copy, what: str, result: TransferResult) -> None:
    assert result.fault is not None
    state.count("faults", f"{copy.tier.name.lower()}_{result.fault.value}")
    state.tell(copy.block.key, "fault", copy.tier, f"{what}{result.fault.value}: {result.detail}")


def _demoted(state: State, transfer: Transfer, result: TransferResult) -> None:
    source, target, block = transfer.copy, transfer.other, transfer.copy.block
    assert target is not None
    level = state.levels[target.tier]
    level.writes.end(block.index.record_bytes)
    level.wrote(result, state.now_ns)
    if result.fault is None:
        state.count("demotions", target.tier.name.lower())
    if result.fault is None and target.place == lost_early(result.location):
        result = TransferResult(transfer.id, Fault.MISSING, detail="the tier let go of it again at once")
    if result.fault is None:
        assert target.state is FILLING
        target.place = result.location
        target.state, target.readers = READY, 1
        state.demotion_faults.pop(block, None)
        state.pushed_out.pop(block, None)
        unpin(state, target)
    else:
        if target.tier is S3 and result.fault in IN_DOUBT_FAULTS:
            target.state = DROPPED
            target.place = result.location  # not what a tier may have told of a record in the same place meanwhile
            drop_record(state, target)
        else:
            detach(state, target)
        if result.fault is Fault.FULL:
            make_room_after_fault(state, level, block.index)
        if result.fault is Fault.TOO_LONG:
            level.too_long_because = result.detail or result.fault.value
            level.too_long_bytes = min(level.too_long_bytes or block.index.record_bytes, block.index.record_bytes)
        else:
            state.demotion_faults[block] = state.demotion_faults.get(block, 0) + 1
        _note_fault(state, target, "demotion: ", result)
        state.wake_at(level.pause_until_ns)
    settle(state, block)  # the copy it was written from may have been found damaged meanwhile: then this one is all
    if result.fault is Fault.CORRUPT and block.dram is not None and block.dram is source:
        revoke_copy(state, block.dram)  # a worker of a shared arena wrote there: whoever reads it reads garbage
        fail_fill(state, block.dram)
    unpin(state, source, cold=block.uses == transfer.uses)
    why = "" if result.fault is None else result.detail or result.fault.value
    _tell_waiters(state, target, ok=result.fault is None, why=why)


def _dropped(state: State, transfer: Transfer, result: TransferResult) -> None:
    """The tier has let go of a record, or could not: then it is asked again, or the record would be back some day."""
    copy, block = transfer.copy, transfer.copy.block
    assert copy.state is DROPPED
    level = state.levels[copy.tier]
    level.dropping(block.index, -block.index.record_bytes)
    level.drop_failed = result.fault is not None
    if result.fault is not None:
        _note_fault(state, copy, "drop: ", result)
        level.undropped.append((state.now_ns + DROP_PAUSE_NS, copy))
        state.wake_at(state.now_ns + DROP_PAUSE_NS)
        return
    if level.recovering:
        level.let_go.add(block.name)
    if copy in state.dropped:
        del state.dropped[copy]
        level.charge(block.index, -block.index.record_bytes)
    else:
        detach(state, copy)
    if block.index.blocks.get(block.key) is block:
        settle(state, block)


def _tell_waiters(state: State, copy: Copy, *, ok: bool, why: str = "") -> None:
    for waiter in state.waiters.pop(copy, ()):
        if isinstance(waiter, Transfer):
            load_heard(state, waiter, ok=ok, why=why)
        elif isinstance(waiter, Demand):
            demand_heard(state, waiter, copy, ok=ok, why=why)
        elif waiter.ticket.kind is SAVE:
            present_heard(state, waiter, copy.block, ok=ok)
        else:
            settle_key(state, waiter.ticket, waiter.position, Outcome.LOADED if ok else Outcome.FAILED)
