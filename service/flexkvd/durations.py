"""How long things took, counted in buckets on the hot path and shown by `metrics`.

Owns counts only: no clock, no names. An entry costs a bisection and three additions.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

DURATION_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Durations:
    """A histogram: `counts[i]` are above bound i-1 and not above bound i of DURATION_BOUNDS_S, the last above all."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """How many are not above each bound, as Prometheus wants it; the last bound is `+Inf`."""
        bounds = [*(str(bound) for bound in DURATION_BOUNDS_S), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))
