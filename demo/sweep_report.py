"""What a sweep over concurrency showed: rates, what is missing, the table and the plot.

Pure arithmetic over results, a rich table and a PNG of it. Called by `sweep` and `run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from demo.messages import DecodeResult

BELOW_MIN = 0.92
"""Tiered against all-resident while that one has room for every request."""

FLAT_MAX = 1.15
"""All-resident with all requests against itself where its pool is full: more than this is no saturation."""

GROWS_MIN = 1.25
"""Tiered with all requests against all-resident with all."""


@dataclass(frozen=True)
class Point:
    """`count` requests at once, both ways, each run several times: what others do to a machine only ever slows it."""

    count: int
    is_full: bool
    """The all-resident pool has room for no further request."""
    dense_runs: Sequence[DecodeResult]
    tiered_runs: Sequence[DecodeResult]

    @property
    def dense(self) -> DecodeResult:
        """The fastest run."""
        return min(self.dense_runs, key=lambda run: run.busy_s)

    @property
    def tiered(self) -> DecodeResult:
        return min(self.tiered_runs, key=lambda run: run.busy_s)

    @property
    def ratio(self) -> float:
        return rate(self.tiered) / rate(self.dense)


def rate(result: DecodeResult) -> float:
    """Generated tokens per busy second: on a core of its own, admissions aside."""
    return sum(map(len, result.tokens)) / result.busy_s


def wall_rate(result: DecodeResult) -> float:
    """Generated tokens per second of wall time, from the first admission to the last token."""
    return sum(map(len, result.tokens)) / result.wall_s


def verdict(points: Sequence[Point]) -> list[str]:
    """What the sweep should have shown and did not; empty when all is well."""
    most = points[-1]
    found = []
    for point in points:
        for which, runs in (("all-resident", point.dense_runs), ("tiered", point.tiered_runs)):
            logits, tokens = most.dense.logits_digests[: point.count], most.dense.tokens[: point.count]
            if any(run.logits_digests != logits or run.tokens != tokens for run in runs):
                found.append(f"{point.count} at once, {which}: other tokens or logits than with {most.count} at once")
        if not point.is_full and point.ratio < BELOW_MIN:
            found.append(f"{point.count} at once: tiered reaches {point.ratio:.0%} of all-resident, below saturation")
    full = [point for point in points if point.is_full]
    first = rate(full[0].dense)
    if full[0].dense.running_most < full[0].count or most.dense.running_most == most.count:
        found.append(f"the all-resident pool is not full at {full[0].count}")
    if rate(most.dense) > FLAT_MAX * first:
        found.append(f"all-resident still grows at {most.count}: {rate(most.dense):.0f} after {first:.0f} tokens/s")
    tiered = [rate(point.tiered) for point in full]
    if tiered != sorted(tiered) or most.ratio < GROWS_MIN:
        found.append(f"tiered does not grow on: {', '.join(f'{one:.0f}' for one in tiered)} tokens/s")
    return found


def figures(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Everything measured, for the JSON file."""
    return [
        {
            "count": point.count,
            "dense": msgspec.to_builtins(point.dense_runs, str_keys=True),
            "tiered": msgspec.to_builtins(point.tiered_runs, str_keys=True),
        }
        for point in points
    ]


def table_of(points: Sequence[Point]) -> Table:
    """A row per count."""
    title = "Generated tokens/s per busy second of the decoding thread (wall time), fastest run"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("requests", "all-resident", "run at once", "tiered", "run at once", "of these hot", "ratio"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            str(point.count),
            f"{rate(point.dense):.0f} ({wall_rate(point.dense):.0f})",
            str(point.dense.running_most),
            f"{rate(point.tiered):.0f} ({wall_rate(point.tiered):.0f})",
            str(point.tiered.running_most),
            str(point.tiered.admissions.get("hot", 0)),
            f"{point.ratio:.2f}",
        )
    return table


def plot(points: Sequence[Point], path: Path) -> None:
    """Both rates over requests at once, as a PNG."""
    # Imported here: it takes a second, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    counts = [point.count for point in points]
    for name, marker, results in (
        ("all-resident", "s", [point.dense for point in points]),
        ("tiered", "o", [point.tiered for point in points]),
    ):
        axes.plot(counts, [rate(result) for result in results], marker=marker, label=name)
    full = next(point.count for point in points if point.is_full)
    axes.axvline(full, linestyle=":", color="grey")
    axes.annotate(f" HBM holds {full} requests:\n the others wait", (full, 0), va="bottom", color="grey")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests at once")
    axes.set_ylabel("generated tokens per busy second")
    axes.legend()
    figure.savefig(path)
