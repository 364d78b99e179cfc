"""Numbers for Prometheus: a documented list of families, filled from what the parts count already.

Owns names and help texts; counts only latencies itself. Values are read when asked for, so nothing
on the hot path knows of metrics. `api` serves the text; documentation is tested against `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flexkv_py.core.messages import TicketKind

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


@dataclass(frozen=True)
class Family:
    """One metric: `labels` are the label names; a counter's name ends in `_total`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("flexkv_planner_total", "counter", "What the planner counts.", ("what", "label")),
    Family("flexkv_link_bytes_total", "counter", "Bytes moved over a link.", ("link",)),
    Family("flexkv_link_faults_total", "counter", "Transfers that failed, by link and fault.", ("link", "fault")),
    Family("flexkv_link_waiting", "gauge", "Moves that wait for their turn on a link.", ("link",)),
    Family("flexkv_link_running", "gauge", "Moves that run on a link.", ("link",)),
    Family("flexkv_request_errors_total", "counter", "Coded errors sent to workers.", ("code",)),
    Family("flexkv_state", "gauge", "What the planner holds now: blocks, bytes, leases … by name.", ("what",)),
    Family("flexkv_sessions", "gauge", "Connected clients."),
    Family("flexkv_arena_bytes", "gauge", "Size of the DRAM arena."),
    Family("flexkv_arena_populated_bytes", "gauge", "How much of the arena is populated."),
    Family("flexkv_events_total", "counter", "Events the planner handled."),
    Family("flexkv_ready", "gauge", "1 when /readyz answers 200."),
    Family("flexkv_ticket_seconds", "histogram", "Time from a ticket's opening to its end.", ("kind",)),
    Family("flexkv_loop_lag_seconds", "histogram", "How late the event loop runs a timer."),
)

Samples = Mapping[Any, float]
"""Values by a tuple of label values."""


class Source(Protocol):
    """Where the values come from: samples by label values, for every family but the histograms."""

    def samples(self) -> Mapping[str, Samples]: ...


class Metrics(Collector):
    """The daemon's registry."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(self)
        helps = {family.name: family.help for family in FAMILIES}
        self._tickets = {
            kind: histogram
            for histograms in [
                Histogram(
                    "flexkv_ticket_seconds",
                    helps["flexkv_ticket_seconds"],
                    ("kind",),
                    buckets=LATENCY_BUCKETS_S,
                    registry=self._registry,
                )
            ]
            for kind, histogram in ((kind, histograms.labels(kind.value)) for kind in TicketKind)
        }
        self._lag = Histogram(
            "flexkv_loop_lag_seconds", helps["flexkv_loop_lag_seconds"], buckets=LAG_BUCKETS_S, registry=self._registry
        )

    def ticket_ended(self, kind: TicketKind, seconds: float) -> None:
        self._tickets[kind].observe(seconds)

    def loop_lagged(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def text(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would collect before the daemon is put together

    def collect(self) -> Iterator[Metric]:
        samples = self._source.samples()
        for family in FAMILIES:
            if family.kind == "histogram":
                continue
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.help, labels=family.labels)
            for labels, value in samples[family.name].items():
                metric.add_metric(labels, value)
            yield metric
