"""Rates and ratios out of the daemon's samples, which hold running totals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

RATE_S = 5.0
"""Rates are means over the last so many seconds: calm enough to read, quick enough to see a change."""
RATIO_S = 60.0
LEVELS = "▁▂▃▄▅▆▇█"

Sample = Mapping[str, Any]


class Rates:
    """Differences between the newest sample and one some seconds older; None where there are not two."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        """`samples`: oldest first, one a second, of one life of the daemon."""
        self._samples = samples

    def per_s(self, *path: str) -> float | None:
        """Growth per second of the total at `path`, as ("links", "dram_ssd", "bytes")."""
        old, new = self._pair(RATE_S)
        if old is None or new is None or new["t"] <= old["t"]:
            return None
        return max(0.0, total(new, path) - total(old, path)) / float(new["t"] - old["t"])

    def hit_ratio(self) -> float | None:
        """Of the blocks asked for by match in the last minute; None when nobody asked."""
        old, new = self._pair(RATIO_S)
        return None if old is None or new is None else _ratio(old, new)

    def ratio_line(self, cells: int) -> str:
        """Hit ratio over the whole history, one cell for each part of it; a blank where nobody asked."""
        return "".join(" " if ratio is None else level(ratio) for ratio in self._parts(cells, _ratio)).rjust(cells)

    def rate_line(self, path: Sequence[str], cells: int) -> str:
        """Growth of a total over the whole history, each cell relative to the highest."""
        grown = [part or 0.0 for part in self._parts(cells, lambda old, new: total(new, path) - total(old, path))]
        highest = max(grown, default=0.0)
        return "".join(level(part / highest) if part > 0 else " " for part in grown).rjust(cells)

    def _parts(self, cells: int, measure: Any) -> list[float | None]:
        count = len(self._samples)
        if count < 2 or cells < 1:
            return []
        used = min(cells, count - 1)
        edges = [round(position * (count - 1) / used) for position in range(used + 1)]
        return [measure(self._samples[old], self._samples[new]) for old, new in pairwise(edges)]

    def _pair(self, span_s: float) -> tuple[Sample | None, Sample | None]:
        if len(self._samples) < 2:
            return None, None
        new = self._samples[-1]
        old = next((each for each in reversed(self._samples[:-1]) if new["t"] - each["t"] >= span_s), self._samples[0])
        return old, new


def total(sample: Sample, path: Sequence[str]) -> float:
    """The number at `path`; 0 where the daemon has no such thing."""
    found: Any = sample
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found or 0)


def level(share: float) -> str:
    """A block character for a share from 0 to 1."""
    return LEVELS[min(len(LEVELS) - 1, max(0, int(share * len(LEVELS))))]


def _ratio(old: Sample, new: Sample) -> float | None:
    hit, miss = (total(new, ("matched", name)) - total(old, ("matched", name)) for name in ("hit", "miss"))
    return hit / (hit + miss) if hit + miss > 0 else None
