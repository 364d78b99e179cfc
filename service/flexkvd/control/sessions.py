"""Sessions as answers: who is connected, and what each holds. Owned by `flexkvd.sessions` and the planner."""

from __future__ import annotations

from typing import Any

from flexkv_py.core.sessions import Lease
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.parts import Parts
from flexkvd.sessions import Session
from flexkvd.tickets import Ticket


class SessionFacts:
    """All sessions in numbers, and one with all it holds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def all(self) -> list[dict[str, Any]]:
        return [{**self._facts(session), **self._counts(session)} for _, session in sorted(self._known().items())]

    def one(self, number: int) -> dict[str, Any]:
        """Raises FlexKVError(NOT_FOUND)."""
        session = self._known().get(number)
        if session is None:
            raise FlexKVError(
                ErrorCode.NOT_FOUND, f"there is no session {number}, or no more: /v1/sessions lists those there are"
            )
        known = self._parts.planner.state.sessions.get(number)
        reader = self._parts.row_path.readers.get(number)
        attached = reader.attached if reader is not None else {}
        memories = [*session.memories.values(), *session.leaving.values()]
        return {
            **self._facts(session),
            "memories": [{"memory": each.number, "bytes": each.mapping.size_bytes} for each in memories],
            "leases": self._leases(list(known.leases.values()) if known is not None else []),
            "tickets": [self._ticket(each) for each in session.tickets.values() if not each.settled],
            "attached": [{"request": request, "blocks": blocks} for request, blocks in attached.items()],
        }

    def _known(self) -> dict[int, Session]:
        """By number: also those that are gone, and whose process may still read what they were granted."""
        readers = self._parts.row_path.readers
        return {**self._parts.sessions.by_number, **{number: reader.session for number, reader in readers.items()}}

    def _facts(self, session: Session) -> dict[str, Any]:
        hello = session.hello
        return {
            "session": session.number,
            "role": hello.role,
            "instance": hello.instance,
            "client": hello.client,
            "tenant": hello.tenant,
            "shard": hello.shard,
            "pid": session.connection.peer.pid,
            "age_s": self._age_s(session.opened_ns),
            "closed": session.closed,
        }

    def _counts(self, session: Session) -> dict[str, int]:
        known = self._parts.planner.state.sessions.get(session.number)
        reader = self._parts.row_path.readers.get(session.number)
        return {
            "memories": len(session.memories) + len(session.leaving),
            "tickets": len(known.tickets) if known is not None else 0,
            "leases": len(known.leases) if known is not None else 0,
            "attached": len(reader.attached) if reader is not None else 0,
        }

    def _leases(self, leases: list[Lease]) -> list[dict[str, Any]]:
        wanted = {lease.id for lease in leases}
        timers = self._parts.planner.state.timers if wanted else []
        ends_ns = {subject: due_ns for due_ns, _, kind, subject in timers if kind == "lease" and subject in wanted}
        return [
            {
                "lease": lease.id,
                "keys": len(lease.blocks),
                "expires_s": -self._age_s(ends_ns[lease.id]) if lease.id in ends_ns else None,
            }
            for lease in leases
        ]

    def _ticket(self, ticket: Ticket) -> dict[str, Any]:
        return {
            "ticket": ticket.number,
            "kind": ticket.kind.value,
            "keys": ticket.key_count,
            "age_s": self._age_s(ticket.opened_ns),
            "state": "copying" if ticket.over else "running",
        }

    def _age_s(self, since_ns: int) -> float:
        return round((self._parts.engine.now_ns() - since_ns) / 1e9, 3)
