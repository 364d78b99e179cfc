"""How long things took, counted in buckets on the hot path and shown by `metrics`.

Owns counts only: no clock, no names. An entry costs a bisection and two additions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

DURATION_BOUNDS_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)
"""From a copy of one small block to a request that S3 is late with; one size for all, so that they can be compared."""


class Durations:
    """A histogram: `counts[i]` are above bound i-1 and not above bound i of DURATION_BOUNDS_S, the last above all."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """How many are not above each bound, as Prometheus wants it; the last bound is `+Inf`."""
        bounds = [*(f"{bound:g}" for bound in DURATION_BOUNDS_S), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


Timings = defaultdict[tuple[str, ...], Durations]
"""Histograms by the values of their labels; one is made by its first entry."""


def timings() -> Timings:
    """None yet."""
    return defaultdict(Durations)


def quantiles(of: Iterable[Durations]) -> dict[str, float] | None:
    """`p50` and `p99` in seconds of all entries together, interpolated within their bucket; None without any.

    What is above the last bound counts as that bound: read it as "at least".
    """
    counts = [sum(bucket) for bucket in zip(*(each.counts for each in of), strict=True)]
    return {f"p{percent}": _quantile_s(counts, percent / 100) for percent in (50, 99)} if any(counts) else None


def _quantile_s(counts: list[int], share: float) -> float:
    """Seconds that `share` of the entries did not exceed."""
    reached = list(accumulate(counts))
    wanted = share * reached[-1]
    bucket = bisect_left(reached, wanted)
    if bucket == len(DURATION_BOUNDS_S):
        return DURATION_BOUNDS_S[-1]
    low, high = (0.0, *DURATION_BOUNDS_S)[bucket], DURATION_BOUNDS_S[bucket]
    return round(high - (reached[bucket] - wanted) / counts[bucket] * (high - low), 7)
