"""Outcomes of tickets: one per key, told once, when the last is known or nobody waits any more."""

from __future__ import annotations

from flexkv_py.core.messages import DRAM, SAVE, Outcome, RequestRefused, TicketFinished, TicketKind
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode
from flexkv_py.tenants.counting import count_outcomes


def open_ticket(state: State, ticket: Ticket) -> bool:
    """Enter a ticket into its session's and the planner's tables, or refuse it with a code."""
    session = state.sessions.get(ticket.session)
    if state.draining and ticket.kind is not TicketKind.FLUSH:
        refuse(state, ticket.session, 0, ticket.id, ErrorCode.DRAINING, "the daemon drains: it admits nothing new")
        return False
    if session is not None:
        if len(session.tickets) >= state.config.tickets_per_session_max:
            limit = state.config.tickets_per_session_max
            why = f"this session has {limit} tickets running (tickets_per_session_max): wait for some to end"
            refuse(state, ticket.session, 0, ticket.id, ErrorCode.LIMIT_EXCEEDED, why)
            return False
        session.tickets[ticket.id] = ticket
    assert ticket.keys or ticket.kind is TicketKind.FLUSH, "checked at the edge"
    assert ticket.id not in state.tickets
    state.tickets[ticket.id] = ticket
    if ticket.deadline_ns:
        state.wake_at(ticket.deadline_ns, "ticket", ticket.id)
    return True


def settle_key(state: State, ticket: Ticket, position: int, outcome: Outcome, tier: int = 0) -> None:
    """One key's outcome is known; the last one ends the ticket. The first outcome stands."""
    if ticket.over or ticket.outcomes[position] is not None:
        return
    ticket.outcomes[position] = outcome
    ticket.tiers[position] = tier
    ticket.open -= 1
    assert ticket.open >= 0
    if ticket.open == 0:
        finish_ticket(state, ticket, Outcome.FAILED)


def end_prefix(state: State, ticket: Ticket, position: int, outcome: Outcome) -> None:
    """The usable prefix of a load ends before this key: what follows is of no use, and is settled too."""
    settle_key(state, ticket, position, outcome)
    for later in range(position + 1, len(ticket.keys)):
        settle_key(state, ticket, later, Outcome.LATE if outcome is Outcome.LATE else Outcome.MISS)
    ticket.seen = len(ticket.keys)


def wait_for_room(state: State, ticket: Ticket, position: int) -> None:
    """Have a key stand in the line of its kind, unless that is full or waiting would be in vain."""
    line, index = state.lines[ticket.kind], ticket.index
    assert index is not None
    fits = state.frames.fits(index.frame_pages, index.chunk_count)
    never = index.shelves[DRAM].hopeless(index.frames_bytes)
    if fits and not never and len(line) < state.config.allocation_waiters_max:
        ticket.waiting += 1
        line.append(index.owner, (ticket, position))
        line.short = line.short or not index.owner.at_quota
        return
    if not fits or never:
        ticket.detail = never or "one block is larger than the DRAM arena"
    elif ticket.kind is not SAVE:
        ticket.detail = "too many loads wait for DRAM (allocation_waiters_max)"
    if ticket.kind is SAVE:
        settle_key(state, ticket, position, Outcome.REFUSED if never or not fits else Outcome.THROTTLED)
    else:
        end_prefix(state, ticket, position, Outcome.FAILED)


def finish_ticket(state: State, ticket: Ticket, rest: Outcome, detail: str = "", *, tell: bool = True) -> None:
    """End a ticket; keys without an outcome get `rest`. Copies in flight run to their end."""
    assert not ticket.over
    ticket.over = True
    if ticket.ack is not DRAM and ticket.open:
        state.demands_abandoned = True
    outcomes = [rest if outcome is None else outcome for outcome in ticket.outcomes]
    del state.tickets[ticket.id]
    state.flushes.pop(ticket.id, None)
    session = state.sessions.get(ticket.session)
    if session is not None:
        del session.tickets[ticket.id]
    count_outcomes(state, ticket, outcomes)
    if ticket.kind is SAVE and ticket.index is not None:
        found = (ticket.index.blocks.get(key) for key in ticket.keys)
        state.touch_tail_first([block for block in found if block is not None])
    if not tell:
        return
    retry = state.config.retry_after_ns if Outcome.THROTTLED in outcomes else 0
    text = detail or ticket.detail
    finished = TicketFinished(
        ticket.session, ticket.id, ticket.kind, outcomes, text, retry, ticket.stored, bytes(ticket.tiers)
    )
    state.out.append(finished)


def expire_ticket(state: State, ticket: Ticket) -> None:
    """The deadline passed. What a save could not store in time, without room or in mid-copy, may come again."""
    rest = Outcome.THROTTLED if ticket.kind is SAVE else Outcome.LATE
    level, name = state.levels[ticket.ack], ticket.ack.name.lower()
    why = f"; {name}: {level.last_fault}" if level.faults_in_row else ""
    if not why and ticket.kind is SAVE and ticket.ack is not DRAM and not ticket.waiting:
        why = f" while blocks were on their way to {name}: it is slow, or does not answer"
    if ticket.waiting and ticket.index is not None and ticket.index.owner.at_quota:
        why = f"; {ticket.index.owner.called} is at its quota of DRAM, and nothing of its there may go"
    finish_ticket(state, ticket, rest, "the deadline passed" + why)


def end_session_tickets(state: State, session: Session) -> None:
    """Nobody is left to tell: tickets end in silence."""
    for ticket in list(session.tickets.values()):
        finish_ticket(state, ticket, Outcome.CANCELLED, tell=False)


def refuse(state: State, session: int, request: int, ticket: int, code: ErrorCode, message: str) -> None:
    """Answer a request with a coded error."""
    state.count("refused_requests", code.value)
    state.out.append(RequestRefused(session, request, ticket, code, message, 0))
