"""Requests that name keys, placed a bounded number of keys per event: no large one holds up what others ask.

A new request's keys are first looked at in slices; sessions take turns, and each one's requests keep their
order. A key that finds no room waits in the line of its kind, which `tenants.turns` serves. What a key needs, `loading`
and `saving` say.
"""

from __future__ import annotations

from flexkv_py.core import loading, saving
from flexkv_py.core.blocks import Rank, Rule
from flexkv_py.core.messages import BlockCopy, LoadAsked, PrefetchAsked, SaveAsked, TicketKind, Tier
from flexkv_py.core.recovery import index_of
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import open_ticket, refuse, wait_for_room
from flexkv_py.errors import ErrorCode


def on_load(state: State, event: LoadAsked | PrefetchAsked) -> None:
    """Open a ticket; its keys are looked at up to the first miss."""
    session = state.sessions[event.session]
    kind = TicketKind.LOAD if type(event) is LoadAsked else TicketKind.PREFETCH
    ticket = Ticket(event.ticket, event.session, kind, event.keys, index_of(state, session), event.deadline_ns)
    _arrive(state, session, ticket)


def on_save(state: State, event: SaveAsked) -> None:
    """Open a ticket; where room ends, its keys wait in order until the deadline."""
    if event.ack is not Tier.DRAM and event.ack not in state.levels:
        why = f"ack={event.ack.name.lower()}: this daemon has no such tier; configure it or ask for one it has"
        refuse(state, event.session, 0, event.ticket, ErrorCode.TIER_UNAVAILABLE, why)
        return
    session = state.sessions[event.session]
    index = index_of(state, session)
    ticket = Ticket(event.ticket, event.session, TicketKind.SAVE, event.keys, index, event.deadline_ns)
    ticket.parent, ticket.ack = event.parent, event.ack
    hints = event.hints
    if hints.skip_below or hints.high_priority or hints.low_priority:
        rank = Rank.HIGH if hints.high_priority else Rank.LOW if hints.low_priority else Rank.NORMAL
        ticket.rule = Rule(hints.skip_below, rank)
    ticket.keep_until_ns = state.now_ns + hints.retention_ns if hints.retention_ns else 0
    _arrive(state, session, ticket)


def _arrive(state: State, session: Session, ticket: Ticket) -> None:
    if open_ticket(state, ticket):
        if not session.arrived:
            state.arrivals.append(session)
        session.arrived.append(ticket)


def look_at_arrivals(state: State) -> None:
    """Look at the next keys of those whose turn it is.

    Order is kept within a save: a child stored without its parent could not be matched.
    """
    left = state.config.keys_per_event_max
    while state.arrivals and left > 0:
        session = state.arrivals.popleft()
        ticket = session.arrived[0]
        first, in_order = ticket.seen, ticket.kind is TicketKind.SAVE
        place, copies = saving.place if in_order else loading.look, list[BlockCopy]()
        end = first if ticket.over else min(first + left, len(ticket.keys))
        for position in range(first, end):
            if (in_order and ticket.waiting) or not place(state, ticket, position, copies):
                wait_for_room(state, ticket, position)
            if ticket.seen > position:  # the usable prefix of a load has ended
                break
        ticket.seen = max(ticket.seen, end)
        left -= max(1, end - first)
        loading.hand_out(state, ticket, copies)
        if ticket.over or ticket.seen == len(ticket.keys):
            session.arrived.popleft()
        if session.arrived:
            state.arrivals.append(session)
