"""Recounts the planner's whole state from scratch and compares. Every test of the core and the simulator call it."""

from __future__ import annotations

from collections import Counter

from flexkv_py.core.blocks import Block, Copy, CopyState, DramCopy, Index, children_of
from flexkv_py.core.frames import FramePool
from flexkv_py.core.messages import MoveKind, TicketKind, Tier
from flexkv_py.core.placement import is_below
from flexkv_py.core.planner import Planner
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Demand
from flexkv_py.keys import ROOT
from flexkv_py.rows.grants import chunks_in
from tests import row_invariants, tenant_invariants


def check(planner: Planner) -> None:
    """Assert that the whole state is consistent."""
    state = planner.state
    indexes = _all_indexes(state)
    copies = [copy for index in indexes for block in index.blocks.values() for copy in block.copies()]
    for index in indexes:
        _check_chains(state, index)
    for copy in copies:
        _check_copy(state, copy)
    for copy in state.waiters:
        assert copy.state is CopyState.FILLING, f"{copy} has waiters"
    _check_readers(state, copies)
    _check_frames(state, copies)
    _check_levels(state, copies)
    _check_holds(state, indexes)
    _check_tickets(state)
    _check_pins(state, copies)
    row_invariants.check(state, indexes)
    tenant_invariants.check(state, indexes, copies)


def _all_indexes(state: State) -> list[Index]:
    return list(state.indexes.values()) + [index for reset in state.resets for index in reset.indexes]


def _check_chains(state: State, index: Index) -> None:
    for key, block in index.blocks.items():
        assert block.key == key
        assert block.index is index
        assert block.copies(), f"{key.hex()} is in no tier, yet in the index"
        parent = index.blocks.get(block.parent)
        if parent is not None:
            assert block in children_of(parent.children)
        elif block.parent != ROOT:
            assert block in children_of(index.awaiting[block.parent])
        for child in children_of(block.children):
            assert child.parent == key
            assert index.blocks[child.key] is child
        if not state.relink and not index.closed:
            linked = block.ready and (block.parent == ROOT or (parent is not None and parent.linked))
            assert block.linked == linked, f"{key.hex()}: linked is {block.linked}"
    assert all(index.blocks.get(block.key) is block for block in index.rules)
    for parent_key, children in index.awaiting.items():
        assert parent_key not in index.blocks
        assert all(child.parent == parent_key for child in children_of(children))


def _check_copy(state: State, copy: Copy) -> None:
    in_order = copy.queue is not None
    assert in_order == (copy.state is CopyState.READY and copy.readers == 0), f"{copy}: in_order={in_order}"
    if isinstance(copy, DramCopy):
        assert copy.present & copy.filling == 0
        assert bool(copy.filling) <= (copy.state is CopyState.FILLING), f"{copy} is filled, yet not FILLING"
        assert copy.state is not CopyState.READY or copy.present, f"{copy} has nothing"
        in_part = copy.state is CopyState.READY and copy.lacks
        assert not in_part or is_below(copy.block, Tier.DRAM), f"{copy} is there in part, and nowhere else"
    assert copy.tier in state.levels


def _check_readers(state: State, copies: list[Copy]) -> None:
    readers: Counter[Copy] = Counter()
    fills: Counter[Copy] = Counter()
    drops: Counter[Copy] = Counter()
    for transfer in state.transfers.values():
        if transfer.kind is TicketKind.LOAD or transfer.kind is MoveKind.DEMOTE:
            readers[transfer.copy] += 1
        if transfer.kind is MoveKind.PROMOTE:
            assert transfer.other is not None
            readers[transfer.other] += 1
            fills[transfer.copy] += 1
        if transfer.kind is MoveKind.DEMOTE:
            assert transfer.other is not None
            fills[transfer.other] += 1
        if transfer.kind is TicketKind.SAVE:
            fills[transfer.copy] += 1
        if transfer.kind is MoveKind.DROP:
            drops[transfer.copy] += 1
    for level in state.levels.values():
        drops.update(copy for _, copy in level.undropped)
    for want in live_demands(state):
        if want.staged is not None:
            readers[want.staged] += 1
    readers.update(row_invariants.readers(state))
    readers.update(state.pinned.keys())
    for copy in [*copies, *state.dropped]:
        assert copy.readers == readers[copy], f"{copy}: {readers[copy]} readers are known"
        assert (copy.state is CopyState.FILLING) == (fills[copy] == 1), f"{copy}: {fills[copy]} fills are known"
        gone = copy.state is CopyState.DROPPED and copy.readers == 0
        assert drops[copy] == int(gone), f"{copy}: {drops[copy]} drops are known"


def _check_pins(state: State, copies: list[Copy]) -> None:
    """Only copies that are there are pinned, and none for longer than asked, unless a slice of them is still left."""
    assert state.pinned.keys() <= set(copies), "a pin of a copy that is gone"
    assert all(copy.state is not CopyState.DROPPED for copy in state.pinned)
    assert len(state.pinned) <= state.config.pins_max
    late = [copy for copy, until_ns in state.pinned.items() if until_ns <= state.now_ns]
    timer_is_due = bool(state.timers) and state.timers[0][0] <= state.now_ns  # a chunk that lands does not see to it
    assert not late or state.more or timer_is_due, f"{late} should have been let go"


def live_demands(state: State) -> list[Demand]:
    waiting = [want for queue in state.demands.values() for want in queue]
    for waiters in state.waiters.values():
        waiting.extend(waiter for waiter in waiters if isinstance(waiter, Demand))
    return waiting


def _check_frames(state: State, copies: list[Copy]) -> None:
    seen: set[int] = set()
    pages = 0
    for copy in [*copies, *state.dropped]:
        if not isinstance(copy, DramCopy):
            continue
        size = copy.block.index.frame_pages
        there = [copy.frames[chunk] for chunk in chunks_in(copy.present | copy.filling)]
        for frame in there:
            covered = range(frame, frame + size)
            assert seen.isdisjoint(covered), f"{copy}: frame {frame} belongs to two copies"
            seen.update(covered)
        pages += size * len(there)
    assert state.frames.used_pages == pages, f"{state.frames.used_pages} pages are taken, {pages} are named"
    assert used_pages(state.frames) == pages


def used_pages(pool: FramePool) -> int:
    """Pages in use, counted from the free lists."""
    free = pool._free_by_segment()
    used = 0
    for segment in range(pool.segment_count):
        size = pool._size[segment]
        assert size or not free[segment]
        if size:
            back = pool._drained if segment == pool._draining else free[segment]
            assert not (segment == pool._draining and free[segment])
            used += size * (pool._per_segment(size) - back)
    return used


def _check_levels(state: State, copies: list[Copy]) -> None:
    used: Counter[Tier] = Counter()
    ordered: Counter[Tier] = Counter()
    dropping: Counter[Tier] = Counter()
    for copy in [*copies, *state.dropped]:
        used[copy.tier] += copy.block.index.record_bytes
        ordered[copy.tier] += copy.queue is not None
    writes: Counter[Tier] = Counter()
    written: Counter[Tier] = Counter()
    promoted: list[int] = []
    loading: Counter[Tier] = Counter()
    for transfer in state.transfers.values():
        if transfer.kind is MoveKind.DEMOTE and transfer.other is not None:
            writes[transfer.other.tier] += 1
            written[transfer.other.tier] += transfer.copy.block.index.record_bytes
        if transfer.kind is MoveKind.PROMOTE:
            promoted.append(transfer.copy.block.index.record_bytes)
            if transfer.ahead_bytes and transfer.other is not None:
                loading[transfer.other.tier] += transfer.copy.block.index.record_bytes
        if transfer.kind is MoveKind.DROP:
            dropping[transfer.copy.tier] += transfer.copy.block.index.record_bytes
    assert (state.promotions.count, state.promotions.bytes) == (len(promoted), sum(promoted)), "promotions miscounted"
    for tier, level in state.levels.items():
        assert sum(shelf.count for shelf in level.shelves) == ordered[tier], f"{tier.name}: orders miscounted"
        assert (level.writes.count, level.writes.bytes) == (writes[tier], written[tier]), (
            f"{tier.name}: writes miscounted"
        )
        assert level.loading_bytes == loading[tier], f"{tier.name}: loads in flight miscounted"
        if tier is not Tier.DRAM:
            assert level.used_bytes == used[tier], f"{tier.name}: {level.used_bytes} used, {used[tier]} named"
            assert level.dropping_bytes == dropping[tier]


def _check_holds(state: State, indexes: list[Index]) -> None:
    holds: Counter[Block] = Counter()
    for session in state.sessions.values():
        for lease in session.leases.values():
            assert state.leases[lease.id] is lease
            holds.update(lease.blocks)
    for want in live_demands(state):
        holds[want.block] += 1
    for index in indexes:
        for block in index.blocks.values():
            assert block.holds == holds[block], f"{block.key.hex()}: {block.holds} holds, {holds[block]} known"


def _check_tickets(state: State) -> None:
    owned = sum(len(session.tickets) for session in state.sessions.values())
    of_daemon = sum(ticket.session not in state.sessions for ticket in state.tickets.values())
    assert owned + of_daemon == len(state.tickets)
    waiting = Counter(ticket for line in state.lines.values() for ticket, _ in line)
    assert all(ticket.waiting == count for ticket, count in waiting.items())
    assert all(session.arrived for session in state.arrivals)
    assert all(session in state.arrivals for session in state.sessions.values() if session.arrived)
    for number, ticket in state.tickets.items():
        assert ticket.id == number
        assert not ticket.over
        assert ticket.open == ticket.outcomes.count(None) or ticket.kind is TicketKind.FLUSH
