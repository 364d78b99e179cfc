"""The values of every metric, read from the parts when somebody asks: nothing on the hot path knows of metrics.

Owns which part says what. Counters that an alert may watch are told as 0 before they count: a series that begins at 1
shows no increase. What it costs is bounded by the series there are, never by blocks, records or objects.
`metrics` makes text of it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import flexkv_py
from flexkv_py.core.messages import Fault, Outcome, ReplayOutcome, TicketKind, Tier
from flexkv_py.errors import ErrorCode
from flexkv_py.rows.sparse import SparseRows
from flexkv_tiers.base import RemoteStore, WearingStore
from flexkvd.durations import Durations
from flexkvd.facts import by_name, facts_of, index_bytes
from flexkvd.families import PLANNER_COUNTERS, PLANNER_GAUGES, S3_FAMILIES, SSD_FAMILIES, TENANT_FAMILIES, TIER_GAUGES
from flexkvd.metrics import Samples
from flexkvd.parts import Parts
from flexkvd.tenant_counts import OTHER, TenantCounts

BREAKER_STATES = ("closed", "open", "half-open")
Histograms = dict[tuple[str, ...], Durations]


class Measures:
    """Reads the parts of one daemon; see `metrics.Source`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._started_s = time.time()

    def samples(self) -> Mapping[str, Samples]:
        parts = self._parts
        return {
            **_planner_samples(parts),
            **_link_samples(parts),
            **_loop_samples(parts),
            **_row_samples(parts),
            **_process_samples(self._started_s),
            **_tenant_samples(parts),
            **_ssd_samples(parts),
            **_s3_samples(parts),
        }

    def durations(self) -> Mapping[str, Histograms]:
        parts, links = self._parts, self._parts.executor.links
        return {
            "flexkv_ticket_seconds": parts.usage.ticket_time,
            "flexkv_first_chunk_seconds": parts.usage.first_chunk_time,
            "flexkv_transfer_seconds": {
                **{("dram", *labels): took for labels, took in parts.executor.copies.copy_time.items()},
                **{
                    (tier.name.lower(), operation.value, priority.name.lower()): took
                    for (tier, operation), link in links.items()
                    for priority, took in link.move_time.items()
                },
            },
            "flexkv_link_queue_seconds": {
                (link.name, priority.name.lower()): waited
                for link in links.values()
                for priority, waited in link.queue_time.items()
            },
            "flexkv_request_seconds": {(_snake(name),): took for (name,), took in parts.server.request_time.items()},
            "flexkv_loop_lag_seconds": {(): parts.lag.lag},
        }


def _planner_samples(parts: Parts) -> dict[str, Samples]:
    state = parts.planner.state
    counters, facts = by_name(parts.planner.counters), facts_of(state)
    for name, labels in _told_from_0(facts["tiers"]):
        counters[name] = {**dict.fromkeys(labels, 0), **counters.get(name, {})}
    return {
        **{each.name: _labelled(counters.get(each.of, {})) for each in PLANNER_COUNTERS},
        **{each.name: {(tier,): tiers[each.of] for tier, tiers in facts["tiers"].items()} for each in TIER_GAUGES},
        **{each.name: {(): facts[each.of]} for each in PLANNER_GAUGES},
        "flexkv_index_bytes": {(): index_bytes(state)},
    }


def _told_from_0(tiers: Iterable[str]) -> Iterator[tuple[str, Iterable[str]]]:
    """Names of the planner's counters with the labels they are told for, counted or not."""
    yield "matched_keys", ("hit", "miss")
    yield "replays_refused", ReplayOutcome
    for kind in (TicketKind.LOAD, TicketKind.SAVE, TicketKind.PREFETCH):
        yield f"{kind.value}_keys", Outcome
    for name in ("hits", "promotions", "demotions", "evictions", "expired"):
        yield name, tiers


def _link_samples(parts: Parts) -> dict[str, Samples]:
    links = {(link.name,): link for link in parts.executor.links.values()}
    lanes = parts.devices.lanes.status()
    devices: Mapping[str, Any] = {"host": lanes, **lanes.get("devices", {})}  # type: ignore[dict-item]
    return {
        "flexkv_link_bytes_total": _labelled(parts.executor.traffic.bytes),
        "flexkv_link_faults_total": {
            **{(link, fault.value): 0 for (link,) in links for fault in Fault},
            **parts.executor.traffic.faults,
        },
        "flexkv_link_waiting": {name: link.waiting for name, link in links.items()},
        "flexkv_link_running": {name: link.running for name, link in links.items()},
        "flexkv_link_running_bytes": {name: link.running_bytes for name, link in links.items()},
        "flexkv_link_dropped_total": {name: link.dropped for name, link in links.items()},
        "flexkv_copies_waiting": {(device,): status["queued_units"] for device, status in devices.items()},
        "flexkv_damaged_at_start_total": {
            (tier.name.lower(),): store.damaged_at_start for tier, (store, _) in parts.stores.items()
        },
    }


def _loop_samples(parts: Parts) -> dict[str, Samples]:
    on_core_ns, queued_ns = parts.lag.core_times()
    return {
        "flexkv_request_errors_total": _labelled({**dict.fromkeys(ErrorCode, 0), **parts.server.failures}),
        "flexkv_connections": {(): parts.server.connections},
        "flexkv_arena_populated_bytes": {(): parts.arena.populated_bytes},
        "flexkv_arena_pinned_bytes": {(): parts.pinning.pinned_bytes},
        "flexkv_events_total": {(): parts.engine.events},
        "flexkv_loop_cpu_seconds_total": {(): on_core_ns / 1e9},
        "flexkv_loop_queued_seconds_total": {(): queued_ns / 1e9},
        "flexkv_resets_waiting": {(): parts.resets.outstanding},
        "flexkv_ready": {(): parts.readiness.ready},
        "flexkv_draining": {(): parts.readiness.draining},
        "flexkv_build_info": {(flexkv_py.__version__,): 1},
    }


def _row_samples(parts: Parts) -> dict[str, Samples]:
    readers, traffic = parts.row_path.readers.values(), parts.row_path.traffic
    policy = parts.planner.state.rows.policy
    sparse = policy if isinstance(policy, SparseRows) else None  # the others predict nothing
    return {
        "flexkv_row_readers": {(): len(readers)},
        "flexkv_row_requests": {(): sum(len(reader.attached) for reader in readers)},
        "flexkv_row_pages_total": _labelled(traffic.pages),
        "flexkv_row_messages_total": _labelled(traffic.messages),
        "flexkv_row_sessions_ended_total": _labelled({ErrorCode.ACK_OVERDUE: 0, **traffic.sessions_ended}),
        "flexkv_row_lookups_total": _labelled(traffic.lookups),
        "flexkv_row_predicted_total": _labelled(sparse.predicted) if sparse else {},
        "flexkv_row_came_true_total": _labelled(sparse.came_true) if sparse else {},
    }


def _process_samples(started_s: float) -> dict[str, Samples]:
    used, files_max = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "process_start_time_seconds": {(): started_s},
        "process_cpu_seconds_total": {(): used.ru_utime + used.ru_stime},
        "process_resident_memory_bytes": {(): resident_pages * resource.getpagesize()},
        "process_open_fds": {(): len(os.listdir("/proc/self/fd"))},
        "process_max_fds": {(): files_max},
    }


def _tenant_samples(parts: Parts) -> dict[str, Samples]:
    tenants = parts.usage.tenants
    tenants.elect(parts.engine.now_ns())
    samples: dict[str, dict[tuple[str, ...], float]] = {family.name: {} for family in TENANT_FAMILIES}
    samples["flexkv_tenants"][()] = tenants.known
    _add_room(parts, tenants, samples)
    for tenant, counts in tenants.all():
        for (name, *labels), count in counts.items():
            samples[f"flexkv_tenant_{name}_total"][tenant, *labels] = count
    return dict(samples)


def _add_room(parts: Parts, tenants: TenantCounts, samples: dict[str, dict[tuple[str, ...], float]]) -> None:
    """What tenants' blocks take and may take; those without a name of their own, or found without one, are the rest."""
    used, quotas = samples["flexkv_tenant_used_bytes"], samples["flexkv_tenant_quota_bytes"]
    evicted: dict[tuple[str, str], int] = {}
    tiers = [(tier, tier.name.lower()) for tier in parts.planner.state.levels]
    for owner in parts.planner.state.tenants:
        name = owner.name if isinstance(owner.name, str) else OTHER
        shown = tenants.shown(name)
        for tier, word in tiers:
            used[shown, word] = used.get((shown, word), 0) + owner.shelves[tier].used_bytes
            if owner.evictions[tier]:
                evicted[name, word] = evicted.get((name, word), 0) + owner.evictions[tier]
            if shown != OTHER and owner.quota.bytes_in(tier):
                quotas[shown, word] = owner.quota.bytes_in(tier)
    tenants.follow("evictions", evicted)


def _ssd_samples(parts: Parts) -> dict[str, Samples]:
    store = parts.stores[Tier.SSD][0] if Tier.SSD in parts.stores else None
    if not isinstance(store, WearingStore):
        return {family.name: {} for family in SSD_FAMILIES}
    wear, state = store.wear, parts.planner.state
    spent_bytes = state.levels[Tier.SSD].budget.spent_bytes(parts.engine.now_ns())
    return {
        "flexkv_ssd_written_bytes_total": {("new",): wear.new_bytes, ("reclaim",): wear.rewritten_bytes},
        "flexkv_ssd_write_amplification": {(): wear.window_amplification},
        "flexkv_ssd_budget_bytes_per_day": {(): state.levels[Tier.SSD].budget.bytes_per_day},
        "flexkv_ssd_budget_spent_bytes": {(): spent_bytes},
    }


def _s3_samples(parts: Parts) -> dict[str, Samples]:
    store = parts.stores[Tier.S3][0] if Tier.S3 in parts.stores else None
    if not isinstance(store, RemoteStore):
        return {family.name: {} for family in S3_FAMILIES}
    told: dict[str, Any] = store.requests()
    failed = {name.removeprefix("failed_"): count for name, count in told.items() if name.startswith("failed_")}
    return {
        "flexkv_s3_breaker": {(state,): state == told["breaker"] for state in BREAKER_STATES},
        "flexkv_s3_breaker_opened_total": {(): told["breaker_opened"]},
        "flexkv_s3_rate_limit": {(): told["rate_per_s_max"]},
        "flexkv_s3_retry_tokens": {(): told["retry_tokens"]},
        "flexkv_s3_retries_total": {(): told["retries"]},
        "flexkv_s3_failed_total": _labelled(failed),
        "flexkv_s3_process_deaths_total": {(): told["process_deaths"]},
    }


def _snake(name: str) -> str:
    """The name of a message as a label."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _labelled(counts: Mapping[Any, float]) -> Samples:
    return {(label,): count for label, count in counts.items()}
