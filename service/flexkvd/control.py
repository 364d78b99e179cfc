"""What the daemon says of itself and does for its operator: the `Control` behind the REST API.

Owns no state: it reads what the parts count and posts a flush like anyone else.
"""

from __future__ import annotations

import asyncio
from typing import Any

import flexkv_py
from flexkv_py.core.messages import FlushAsked, RequestRefused, TicketFinished, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkvd.facts import by_name, facts_of
from flexkvd.measures import Measures
from flexkvd.metrics import Metrics
from flexkvd.parts import Parts


class Operator:
    """Answers the REST API; see `api.Control`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.metrics = Metrics(Measures(parts))

    def readiness(self) -> dict[str, Any]:
        """See `Readiness.report`; degraded is also a tier that is down, for its reason, and what resets wait for."""
        report: dict[str, Any] = self._parts.readiness.report()
        for tier, level in self._parts.planner.state.levels.items():
            if not level.up:
                report["degraded"][tier.name.lower()] = f"down: {level.down_reason}"
        if waiting := self._parts.resets.sentence():
            report["degraded"]["resets"] = waiting
        return report

    def metrics_text(self) -> bytes:
        return self.metrics.text()

    def status(self) -> dict[str, object]:
        parts = self._parts
        sessions = [
            {
                "session": session.number,
                "role": session.hello.role,
                "instance": session.hello.instance,
                "client": session.hello.client,
                "tenant": session.hello.tenant,
                "shard": session.hello.shard,
                "pid": session.connection.peer.pid,
                "memories": len(session.memories) + len(session.leaving),
                "tickets": sum(not ticket.over for ticket in session.tickets.values()),
                "closed": session.closed,
            }
            for session in parts.sessions.by_number.values()
        ]
        tiers = {tier.name.lower(): store.status() for tier, (store, _) in parts.stores.items()}
        return {
            "version": flexkv_py.__version__,
            "boot": parts.boot.hex(),
            **self.readiness(),
            "resets": parts.resets.status(),
            "planner": facts_of(parts.planner.state),
            "counters": by_name(parts.planner.counters),
            "link_bytes": dict(parts.executor.traffic.bytes),
            "sessions": sessions,
            "tiers": {"dram": parts.arena.status(), **tiers},
            "lanes": parts.devices.lanes.status(),
            "devices": parts.devices.status(),
        }

    def story(self, key: BlockKey) -> list[dict[str, object]]:
        """What the planner remembers of one block; `age_s` is how long ago it happened."""
        parts = self._parts
        now_ns = parts.engine.now_ns()
        return [
            {
                "age_s": (now_ns - event.now_ns) / 1e9,
                "what": event.what,
                "tier": event.tier.name.lower(),
                "detail": event.detail,
            }
            for event in parts.planner.story(key)
        ]

    async def flush(self, to_tier: str, deadline_s: float) -> dict[str, object]:
        """Copy everything down; returns how many blocks were copied. Raises FlexKVError."""
        parts, tier = self._parts, Tier[to_tier.upper()]
        if tier not in parts.stores:
            raise FlexKVError(
                ErrorCode.TIER_UNAVAILABLE, f"this daemon is configured without {to_tier}: flush to a tier it has"
            )
        if parts.readiness.draining:
            raise FlexKVError(
                ErrorCode.DRAINING, "the daemon is stopping and begins no flush: ask again when it is back"
            )
        ended: asyncio.Future[TicketFinished | RequestRefused] = asyncio.get_running_loop().create_future()
        number = parts.sessions.own_ticket(lambda end: None if ended.done() else ended.set_result(end))
        now_ns = parts.engine.now_ns()
        parts.engine.post(FlushAsked(0, number, None, tier, now_ns + int(deadline_s * 1e9), now_ns))
        end = await ended
        if isinstance(end, RequestRefused):
            raise FlexKVError(end.code, end.message)
        return {"stored": end.stored, "detail": end.detail}
