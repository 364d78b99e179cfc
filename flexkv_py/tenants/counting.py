"""What tickets came to, counted for the whole cache and for the tenant. Called by `core.tickets`."""

from __future__ import annotations

from flexkv_py.core.messages import Outcome, TicketKind, Tier
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State


def count_outcomes(state: State, ticket: Ticket, outcomes: list[Outcome]) -> None:
    """A ticket is over, with one outcome per key."""
    for counts in (state, ticket.index.owner) if ticket.index is not None else (state,):
        for outcome in dict.fromkeys(outcomes):
            counts.count(f"{ticket.kind.value}_keys", outcome.value, outcomes.count(outcome))
        if ticket.kind is TicketKind.SAVE and ticket.index is not None:
            counts.count("saved_bytes", "dram", outcomes.count(Outcome.STORED) * ticket.index.frames_bytes)
        if ticket.kind is TicketKind.LOAD:
            for tier in dict.fromkeys(ticket.tiers):
                if tier:
                    counts.count("hits", Tier(tier).name.lower(), ticket.tiers.count(tier))
