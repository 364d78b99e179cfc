"""Saves: frames first, then the copy out of the worker, then visible, then (if asked) further down."""

from __future__ import annotations

from flexkv_py.core.blocks import FILLING, READY, Block, DramCopy
from flexkv_py.core.links import settle
from flexkv_py.core.messages import DRAM, SAVE, BlockCopy, Outcome, TransferResult
from flexkv_py.core.moves import fail_fill
from flexkv_py.core.room import take_frames
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import settle_key, wait_for_room
from flexkv_py.core.transfers import Demand, Transfer, Wish
from flexkv_py.rows.attached import grant
from flexkv_py.tenants.keeping import keep_for_both


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
        return False
    if block is None:
        block = index.add(key, parent)
        block.uses = block.uses or state.history.recall(key, index.shard)
    copy = block.dram = DramCopy(block, frames)
    block.rule = ticket.rule
    if ticket.keep_until_ns or state.retention.seconds:
        state.retention.keep(block, ticket.keep_until_ns)
    transfer = state.begin(Transfer(SAVE, copy, None, ticket, position))
    copies.append(BlockCopy(transfer.id, position, key, copy.frames))
    return True


def _meet(state: State, ticket: Ticket, position: int, block: Block) -> None:
    """The block is here already, or on its way by somebody else's save or promotion."""
    block.uses += 1
    keep_for_both(state, block, ticket)
    dram = block.dram
    if block.ready:
        for copy in block.copies():
            state.touch(copy)  # at once, or making room for the rest could evict it
        _acknowledge(state, ticket, position, block, Outcome.PRESENT)
        return
    assert dram is not None
    state.wait_on(dram, Wish(ticket, position))


def _acknowledge(state: State, ticket: Ticket, position: int, block: Block, outcome: Outcome) -> None:
    """READY: tell so, or once it is as deep as the save asked for."""
    if ticket.over:
        return
    if ticket.ack is not DRAM:
        target = block.copy_in(ticket.ack)
        if target is None or target.state is not READY:
            state.want(Demand(block, ticket.ack, ticket, position))
            return
    settle_key(state, ticket, position, outcome)


def present_heard(state: State, wish: Wish, block: Block, *, ok: bool) -> None:
    """Another's fill of a key we also hold has ended; if it failed, our own bytes serve."""
    ticket = wish.ticket
    if ticket.over:
        return
    if ok:
        _acknowledge(state, ticket, wish.position, block, Outcome.PRESENT)
    else:
        wait_for_room(state, ticket, wish.position)


def on_saved(state: State, transfer: Transfer, result: TransferResult) -> None:
    """The copy out of the worker has ended: visible if whole and still wanted, else its frames are freed.

    A save whose ticket is over is dropped: its worker may have reused the pages before they were read.
    """
    ticket, copy, block = transfer.ticket, transfer.copy, transfer.copy.block
    assert ticket is not None
    assert isinstance(copy, DramCopy)
    assert copy.state is FILLING
    if result.fault is not None:
        ticket.detail = result.detail
        state.count("faults", f"worker_{result.fault.value}")
    if result.fault is None and not ticket.over and not block.index.closed:
        copy.state = READY
        copy.present, copy.filling = copy.filling, 0
        block.uses += 1
        state.tell(block.key, "save", DRAM)
        settle(state, block)
        grant(state, copy)
    else:
        fail_fill(state, copy)


def acknowledge_saved(state: State, transfer: Transfer) -> None:
    """Tell the saver, after the block has become visible (or has not)."""
    ticket = transfer.ticket
    assert ticket is not None
    if transfer.copy.state is READY:
        _acknowledge(state, ticket, transfer.position, transfer.copy.block, Outcome.STORED)
    else:
        settle_key(state, ticket, transfer.position, Outcome.REFUSED)
