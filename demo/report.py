"""What a run showed: figures per phase, what is missing, the table and the JSON file.

Pure arithmetic over results and a rich table of it. Called by `run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles

from rich.box import SIMPLE_HEAD
from rich.table import Table

from demo.messages import WorkResult

TIERS = ("dram", "ssd", "s3")


@dataclass
class Served:
    """One call with the daemon beside the same call without it."""

    session: int
    number: int
    result: WorkResult
    reference: WorkResult

    @property
    def tokens_identical(self) -> bool:
        return self.result.tokens == self.reference.tokens

    @property
    def logits_identical(self) -> bool:
        return self.result.logits_digest == self.reference.logits_digest


@dataclass
class Phase:
    """One phase: what it served, how long it took, what moved."""

    name: str
    wanted_tiers: tuple[str, ...] = ()
    """Tiers that must have served blocks, or the phase has not shown what it is for."""
    is_warm: bool = False
    """It finds most of its blocks cached, and counts for the verdict on TTFT."""
    must_meet_errors: bool = False
    """The daemon dies in it: some call must have met that."""
    served: list[Served] = field(default_factory=list)
    wall_s: float = 0.0
    reference_wall_s: float = 0.0
    link_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return sum(one.result.blocks for one in self.served)

    @property
    def hits(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in self.served:
            total.update(one.result.hits)
        return total

    @property
    def errors(self) -> Counter[str]:
        return Counter(code for one in self.served for code in one.result.errors)

    def ttft_ms(self, *, with_daemon: bool) -> tuple[float, float]:
        """p50 and p95 of the time to first token."""
        times = [(one.result if with_daemon else one.reference).ttft_s * 1e3 for one in self.served]
        return percentile(times, 50), percentile(times, 95)

    def tokens_per_s(self, *, with_daemon: bool) -> float:
        """Generated tokens per second of wall time, all workers together."""
        count = sum(len(one.result.tokens) for one in self.served)
        return count / (self.wall_s if with_daemon else self.reference_wall_s)

    def complaints(self) -> list[str]:
        """What this phase should have shown and did not; empty when all is well."""
        found = []
        for one in self.served:
            if not one.tokens_identical:
                found.append(f"session {one.session} turn {one.number}: other tokens than without the daemon")
            elif not one.logits_identical:
                found.append(f"session {one.session} turn {one.number}: the same tokens from other logits")
        hits = self.hits
        found += [f"no block was served from {tier}" for tier in self.wanted_tiers if not hits[tier]]
        if self.must_meet_errors and not self.errors:
            found.append("no call noticed that the daemon had died")
        return [f"{self.name}: {complaint}" for complaint in found]

    def figures(self) -> dict[str, object]:
        """Everything measured, for the JSON file."""
        return {
            "phase": self.name,
            "requests": len(self.served),
            "ttft_ms_p50_p95": self.ttft_ms(with_daemon=True),
            "ttft_ms_p50_p95_without": self.ttft_ms(with_daemon=False),
            "tokens_per_s": self.tokens_per_s(with_daemon=True),
            "tokens_per_s_without": self.tokens_per_s(with_daemon=False),
            "blocks": self.blocks,
            "hit_blocks": dict(self.hits),
            "link_bytes": self.link_bytes,
            "recomputed": sum(one.result.recomputed for one in self.served),
            "errors": dict(self.errors),
            "tokens_identical": all(one.tokens_identical for one in self.served),
            "logits_identical": all(one.logits_identical for one in self.served),
            "served": [asdict(one) for one in _brief(self.served)],
        }


def verdict(phases: Sequence[Phase]) -> list[str]:
    """What the run should have shown and did not; empty when all is well."""
    found = [complaint for phase in phases for complaint in phase.complaints()]
    warm = [one for phase in phases if phase.is_warm for one in phase.served]
    with_daemon = median(one.result.ttft_s for one in warm)
    without = median(one.reference.ttft_s for one in warm)
    if with_daemon >= without:
        found.append(f"warm phases: median TTFT is {with_daemon:.3f} s with the daemon, {without:.3f} s without it")
    return found


@dataclass
class _Brief:
    session: int
    number: int
    ttft_ms: float
    ttft_ms_without: float
    blocks: int
    hits: dict[str, int]


def _brief(served: Sequence[Served]) -> list[_Brief]:
    return [
        _Brief(
            one.session,
            one.number,
            one.result.ttft_s * 1e3,
            one.reference.ttft_s * 1e3,
            one.result.blocks,
            one.result.hits,
        )
        for one in served
    ]


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation; of one value, that value."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def table_of(phases: Sequence[Phase]) -> Table:
    """A row per phase; figures of the run without the daemon are in brackets."""
    table = Table(title="With the daemon (without it)", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("phase")
    for name in ("calls", "TTFT p50, ms", "p95, ms", "tokens/s", *(f"{tier} hits" for tier in TIERS)):
        table.add_column(name, justify="right")
    table.add_column("identical")
    for phase in phases:
        times = zip(phase.ttft_ms(with_daemon=True), phase.ttft_ms(with_daemon=False), strict=True)
        rates = phase.tokens_per_s(with_daemon=True), phase.tokens_per_s(with_daemon=False)
        identical = all(one.tokens_identical and one.logits_identical for one in phase.served)
        table.add_row(
            phase.name,
            str(len(phase.served)),
            *(f"{with_daemon:.0f} ({without:.0f})" for with_daemon, without in times),
            f"{rates[0]:.0f} ({rates[1]:.0f})",
            *(f"{phase.hits[tier] / max(phase.blocks, 1):.0%}" for tier in TIERS),
            "[green]yes[/]" if identical else "[bold red]NO[/]",
        )
    return table


def link_table_of(phases: Sequence[Phase]) -> Table:
    """A row per phase, a column per link, MiB."""
    links = sorted({link for phase in phases for link, count in phase.link_bytes.items() if count})
    table = Table(title="MiB moved, by the daemon's own count", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("phase")
    for link in links:
        table.add_column(link.replace("_", "→"), justify="right")
    for phase in phases:
        table.add_row(phase.name, *(f"{phase.link_bytes.get(link, 0) / 2**20:.1f}" for link in links))
    return table
