"""What clients asked for and got: times of their tickets, and keys and bytes by tenant.

Owns these counts; decides nothing. `sessions` tells it of every answer, `measures` reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from flexkv_py.core.messages import MatchAnswered, Outcome, TicketKind, Tier
from flexkvd.durations import timings
from flexkvd.sessions import Session, Sessions
from flexkvd.tenant_counts import TenantCounts
from flexkvd.tickets import Ticket

UNMET = frozenset({Outcome.MISS, Outcome.FAILED, Outcome.THROTTLED, Outcome.REFUSED, Outcome.LATE})
FROM_TIERS = {tier: tier.name.lower() for tier in (Tier.DRAM, Tier.SSD, Tier.S3)}
"""Where a load takes blocks from, as the planner tells it, and as metrics call it."""


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
        counts, outcomes = self.tenants.of(session.hello.tenant, ticket.key_count), ticket.finished.outcomes
        block_bytes = session.geometry.block_bytes
        if ticket.kind is TicketKind.LOAD:
            for tier, word in FROM_TIERS.items():
                if count := ticket.finished.tiers.count(tier):
                    counts["hits", word] += count
                    counts["loaded_bytes", word] += count * block_bytes
        elif ticket.kind is TicketKind.SAVE and (stored := outcomes.count(Outcome.STORED)):
            counts["saved_bytes",] += stored * block_bytes
        alike = bool(outcomes) and outcomes.count(outcomes[0]) == len(outcomes)  # mostly; hashing each costs more
        for outcome in UNMET.intersection(outcomes[:1] if alike else outcomes):
            counts["unmet_keys", outcome.value] += outcomes.count(outcome)
