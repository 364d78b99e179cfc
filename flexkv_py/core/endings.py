"""What happens when transfers end: ledger rows close, copies change state, waiters hear of it."""

from __future__ import annotations

from flexkv_py.core.blocks import Copy, CopyState, DramCopy
from flexkv_py.core.demands import demand_heard
from flexkv_py.core.links import settle
from flexkv_py.core.loading import copy_chunks, load_heard, on_load_copied
from flexkv_py.core.messages import (
    ChunkLanded,
    Fault,
    Outcome,
    Priority,
    Tier,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.moves import drop_record, evict, fail_fill, lose_record, start_reading, unpin
from flexkv_py.core.placement import is_below, source_below
from flexkv_py.core.recovery import lost_early
from flexkv_py.core.room import back_to_order, make_room_after_fault
from flexkv_py.core.saving import acknowledge_saved, on_saved, present_heard
from flexkv_py.core.state import State
from flexkv_py.core.tickets import settle_key
from flexkv_py.core.transfers import Transfer, TransferKind, WaitFor
from flexkv_py.rows.attached import grant, revoke_copy

LOST_FAULTS = (Fault.CORRUPT, Fault.MISSING)
"""Faults that mean the record is worthless: it is dropped, so nobody asks for it again."""

IN_DOUBT_FAULTS = (Fault.IO, Fault.LATE, Fault.INTERNAL)
"""Faults of a write after which the object may be in the bucket all the same; it has a name, so it can be dropped."""

DROP_PAUSE_NS = 1_000_000_000


def on_chunk_landed(state: State, event: ChunkLanded) -> None:
    """Copy the chunk on into every load that waits for this block."""
    transfer = state.transfers[event.transfer]
    assert transfer.kind is TransferKind.PROMOTE
    assert transfer.other is not None
    copy, bit = transfer.copy, 1 << event.chunk
    assert isinstance(copy, DramCopy)
    assert bit <= copy.block.index.full_mask
    assert copy.filling & bit
    copy.present |= bit
    copy.filling ^= bit
    for waiter in state.waiters.get(copy, ()):
        if waiter.wait is WaitFor.LOAD:
            assert waiter.transfer is not None
            waiter.transfer.source = transfer.other.tier
            copy_chunks(state, waiter.transfer, bit)


def on_transfers_finished(state: State, event: TransfersFinished) -> None:
    """Close each ledger row. Saves become visible head first, but stand in the order tail first."""
    saved: list[tuple[Transfer, Copy, bool]] = []
    loads: list[tuple[Transfer, TransferResult]] = []
    for result in event.results:
        transfer = state.transfers[result.transfer]
        kind = transfer.kind
        if kind is TransferKind.SAVE:
            copy, ready = on_saved(state, transfer, result)
            saved.append((transfer, copy, ready))
        elif kind is TransferKind.LOAD:
            loads.append((transfer, result))
        elif kind is TransferKind.PROMOTE:
            _promoted(state, transfer, result)
        elif kind is TransferKind.DEMOTE:
            _demoted(state, transfer, result)
        else:
            _dropped(state, transfer, result)
    for transfer, result in reversed(loads):
        on_load_copied(state, transfer, result)
    for _, copy, ready in reversed(saved):
        if ready and copy.readers == 0:
            state.dram.put(copy)
    for transfer, copy, ready in saved:
        acknowledge_saved(state, transfer, ok=ready)
        _tell_waiters(state, copy, ok=ready, why="the save that was filling it failed")


def _promoted(state: State, transfer: Transfer, result: TransferResult) -> None:
    del state.transfers[transfer.id]
    state.promotions.end(transfer.block.index.record_bytes)
    copy, source, block = transfer.copy, transfer.other, transfer.block
    assert source is not None
    assert isinstance(copy, DramCopy)
    assert copy.state is CopyState.FILLING
    level = state.levels[source.tier]
    if transfer.ahead_bytes:
        level.loading_bytes -= block.index.record_bytes
    if result.fault is None:
        if transfer.ahead_bytes:
            level.forecast.note(transfer.ahead_bytes, state.now_ns - transfer.started_ns, state.now_ns)
        assert not copy.filling, "a promotion ended before all its chunks had landed"
        unpin(state, source)
        state.count("promotions", source.tier.name.lower())
        if copy.lacks and not is_below(block, Tier.DRAM):
            fail_fill(state, copy)
            _tell_waiters(state, copy, ok=False, why="the record it was read from was lost meanwhile")
            return
        copy.state = CopyState.READY
        settle(state, block)
        wanted = copy.readers > 0 or copy in state.waiters
        grant(state, copy)
        if copy.readers == 0:
            state.dram.put(copy, cold=not wanted or not block.linked)
        _tell_waiters(state, copy, ok=True)
        if block.index.closed and block.dram is copy and copy.readers == 0:  # else the last waiting load has let it go
            evict(state, copy, "the namespace was reset")
        return
    _source_failed(state, source, result)
    until_ns = _wanted_until_ns(state, copy)
    not_begun = result.fault is Fault.LATE and 0 < transfer.deadline_ns <= state.now_ns and until_ns is not None
    again = source_below(state, block, Tier.DRAM if not_begun else source.tier)
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
    if begun or index.closed or not is_below(copy.block, Tier.DRAM):
        fail_fill(state, copy)
        return
    state.frames.give(index.frame_pages, copy.packed(copy.filling))
    copy.filling, copy.state = 0, CopyState.READY
    grant(state, copy)
    if copy.readers == 0:
        state.dram.put(copy)


def _wanted_until_ns(state: State, copy: Copy) -> int | None:
    """The latest deadline of those who still wait for this fill, 0 for one without; None when nobody waits."""
    tickets = [waiter.ticket for waiter in state.waiters.get(copy, ())]
    deadlines = [0 if ticket is None else ticket.deadline_ns for ticket in tickets if ticket is None or not ticket.over]
    return None if not deadlines else 0 if 0 in deadlines else max(deadlines)


def _source_failed(state: State, source: Copy, result: TransferResult) -> None:
    """A record that is not there or not right is dropped; other faults leave it for another try."""
    fault, block = result.fault, source.block
    assert fault is not None
    state.count("faults", f"{source.tier.name.lower()}_{fault.value}")
    state.tell(block.key, "fault", source.tier, f"{fault.value}: {result.detail}")
    if fault in LOST_FAULTS and source.state is CopyState.READY:
        lose_record(state, source)
    unpin(state, source, cold=True)


def _demoted(state: State, transfer: Transfer, result: TransferResult) -> None:
    del state.transfers[transfer.id]
    source, target, block = transfer.copy, transfer.other, transfer.block
    assert target is not None
    level = state.levels[target.tier]
    level.writes.end(block.index.record_bytes)
    level.wrote(result, state.now_ns)
    if result.fault is None:
        state.count("demotions", target.tier.name.lower())
    if result.fault is None and target.place == lost_early(result.location):
        result = TransferResult(transfer.id, Fault.MISSING, detail="the tier let go of it again at once")
    if result.fault is None:
        assert target.state is CopyState.FILLING
        target.place = result.location
        target.state = CopyState.READY
        level.put(target)
        state.demotion_faults.pop(block, None)
        state.pushed_out.pop(block, None)
        if block.index.closed:
            evict(state, target, "the namespace was reset")
    else:
        if target.tier is Tier.S3 and result.fault in IN_DOUBT_FAULTS:
            target.state = CopyState.DROPPED
            target.place = result.location  # not what a tier may have told of a record in the same place meanwhile
            drop_record(state, target)
        else:
            block.set_copy(target.tier, None)
            level.used_bytes -= block.index.record_bytes
        if result.fault is Fault.FULL:
            make_room_after_fault(state, level, block.index)
        if result.fault is Fault.TOO_LONG:
            level.too_long_because = result.detail or result.fault.value
            level.too_long_bytes = min(level.too_long_bytes or block.index.record_bytes, block.index.record_bytes)
        else:
            state.demotion_faults[block] = state.demotion_faults.get(block, 0) + 1
        state.count("faults", f"{target.tier.name.lower()}_{result.fault.value}")
        state.tell(block.key, "fault", target.tier, f"demotion: {result.fault.value}: {result.detail}")
        state.wake_at(level.pause_until_ns, "pause", int(target.tier))
    if result.fault is Fault.CORRUPT and block.dram is not None and block.dram is source:
        revoke_copy(state, block.dram)  # a worker of a shared arena wrote there: whoever reads it reads garbage
        fail_fill(state, block.dram)
    back_to_order(state, source, still_cold=block.uses == transfer.uses)
    why = "" if result.fault is None else result.detail or result.fault.value
    _tell_waiters(state, target, ok=result.fault is None, why=why)


def _dropped(state: State, transfer: Transfer, result: TransferResult) -> None:
    """The tier has let go of a record, or could not: then it is asked again, or the record would be back some day."""
    del state.transfers[transfer.id]
    copy, block = transfer.copy, transfer.block
    assert copy.state is CopyState.DROPPED
    level, record_bytes = state.levels[copy.tier], block.index.record_bytes
    level.dropping_bytes -= record_bytes
    level.drop_failed = result.fault is not None
    if result.fault is not None:
        state.count("faults", f"{copy.tier.name.lower()}_{result.fault.value}")
        state.tell(block.key, "fault", copy.tier, f"drop: {result.fault.value}: {result.detail}")
        level.undropped.append((state.now_ns + DROP_PAUSE_NS, copy))
        state.wake_at(state.now_ns + DROP_PAUSE_NS, "pause", int(copy.tier))
        return
    level.used_bytes -= record_bytes
    if level.recovering:
        level.let_go.add(block.name)
    if copy in state.dropped:
        del state.dropped[copy]
    else:
        block.set_copy(copy.tier, None)
    if block.index.blocks.get(block.key) is block:
        settle(state, block)


def _tell_waiters(state: State, copy: Copy, *, ok: bool, why: str = "") -> None:
    for waiter in state.waiters.pop(copy, ()):
        if waiter.wait is WaitFor.LOAD:
            assert waiter.transfer is not None
            load_heard(state, waiter.transfer, ok=ok, why=why)
        elif waiter.wait is WaitFor.PREFETCH:
            assert waiter.ticket is not None
            settle_key(state, waiter.ticket, waiter.position, Outcome.LOADED if ok else Outcome.FAILED)
        elif waiter.wait is WaitFor.PRESENT:
            present_heard(state, waiter, copy.block, ok=ok)
        else:
            assert waiter.demand is not None
            demand_heard(state, waiter.demand, copy, ok=ok, why=why)
