"""What a run over the row path showed: its figures, what is missing, and its tables.

Pure arithmetic over results. Called by `rows_run` and `run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from demo.messages import DecodeOrder, DecodeResult

_WINDOWS = (1, 8, 32)
_LAGS = (1, 8)


@dataclass
class RowsCase:
    """One kind of weights: the same requests all-resident and over the row path."""

    weights: str
    order: DecodeOrder
    kv_bytes: int
    """Of the running requests, at their full length."""
    hbm_bytes: int
    dram_bytes: int
    resident: DecodeResult | None = None
    tiered: DecodeResult | None = None
    link_bytes: dict[str, int] = field(default_factory=dict)

    def results(self) -> tuple[DecodeResult, DecodeResult]:
        assert self.resident is not None
        assert self.tiered is not None
        return self.resident, self.tiered

    def complaints(self) -> list[str]:
        """What this case should have shown and did not."""
        resident, tiered = self.results()
        found = []
        for number, tokens in enumerate(resident.tokens):
            if tiered.tokens[number] != tokens:
                found.append(f"request {number}: other tokens than all-resident")
            elif tiered.logits_digests[number] != resident.logits_digests[number]:
                found.append(f"request {number}: the same tokens from other logits")
        if not tiered.absent:
            found.append("no row was ever absent, so nothing was shown of replays")
        if tiered.running_most < self.order.count:
            found.append(f"only {tiered.running_most} of {self.order.count} requests decoded at once")
        return [f"{self.weights} weights: {complaint}" for complaint in found]

    def figures(self) -> dict[str, Any]:
        """Everything measured, for the JSON file."""
        resident, tiered = self.results()
        return {
            "weights": self.weights,
            "order": msgspec.to_builtins(self.order),
            "kv_bytes": self.kv_bytes,
            "hbm_bytes": self.hbm_bytes,
            "dram_bytes": self.dram_bytes,
            "resident": msgspec.to_builtins(resident, str_keys=True),
            "tiered": msgspec.to_builtins(tiered, str_keys=True),
            "link_bytes": self.link_bytes,
        }


def verdict(cases: Sequence[RowsCase]) -> list[str]:
    """What the run should have shown and did not; empty when all is well."""
    return [complaint for case in cases for complaint in case.complaints()]


def tables_of(cases: Sequence[RowsCase]) -> list[Table]:
    """A column per kind of weights."""
    tables = []
    for title, rows in (
        ("Selections, all-resident", _selections),
        ("Over the row path", _row_path),
        ("MiB moved, by the daemon's own count", _links),
    ):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        table.add_column("")
        for case in cases:
            table.add_column(case.weights, justify="right")
        for names in zip(*(rows(case) for case in cases), strict=True):
            table.add_row(names[0][0], *(value for _, value in names))
        tables.append(table)
    return tables


def _selections(case: RowsCase) -> list[tuple[str, str]]:
    resident, _ = case.results()
    overlaps = [(f"overlap at lag {lag}", f"{resident.overlaps.get(lag, 0):.2f}") for lag in _LAGS]
    touched = [
        (f"share of pages touched in {window} steps", f"{resident.pages_touched.get(window, 0):.0%}")
        for window in _WINDOWS
        if window in resident.pages_touched
    ]
    return overlaps + touched


def _row_path(case: RowsCase) -> list[tuple[str, str]]:
    resident, tiered = case.results()
    same = tiered.tokens == resident.tokens and tiered.logits_digests == resident.logits_digests
    came = tiered.on_demand + tiered.ahead
    return [
        ("requests at once", str(tiered.running_most)),
        ("KV of these, MiB", f"{case.kv_bytes / 2**20:.1f}"),
        ("HBM and DRAM, MiB", f"{case.hbm_bytes / 2**20:.1f} and {case.dram_bytes / 2**20:.1f}"),
        ("tokens and logits identical", "yes" if same else "NO"),
        ("steps, requests in each on average", f"{tiered.steps}, {tiered.turns / max(tiered.steps, 1):.1f}"),
        ("rows found in hot buffers", f"{tiered.hits / max(tiered.hits + tiered.misses, 1):.0%}"),
        ("MiB of rows copied from DRAM", f"{tiered.row_bytes / 2**20:.1f}"),
        ("rows fetched before they were wanted", str(tiered.warmed)),
        ("requests that became resident", str(tiered.widened)),
        ("absent pages", str(tiered.absent)),
        ("replays, requests handed back", f"{tiered.replays}, {tiered.handed_back}"),
        ("pages taken away", str(tiered.revoked)),
        ("pages that came back", str(came)),
        ("of these ahead of need", f"{tiered.ahead} ({tiered.ahead / max(came, 1):.0%})"),
        ("of these selected from", str(tiered.ahead_used)),
    ]


def _links(case: RowsCase) -> list[tuple[str, str]]:
    return [(link.replace("_", "→"), f"{count / 2**20:.1f}") for link, count in sorted(case.link_bytes.items())]
