"""Numbers for Prometheus: a documented list of families, filled from what the parts count already.

Owns names and help texts; counts only latencies itself. Values are read when asked for, so nothing
on the hot path knows of metrics. `api` serves the text; documentation is tested against `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from flexkv_py.core.messages import TicketKind
from flexkvd.durations import Durations

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Family:
    """One metric; a counter's name ends in `_total`. `of` is the planner's own name of what it shows."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    of: str = ""


PLANNER_COUNTERS = tuple(
    Family(f"flexkv_{name}_total", "counter", help_text, (label,), name)
    for name, label, help_text in (
        ("matched_keys", "result", "Keys asked for by match, by hit or miss."),
        ("hits", "tier", "Blocks loaded into a worker, by the tier they came from."),
        ("load_keys", "outcome", "Keys of loads, by outcome."),
        ("save_keys", "outcome", "Keys of saves, by outcome."),
        ("prefetch_keys", "outcome", "Keys of prefetches, by outcome."),
        ("promotions", "tier", "Blocks promoted to DRAM, by the tier they came from."),
        ("demotions", "tier", "Blocks demoted, by the tier they went to."),
        ("evictions", "tier", "Copies evicted, by tier."),
        ("refused_admissions", "rule", "Evictions of blocks that no tier below admitted, by the rule that refused."),
        ("over_budget", "tier", "Blocks written although the tier's daily budget was spent: somebody waited for it."),
        ("found", "tier", "Blocks found at start, or written by other daemons since, by tier."),
        ("found_twice", "tier", "Of these, records of blocks that were known there already, by tier."),
        ("lost", "tier", "Records a tier let go of by itself, or another daemon dropped, by tier."),
        ("given_up", "tier", "Loads cut short early, because a block would have come after the deadline."),
        ("not_staged", "tier", "SSD blocks that a write-behind did not get further down; they stay where they are."),
        ("faults", "what", "Failed transfers, by tier and fault."),
        ("tier_changes", "what", "Times a tier went down or came back."),
        ("replays_refused", "outcome", "Failed steps that were told that their rows will not come, by why."),
        ("refused_requests", "code", "Requests the planner refused, by error code."),
    )
)
TIER_GAUGES = tuple(
    Family(f"flexkv_tier_{name}", "gauge", help_text, ("tier",), name)
    for name, help_text in (
        ("up", "1 when the tier serves."),
        ("used_bytes", "Bytes in use in a tier."),
        ("capacity_bytes", "Room of a tier; 0: no limit of ours."),
        ("evictable_blocks", "Blocks of a tier that nothing pins."),
        ("reclaimable_blocks", "Evictable blocks of a tier that have a copy below."),
        ("writes_in_flight", "Blocks being written into a tier."),
    )
)
PLANNER_GAUGES = tuple(
    Family(f"flexkv_{name}", "gauge", help_text, (), name)
    for name, help_text in (
        ("blocks", "Blocks known, in any tier."),
        ("indexes", "Namespaces and shards known."),
        ("sessions", "Connected clients."),
        ("tickets", "Running loads, saves, prefetches and flushes."),
        ("leases", "Leases held."),
        ("transfers", "Transfers that have not ended."),
        ("promotions_in_flight", "Blocks on their way up."),
        ("loads_waiting", "Blocks to load that wait for room in DRAM."),
        ("saves_waiting", "Blocks to save that wait for room in DRAM."),
        ("demands_waiting", "Blocks that must go down and wait for their turn."),
    )
)
SHELL_FAMILIES = (
    Family("flexkv_link_bytes_total", "counter", "Bytes moved over a link.", ("link",)),
    Family("flexkv_link_faults_total", "counter", "Transfers that failed, by link and fault.", ("link", "fault")),
    Family("flexkv_damaged_at_start_total", "counter", "Damaged records met at start and left out.", ("tier",)),
    Family("flexkv_link_waiting", "gauge", "Moves that wait for their turn on a link.", ("link",)),
    Family("flexkv_link_running", "gauge", "Moves that run on a link.", ("link",)),
    Family("flexkv_link_running_bytes", "gauge", "Bytes of the moves that run on a link.", ("link",)),
    Family(
        "flexkv_link_dropped_total",
        "counter",
        "Moves that were never begun, because their deadline passed while they waited.",
        ("link",),
    ),
    Family("flexkv_request_errors_total", "counter", "Coded errors sent to workers.", ("code",)),
    Family("flexkv_connections", "gauge", "Open connections, greeted or not."),
    Family("flexkv_arena_populated_bytes", "gauge", "How much of the arena is populated."),
    Family("flexkv_events_total", "counter", "Events the planner handled."),
    Family("flexkv_loop_cpu_seconds_total", "counter", "Time the event loop's thread ran on a core."),
    Family("flexkv_loop_queued_seconds_total", "counter", "Time it was ready to run and no core was free."),
    Family("flexkv_row_readers", "gauge", "Sessions that map the arena, closed ones of living processes included."),
    Family("flexkv_row_requests", "gauge", "Requests attached, counted once in each session."),
    Family("flexkv_row_pages_total", "counter", "Chunks granted to workers and revoked from them.", ("change",)),
    Family("flexkv_row_messages_total", "counter", "Acknowledgements and reports of workers.", ("message",)),
    Family("flexkv_row_sessions_ended_total", "counter", "Sessions ended for a promise not kept.", ("code",)),
    Family("flexkv_ready", "gauge", "1 when /readyz answers 200."),
)
S3_FAMILIES = (
    Family("flexkv_s3_breaker", "gauge", "1 for the state the breaker is in.", ("state",)),
    Family("flexkv_s3_breaker_opened_total", "counter", "Times the breaker opened."),
    Family("flexkv_s3_rate_limit", "gauge", "Requests per second after the server asked for fewer; 0: no limit."),
    Family("flexkv_s3_retry_tokens", "gauge", "Retries that all requests together have left."),
    Family("flexkv_s3_retries_total", "counter", "Attempts after the first."),
    Family("flexkv_s3_failed_total", "counter", "Attempts that failed, by what the failure means.", ("trouble",)),
    Family("flexkv_s3_process_deaths_total", "counter", "Byte workers that died."),
)
"""Without samples where there is no S3 tier."""
TICKET_SECONDS = Family("flexkv_ticket_seconds", "histogram", "Time from a ticket's opening to its end.", ("kind",))
DURATIONS = (
    Family("flexkv_link_queue_seconds", "histogram", "Time a move waited for its turn on a link.", ("link",)),
    Family("flexkv_loop_lag_seconds", "histogram", "How late the event loop comes to what is ready."),
)
FAMILIES = (
    *PLANNER_COUNTERS,
    *TIER_GAUGES,
    *PLANNER_GAUGES,
    *SHELL_FAMILIES,
    *S3_FAMILIES,
    TICKET_SECONDS,
    *DURATIONS,
)

Samples = Mapping[Any, float]
"""Values by a tuple of label values."""


class Source(Protocol):
    """Where the values come from, by label values: samples of counters and gauges, and DURATIONS."""

    def samples(self) -> Mapping[str, Samples]: ...

    def durations(self) -> Mapping[str, Mapping[tuple[str, ...], Durations]]: ...


class Metrics(Collector):
    """The daemon's registry."""

    def __init__(self, source: Source) -> None:
        self._source = source
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a start time per series is noise here
        self._registry = CollectorRegistry()
        self._registry.register(self)
        tickets = TICKET_SECONDS
        ticket_seconds = Histogram(
            tickets.name, tickets.help, tickets.labels, buckets=LATENCY_BUCKETS_S, registry=self._registry
        )
        self._ticket_seconds = {kind: ticket_seconds.labels(kind.value) for kind in TicketKind}

    def ticket_ended(self, kind: TicketKind, seconds: float) -> None:
        self._ticket_seconds[kind].observe(seconds)

    def text(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would collect before the daemon is put together

    def collect(self) -> Iterator[Metric]:
        samples = self._source.samples()
        for family in FAMILIES:
            if family.kind != "histogram":
                make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
                metric = make(family.name, family.help, labels=family.labels)
                for labels, value in samples[family.name].items():
                    metric.add_metric(labels, value)
                yield metric
        measured = self._source.durations()
        for family in DURATIONS:
            histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
            for labels, durations in measured[family.name].items():
                histogram.add_metric(labels, durations.cumulative(), durations.total_s)
            yield histogram
