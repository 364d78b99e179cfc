"""One measured figure beside its bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def row(name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """A row of the table; without `most` and `least` it is a figure for comparison, always ok."""
    bar = f"≤ {most:g}" if most is not None else f"≥ {least:g}" if least is not None else ""
    ok = (most is None or value <= most) and (least is None or value >= least)
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
