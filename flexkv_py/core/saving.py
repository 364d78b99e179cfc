"""Saves: frames first, then the copy out of the worker, then visible, then (if asked) further down."""

from __future__ import annotations

from flexkv_py.core.blocks import Block, Copy, CopyState, DramCopy, Rule
from flexkv_py.core.demands import demand
from flexkv_py.core.links import settle
from flexkv_py.core.loading import hand_out
from flexkv_py.core.messages import BlockCopy, Outcome, SaveAsked, SaveHints, TicketKind, Tier, TransferResult
from flexkv_py.core.moves import fail_fill, fill_dram
from flexkv_py.core.room import take_frames
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import open_ticket, refuse, settle_key
from flexkv_py.core.transfers import Transfer, TransferKind, Waiter, WaitFor
from flexkv_py.errors import ErrorCode
from flexkv_py.rows.attached import grant


def on_save(state: State, event: SaveAsked, session: Session) -> None:
    """Place every key; where room ends, the rest waits in order until the deadline."""
    if event.ack is not Tier.DRAM and event.ack not in state.levels:
        why = f"ack={event.ack.name.lower()}: this daemon has no such tier; configure it or ask for one it has"
        refuse(state, event.session, 0, event.ticket, ErrorCode.TIER_UNAVAILABLE, why)
        return
    index = state.index(session.namespace, session.shard)
    count = len(event.keys)
    ticket = Ticket(
        event.ticket, event.session, TicketKind.SAVE, event.keys, index, event.deadline_ns, [None] * count, count
    )
    ticket.tiers = bytearray(count)
    ticket.parent, ticket.ack, ticket.hints = event.parent, event.ack, event.hints
    if not open_ticket(state, ticket):
        return
    copies: list[BlockCopy] = []
    for position in range(count):
        if ticket.waiting or not place(state, ticket, position, copies):
            _queue(state, ticket, position)
    hand_out(state, ticket, copies)


def _queue(state: State, ticket: Ticket, position: int) -> None:
    """Order is kept within a ticket: a child stored without its parent could not be matched."""
    if len(state.room_saves) >= state.config.allocation_waiters_max:
        settle_key(state, ticket, position, Outcome.THROTTLED)
        return
    ticket.waiting[position] = None
    state.room_saves.append((ticket, position))


def place(state: State, ticket: Ticket, position: int, copies: list[BlockCopy]) -> bool:
    """Reserve one key's frames. False when it must wait; True when it is settled or under way."""
    index = ticket.index
    assert index is not None
    if index.closed:
        ticket.detail = "the namespace was reset"
        settle_key(state, ticket, position, Outcome.REFUSED)
        return True
    key = ticket.keys[position]
    parent = ticket.keys[position - 1] if position else ticket.parent
    block = index.blocks.get(key)
    if block is not None and (block.dram is not None or block.ready):
        _meet(state, ticket, position, block)
        return True
    frames = take_frames(state, index, index.chunk_count)
    if frames is None:
        if state.frames.fits(index.frame_pages, index.chunk_count):
            return False
        ticket.detail = "one block is larger than the DRAM arena"
        settle_key(state, ticket, position, Outcome.REFUSED)
        return True
    if block is None:
        block = index.add(key, parent)
        block.uses = block.uses or state.history.recall(key, index.shard)
    copy = fill_dram(block, frames)
    block.rule = _rule(ticket.hints)
    transfer = Transfer(state.next_transfer_id(), TransferKind.SAVE, block, copy, None, ticket, position)
    state.new_transfer(transfer)
    copies.append(BlockCopy(transfer.id, position, key, copy.frames))
    return True


def _rule(hints: SaveHints | None) -> Rule:
    if hints is None:
        return Rule.ADMISSION
    return Rule.NEVER if hints.skip_below else Rule.ALWAYS if hints.high_priority else Rule.ADMISSION


def _meet(state: State, ticket: Ticket, position: int, block: Block) -> None:
    """The block is here already, or on its way by somebody else's save or promotion."""
    block.uses += 1
    dram = block.dram
    if block.ready:
        for copy in block.copies():
            state.touch(copy)  # at once, or making room for the rest could evict it
        _acknowledge(state, ticket, position, block, Outcome.PRESENT)
        return
    assert dram is not None
    state.wait_on(dram, Waiter(WaitFor.PRESENT, ticket, position))


def _acknowledge(state: State, ticket: Ticket, position: int, block: Block, outcome: Outcome) -> None:
    """READY: tell so, or once it is as deep as the save asked for."""
    if ticket.over:
        return
    if ticket.ack is not Tier.DRAM:
        target = block.copy_in(ticket.ack)
        if target is None or target.state is not CopyState.READY:
            demand(state, block, ticket.ack, ticket, position)
            return
    settle_key(state, ticket, position, outcome)


def present_heard(state: State, waiter: Waiter, block: Block, *, ok: bool) -> None:
    """Another's fill of a key we also hold has ended; if it failed, our own bytes serve."""
    ticket = waiter.ticket
    assert ticket is not None
    if ticket.over:
        return
    if ok:
        _acknowledge(state, ticket, waiter.position, block, Outcome.PRESENT)
    else:
        _queue(state, ticket, waiter.position)


def on_saved(state: State, transfer: Transfer, result: TransferResult) -> tuple[Copy, bool]:
    """The copy out of the worker has ended: visible if whole and still wanted, else its frames are freed.

    A save whose ticket is over is dropped: its worker may have reused the pages before they were read.
    Returns the copy and whether it is READY.
    """
    del state.transfers[transfer.id]
    ticket, copy, block = transfer.ticket, transfer.copy, transfer.block
    assert ticket is not None
    assert isinstance(copy, DramCopy)
    assert copy.state is CopyState.FILLING
    if result.fault is not None:
        ticket.detail = result.detail
        state.count("faults", f"worker_{result.fault.value}")
    if result.fault is None and not ticket.over and not block.index.closed:
        copy.state = CopyState.READY
        copy.present, copy.filling = copy.filling, 0
        block.uses += 1
        state.tell(block.key, "save", Tier.DRAM)
        settle(state, block)
        grant(state, copy)
        return copy, True
    fail_fill(state, copy)
    return copy, False


def acknowledge_saved(state: State, transfer: Transfer, *, ok: bool) -> None:
    """Tell the saver, after the block has become visible (or has not)."""
    ticket = transfer.ticket
    assert ticket is not None
    if ok:
        _acknowledge(state, ticket, transfer.position, transfer.block, Outcome.STORED)
    else:
        settle_key(state, ticket, transfer.position, Outcome.REFUSED)


def serve_room_saves(state: State) -> None:
    """Room may have come free: place waiting keys in order, one instruction per ticket."""
    copies: list[BlockCopy] = []
    last: Ticket | None = None
    while state.room_saves:
        ticket, position = state.room_saves[0]
        if last is not None and ticket is not last:
            hand_out(state, last, copies)
            copies = []
        last = ticket
        if not ticket.over and ticket.outcomes[position] is None and not place(state, ticket, position, copies):
            break
        state.room_saves.popleft()
        ticket.waiting.pop(position, None)
    if last is not None:
        hand_out(state, last, copies)
