"""Values of every family of `metrics`, read off what the parts count when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexkv_py.core.messages import Tier
from flexkvd.durations import Durations
from flexkvd.facts import facts_of
from flexkvd.metrics import PLANNER_COUNTERS, PLANNER_GAUGES, S3_FAMILIES, TIER_GAUGES, Samples
from flexkvd.parts import Parts
from flexkvd.row_path import RowPath


class Measures:
    """The `metrics.Source` of a daemon."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def samples(self) -> Mapping[str, Samples]:
        """Values of every counter and gauge of `metrics.FAMILIES`."""
        parts = self._parts
        counters, facts = nested(parts.planner.counters), facts_of(parts.planner.state)
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


def nested(counters: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """The planner's counters by name, then by label."""
    nested: dict[str, dict[str, int]] = {}
    for (name, label), count in counters.items():
        nested.setdefault(name, {})[label] = count
    return nested
