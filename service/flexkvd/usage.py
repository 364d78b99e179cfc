"""What clients asked for and got: times of their tickets, and keys and bytes by tenant.

Owns these counts; decides nothing. `sessions` tells it of every answer, `measures` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from flexkv_py.core.messages import MatchAnswered, Outcome, TicketKind, Tier
from flexkvd.durations import timings
from flexkvd.sessions import Session, Sessions
from flexkvd.tenant_counts import TenantCounts
from flexkvd.tickets import Ticket

UNMET = (Outcome.MISS, Outcome.FAILED, Outcome.THROTTLED, Outcome.REFUSED, Outcome.LATE)


class Usage:
    """Counts from its making on."""

    def __init__(self, sessions: Sessions, now_ns: Callable[[], int], tenants_named_max: int) -> None:
        self.tenants = TenantCounts(tenants_named_max, now_ns())
        self.ticket_time = timings()  # by kind and tier
        self.first_chunk_time = timings()  # of loads, by tier
        self._sessions = sessions
        self._now_ns = now_ns
        sessions.on_ticket_finished = self._ticket_finished
        sessions.on_matched = self._matched

    def _matched(self, session: Session, asked: int, answer: MatchAnswered) -> None:
        counts = self.tenants.of(session.hello.tenant, asked)
        counts["matched_keys", "hit"] += answer.length
        counts["matched_keys", "miss"] += asked - answer.length

    def _ticket_finished(self, ticket: Ticket) -> None:
        self.ticket_time[ticket.kind.value, ticket.tier].add((self._now_ns() - ticket.opened_ns) / 1e9)
        if ticket.first_chunk_ns and ticket.kind is TicketKind.LOAD:
            self.first_chunk_time[ticket.tier,].add((ticket.first_chunk_ns - ticket.opened_ns) / 1e9)
        self._count(self._sessions.by_number[ticket.session], ticket)

    def _count(self, session: Session, ticket: Ticket) -> None:
        assert ticket.finished is not None
        counts = self.tenants.of(session.hello.tenant, ticket.key_count)
        block_bytes = session.geometry.block_bytes
        outcomes = Counter(ticket.finished.outcomes)
        for outcome in UNMET:
            if outcomes[outcome]:
                counts["unmet_keys", outcome.value] += outcomes[outcome]
        if ticket.kind is TicketKind.SAVE and outcomes[Outcome.STORED]:
            counts["saved_bytes",] += outcomes[Outcome.STORED] * block_bytes
        if ticket.kind is TicketKind.LOAD:
            for tier, count in Counter(ticket.finished.tiers).items():
                if tier:
                    counts["hits", Tier(tier).name.lower()] += count
                    counts["loaded_bytes", Tier(tier).name.lower()] += count * block_bytes
