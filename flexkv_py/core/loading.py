"""Loads and prefetches: promote what is below, copy what has landed, chunk by chunk."""

from __future__ import annotations

from flexkv_py.core.blocks import FILLING, READY, DramCopy
from flexkv_py.core.messages import DRAM, LOAD, PREFETCH, BlockCopy, Outcome, Priority, StartCopies, TransferResult
from flexkv_py.core.moves import unpin
from flexkv_py.core.placement import source_below
from flexkv_py.core.room import promote
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import end_prefix, settle_key
from flexkv_py.core.transfers import Transfer, Wish


def look(state: State, ticket: Ticket, position: int, copies: list[BlockCopy]) -> bool:
    """Place a key of a new load or prefetch. False when it must wait for room, or behind those who do."""
    if _give_up(state, ticket, position, ticket.waiting):
        return True
    assert ticket.index is not None
    owner, loads, prefetches = ticket.index.owner, state.lines[LOAD], state.lines[PREFETCH]
    behind = loads.short or owner in loads
    if ticket.kind is PREFETCH:
        behind = behind or prefetches.short or owner in prefetches
    return not (behind and not _resident(ticket, position)) and _place(state, ticket, position, copies)


def place(state: State, ticket: Ticket, position: int, copies: list[BlockCopy]) -> bool:
    """Place a key whose turn has come. False when it must wait on."""
    return _give_up(state, ticket, position) or _place(state, ticket, position, copies)


def _give_up(state: State, ticket: Ticket, position: int, waiting: int = 0) -> bool:
    """Settle a key that would surely come too late behind what is on its way and `waiting` blocks of its own load.

    Whoever asked then computes the rest at once, instead of finding out when the deadline has passed.
    """
    if ticket.kind is not LOAD or not ticket.deadline_ns:
        return False
    assert ticket.index is not None
    block = None if ticket.index.closed else ticket.index.blocks.get(ticket.keys[position])
    source = None if block is None or block.dram is not None else source_below(state, block)
    if block is None or source is None:
        return False
    level, now_ns = state.levels[source.tier], state.now_ns
    ahead_bytes = level.loading_bytes + (waiting + 1) * block.index.record_bytes
    if not level.forecast.misses(ticket.deadline_ns, ahead_bytes, now_ns):
        return False
    arrives_s = (level.forecast.arrival_ns(ahead_bytes, now_ns) - now_ns) / 1e9
    left_s = (ticket.deadline_ns - now_ns) / 1e9
    name = source.tier.name.lower()
    ticket.detail = f"block {position} would arrive from {name} in {arrives_s:.3g} s, the deadline is in {left_s:.3g} s"
    state.tell(block.key, "given up", source.tier, ticket.detail)
    state.count("given_up", name)
    end_prefix(state, ticket, position, Outcome.LATE)
    return True


def _resident(ticket: Ticket, position: int) -> bool:
    assert ticket.index is not None
    block = ticket.index.blocks.get(ticket.keys[position])
    return block is None or (block.dram is not None and not block.dram.lacks)


def _place(state: State, ticket: Ticket, position: int, copies: list[BlockCopy]) -> bool:
    """Find one key's source. False when it must wait for room; True when it is settled or under way."""
    index = ticket.index
    assert index is not None
    block = None if index.closed else index.blocks.get(ticket.keys[position])
    dram = None if block is None else block.dram
    lacks = index.full_mask if dram is None else dram.lacks
    if dram is not None and lacks and dram.state is FILLING:
        return False  # once it has what it waits for, the rest can be read
    if block is not None and lacks:
        source = source_below(state, block)
        if source is None:
            ticket.detail = "the only tier that has the block is down" if block.ready else ticket.detail
            end_prefix(state, ticket, position, Outcome.FAILED if block.ready else Outcome.MISS)
            return True
        priority = Priority.LOAD if ticket.kind is LOAD else Priority.PREFETCH
        dram = promote(state, block, source, lacks, priority, ticket.deadline_ns)
        if dram is None:
            return False
        state.tell(block.key, "promote", source.tier, ticket.kind.value)
    if block is None or dram is None:
        end_prefix(state, ticket, position, Outcome.MISS)
        return True
    block.uses += 1
    if block.ssd is not None:
        state.touch(block.ssd)
    if ticket.kind is LOAD:
        _join_load(state, ticket, position, dram, copies)
    elif dram.state is READY:
        state.touch(dram)
        settle_key(state, ticket, position, Outcome.PRESENT, DRAM)
    else:
        state.wait_on(dram, Wish(ticket, position))
    return True


def _join_load(state: State, ticket: Ticket, position: int, dram: DramCopy, copies: list[BlockCopy]) -> None:
    """Read a DRAM copy, whole now or chunk by chunk as it lands."""
    state.pin(dram)
    block = dram.block
    full = block.index.full_mask
    transfer = state.begin(Transfer(LOAD, dram, None, ticket, position, todo=full))
    if dram.state is READY:
        transfer.running, transfer.handed = 1, full
        copies.append(BlockCopy(transfer.id, position, block.key, dram.frames))
        return
    state.wait_on(dram, transfer)
    if dram.present:
        copy_chunks(state, transfer, dram.present)


def hand_out(state: State, ticket: Ticket, copies: list[BlockCopy], chunks: int = 0) -> None:
    """One instruction for all blocks of a ticket that can be copied now; all chunks unless told which."""
    if copies:
        assert ticket.index is not None
        chunks = chunks or ticket.index.full_mask
        priority = Priority.LOAD if ticket.kind is LOAD else Priority.SAVE
        copies_of = StartCopies(ticket.session, ticket.id, ticket.kind, copies, chunks, priority, ticket.deadline_ns)
        state.out.append(copies_of)


def copy_chunks(state: State, transfer: Transfer, chunks: int) -> None:
    """Hand landed chunks (mask) of one block on to a waiting load."""
    ticket = transfer.ticket
    assert ticket is not None
    if ticket.over or transfer.failed:
        return
    assert transfer.handed & chunks == 0
    transfer.handed |= chunks
    transfer.running += 1
    block_copy = BlockCopy(transfer.id, transfer.position, transfer.copy.block.key, transfer.copy.frames)
    hand_out(state, ticket, [block_copy], chunks)


def load_heard(state: State, transfer: Transfer, *, ok: bool, why: str = "") -> None:
    """The fill a load waited on has ended."""
    assert transfer.ticket is not None
    if not ok:
        transfer.failed = True
        transfer.ticket.detail = why
    elif transfer.todo & ~transfer.handed:  # a save's chunks become readable all at once
        copy_chunks(state, transfer, transfer.todo & ~transfer.handed)
    _end_load(state, transfer)


def on_load_copied(state: State, transfer: Transfer, result: TransferResult) -> None:
    """A copy into the worker has ended, for some chunks of one block."""
    assert transfer.ticket is not None
    transfer.running -= 1
    assert transfer.running >= 0
    assert result.chunks & ~transfer.handed == 0
    transfer.todo &= ~result.chunks
    if result.fault is not None:
        transfer.failed = True
        transfer.ticket.detail = result.detail or transfer.ticket.detail
        state.count("faults", f"worker_{result.fault.value}")
    _end_load(state, transfer)


def _end_load(state: State, transfer: Transfer) -> None:
    """End a load that reads no more. One that failed is told at once: who hears of it may use its pages again."""
    ticket = transfer.ticket
    assert ticket is not None
    if transfer.running:
        return
    if transfer.failed:
        settle_key(state, ticket, transfer.position, Outcome.FAILED)
    if transfer.copy.state is FILLING:
        return
    del state.transfers[transfer.id]
    unpin(state, transfer.copy)
    if not transfer.failed and not ticket.over:
        assert transfer.todo == 0, "a load ended with chunks neither copied nor failed"
        settle_key(state, ticket, transfer.position, Outcome.LOADED, transfer.source)
