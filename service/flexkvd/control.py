"""What the daemon says of itself and does for its operator: the `Control` behind the REST API.

Owns no state: it reads what the parts count and posts a flush like anyone else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import flexkv_py
from flexkv_py.core.messages import FlushAsked, RequestRefused, TicketFinished, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkvd.durations import Durations
from flexkvd.facts import facts_of
from flexkvd.metrics import PLANNER_COUNTERS, PLANNER_GAUGES, S3_FAMILIES, TIER_GAUGES, Metrics, Samples
from flexkvd.parts import Parts
from flexkvd.row_path import RowPath


class Operator:
    """Answers the REST API; see `api.Control`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.metrics = Metrics(self)

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
            "counters": _nested(parts.planner.counters),
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

    def samples(self) -> Mapping[str, Samples]:
        """Values of every counter and gauge of `metrics.FAMILIES`."""
        parts = self._parts
        counters, facts = _nested(parts.planner.counters), facts_of(parts.planner.state)
        links = {(link.name,): link for link in parts.executor.links.values()}
        on_core_ns, queued_ns = parts.lag.core_times()
        return {
            **{each.name: _labelled(counters.get(each.of, {})) for each in PLANNER_COUNTERS},
            **{each.name: {(tier,): tiers[each.of] for tier, tiers in facts["tiers"].items()} for each in TIER_GAUGES},
            **{each.name: {(): facts[each.of]} for each in PLANNER_GAUGES},
            "flexkv_link_bytes_total": _labelled(parts.executor.traffic.bytes),
            "flexkv_link_faults_total": parts.executor.traffic.faults,
            "flexkv_damaged_at_start_total": {
                (tier.name.lower(),): store.damaged_at_start for tier, (store, _) in parts.stores.items()
            },
            "flexkv_link_waiting": {name: link.waiting for name, link in links.items()},
            "flexkv_link_running": {name: link.running for name, link in links.items()},
            "flexkv_link_running_bytes": {name: link.running_bytes for name, link in links.items()},
            "flexkv_link_dropped_total": {name: link.dropped for name, link in links.items()},
            "flexkv_request_errors_total": _labelled(parts.server.failures),
            "flexkv_connections": {(): parts.server.connections},
            "flexkv_arena_populated_bytes": {(): parts.arena.populated_bytes},
            "flexkv_events_total": {(): parts.engine.events},
            "flexkv_loop_cpu_seconds_total": {(): on_core_ns / 1e9},
            "flexkv_loop_queued_seconds_total": {(): queued_ns / 1e9},
            **_row_samples(parts.row_path),
            "flexkv_ready": {(): parts.readiness.ready},
            **_s3_samples(parts.stores[Tier.S3][0].status() if Tier.S3 in parts.stores else None),
        }

    def durations(self) -> Mapping[str, Mapping[tuple[str, ...], Durations]]:
        """Values of `metrics.DURATIONS`."""
        parts = self._parts
        return {
            "flexkv_link_queue_seconds": {(link.name,): link.queue_time for link in parts.executor.links.values()},
            "flexkv_loop_lag_seconds": {(): parts.lag.lag},
        }


def _row_samples(row_path: RowPath) -> dict[str, Samples]:
    readers, traffic = row_path.readers.values(), row_path.traffic
    return {
        "flexkv_row_readers": {(): len(readers)},
        "flexkv_row_requests": {(): sum(len(reader.attached) for reader in readers)},
        "flexkv_row_pages_total": _labelled(traffic.pages),
        "flexkv_row_messages_total": _labelled(traffic.messages),
        "flexkv_row_sessions_ended_total": _labelled(traffic.sessions_ended),
    }


def _s3_samples(status: Mapping[str, Any] | None) -> dict[str, Samples]:
    """What the S3 tier says of itself, as samples; none without one."""
    if status is None:
        return {family.name: {} for family in S3_FAMILIES}
    failed = {name.removeprefix("failed_"): count for name, count in status.items() if name.startswith("failed_")}
    return {
        "flexkv_s3_breaker": {(state,): state == status["breaker"] for state in ("closed", "open", "half-open")},
        "flexkv_s3_breaker_opened_total": {(): status["breaker_opened"]},
        "flexkv_s3_rate_limit": {(): status["rate_per_s_max"]},
        "flexkv_s3_retry_tokens": {(): status["retry_tokens"]},
        "flexkv_s3_retries_total": {(): status["retries"]},
        "flexkv_s3_failed_total": _labelled(failed),
        "flexkv_s3_process_deaths_total": {(): status["process_deaths"]},
    }


def _labelled(counts: Mapping[str, int]) -> Samples:
    return {(label,): count for label, count in counts.items()}


def _nested(counters: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (name, label), count in counters.items():
        nested.setdefault(name, {})[label] = count
    return nested
