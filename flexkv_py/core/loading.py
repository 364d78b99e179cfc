"""Loads and prefetches: promote what is below, copy what has landed, chunk by chunk."""

from __future__ import annotations

from flexkv_py.core.blocks import CopyState, DramCopy
from flexkv_py.core.messages import (
    BlockCopy,
    LoadAsked,
    Outcome,
    PrefetchAsked,
    Priority,
    StartCopies,
    TicketKind,
    Tier,
    TransferResult,
)
from flexkv_py.core.moves import promotion_may_start, unpin
from flexkv_py.core.placement import source_below
from flexkv_py.core.room import bring_up
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import open_ticket, settle_key
from flexkv_py.core.transfers import Transfer, TransferKind, Waiter, WaitFor


def on_load(state: State, event: LoadAsked | PrefetchAsked, session: Session) -> None:
    """Place every key up to the first miss; what follows a miss is of no use to a prefix."""
    index = state.index(session.namespace, session.shard)
    count = len(event.keys)
    kind = TicketKind.LOAD if type(event) is LoadAsked else TicketKind.PREFETCH
    ticket = Ticket(event.ticket, event.session, kind, event.keys, index, event.deadline_ns, [None] * count, count)
    ticket.tiers = bytearray(count)
    if not open_ticket(state, ticket):
        return
    copies: list[BlockCopy] = []
    waiting = 0
    for position in range(count):
        if not ticket.deadline_ns or not give_up(state, ticket, position, waiting):
            behind = state.room_loads or (kind is TicketKind.PREFETCH and state.room_prefetches)
            first_come = behind and not _resident(ticket, position)
            if first_come or not place(state, ticket, position, copies):
                waiting += 1
                _queue(state, ticket, position)
        if ticket.outcomes[position] is not None and _cut(state, ticket, position):
            break
    hand_out(state, ticket, copies)


def give_up(state: State, ticket: Ticket, position: int, waiting: int = 0) -> bool:
    """Settle a key that would surely come too late behind what is on its way and `waiting` blocks of its own load.

    Whoever asked then computes the rest at once, instead of finding out when the deadline has passed.
    """
    if ticket.kind is not TicketKind.LOAD or not ticket.deadline_ns:
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
    settle_key(state, ticket, position, Outcome.LATE)
    return True


def _resident(ticket: Ticket, position: int) -> bool:
    assert ticket.index is not None
    block = ticket.index.blocks.get(ticket.keys[position])
    return block is None or (block.dram is not None and not block.dram.lacks)


def _queue(state: State, ticket: Ticket, position: int) -> None:
    waiting = state.room_loads if ticket.kind is TicketKind.LOAD else state.room_prefetches
    if len(waiting) >= state.config.allocation_waiters_max:
        ticket.detail = "too many loads wait for DRAM (allocation_waiters_max)"
        settle_key(state, ticket, position, Outcome.FAILED)
        return
    waiting.append((ticket, position))


def _cut(state: State, ticket: Ticket, position: int) -> bool:
    """Whether the prefix ends at this key; then the rest is settled too."""
    outcome = ticket.outcomes[position]
    if outcome not in (Outcome.MISS, Outcome.FAILED, Outcome.LATE):
        return False
    for later in range(position + 1, len(ticket.keys)):
        settle_key(state, ticket, later, Outcome.LATE if outcome is Outcome.LATE else Outcome.MISS)
    return True


def place(state: State, ticket: Ticket, position: int, copies: list[BlockCopy]) -> bool:
    """Find one key's source. False when it must wait for room; True when it is settled or under way."""
    index = ticket.index
    assert index is not None
    block = None if index.closed else index.blocks.get(ticket.keys[position])
    dram = None if block is None else block.dram
    if dram is not None and dram.lacks and dram.state is CopyState.FILLING:
        return False  # once it has what it waits for, the rest can be read
    if block is not None and (dram is None or dram.lacks):
        source = source_below(state, block)
        if source is None:
            ticket.detail = "the only tier that has the block is down" if block.ready else ticket.detail
            settle_key(state, ticket, position, Outcome.FAILED if block.ready else Outcome.MISS)
            return True
        priority = Priority.LOAD if ticket.kind is TicketKind.LOAD else Priority.PREFETCH
        if not promotion_may_start(state, block, priority):
            return False
        chunks = index.full_mask if dram is None else dram.lacks
        dram = bring_up(state, block, source, chunks, priority, ticket.deadline_ns)
        if dram is None:
            if state.frames.fits(index.frame_pages, index.chunk_count):
                return False
            ticket.detail = "one block is larger than the DRAM arena"
            settle_key(state, ticket, position, Outcome.FAILED)
            return True
        state.tell(block.key, "promote", source.tier, ticket.kind.value)
    if block is None or dram is None:
        settle_key(state, ticket, position, Outcome.MISS)
        return True
    block.uses += 1
    if block.ssd is not None:
        state.touch(block.ssd)
    if ticket.kind is TicketKind.LOAD:
        _join_load(state, ticket, position, dram, copies)
    elif dram.state is CopyState.READY:
        state.touch(dram)
        settle_key(state, ticket, position, Outcome.PRESENT, Tier.DRAM)
    else:
        state.wait_on(dram, Waiter(WaitFor.PREFETCH, ticket, position))
    return True


def _join_load(state: State, ticket: Ticket, position: int, dram: DramCopy, copies: list[BlockCopy]) -> None:
    """Read a DRAM copy, whole now or chunk by chunk as it lands."""
    state.pin(dram)
    block = dram.block
    full = block.index.full_mask
    transfer = Transfer(
        state.next_transfer_id(), TransferKind.LOAD, block, dram, None, ticket, position, Tier.DRAM, full
    )
    state.new_transfer(transfer)
    if dram.state is CopyState.READY:
        transfer.running, transfer.handed = 1, full
        copies.append(BlockCopy(transfer.id, position, block.key, dram.frames))
        return
    state.wait_on(dram, Waiter(WaitFor.LOAD, ticket, position, transfer))
    if dram.present:
        copy_chunks(state, transfer, dram.present)


def hand_out(state: State, ticket: Ticket, copies: list[BlockCopy], chunks: int = 0) -> None:
    """One instruction for all blocks of a ticket that can be copied now; all chunks unless told which."""
    if copies:
        assert ticket.index is not None
        chunks = chunks or ticket.index.full_mask
        priority = Priority.LOAD if ticket.kind is TicketKind.LOAD else Priority.SAVE
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
    block_copy = BlockCopy(transfer.id, transfer.position, transfer.block.key, transfer.copy.frames)
    hand_out(state, ticket, [block_copy], chunks)


def load_heard(state: State, transfer: Transfer, *, ok: bool, why: str = "") -> None:
    """The fill a load waited on has ended."""
    ticket = transfer.ticket
    assert ticket is not None
    if not ok:
        transfer.failed = True
        ticket.detail = why
        _settle_failed(state, transfer, ticket)
    elif transfer.todo & ~transfer.handed:  # a save's chunks become readable all at once
        copy_chunks(state, transfer, transfer.todo & ~transfer.handed)
    if transfer.running == 0:
        _end_load(state, transfer)


def on_load_copied(state: State, transfer: Transfer, result: TransferResult) -> None:
    """A copy into the worker has ended, for some chunks of one block."""
    ticket = transfer.ticket
    assert ticket is not None
    transfer.running -= 1
    assert transfer.running >= 0
    assert result.chunks & ~transfer.handed == 0
    transfer.todo &= ~result.chunks
    if result.fault is not None:
        transfer.failed = True
        ticket.detail = result.detail or ticket.detail
        state.count("faults", f"worker_{result.fault.value}")
    if transfer.failed:
        _settle_failed(state, transfer, ticket)
    if transfer.running == 0 and transfer.copy.state is not CopyState.FILLING:
        _end_load(state, transfer)


def _settle_failed(state: State, transfer: Transfer, ticket: Ticket) -> None:
    """A failed block is told when no copy of it runs: who hears of the end may use its pages again."""
    if transfer.running == 0:
        settle_key(state, ticket, transfer.position, Outcome.FAILED)


def _end_load(state: State, transfer: Transfer) -> None:
    del state.transfers[transfer.id]
    ticket = transfer.ticket
    assert ticket is not None
    unpin(state, transfer.copy)
    if not transfer.failed and not ticket.over:
        assert transfer.todo == 0, "a load ended with chunks neither copied nor failed"
        settle_key(state, ticket, transfer.position, Outcome.LOADED, transfer.source)


def serve_room_loads(state: State) -> None:
    """Room may have come free: place waiting keys in order, loads first, until one must wait again."""
    for waiting in (state.room_loads, state.room_prefetches):
        while waiting:
            ticket, position = waiting[0]
            copies: list[BlockCopy] = []
            wanted = not ticket.over and ticket.outcomes[position] is None
            if wanted and not give_up(state, ticket, position) and not place(state, ticket, position, copies):
                return
            waiting.popleft()
            if not ticket.over:
                _cut(state, ticket, position)
            hand_out(state, ticket, copies)
