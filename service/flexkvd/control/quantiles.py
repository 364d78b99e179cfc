"""Quantiles read off histograms: what a person wants to see of how long things took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from flexkvd.durations import DURATION_BOUNDS_S, Durations


def quantiles(of: Iterable[Durations]) -> dict[str, float | None]:
    """The median and the 99th percentile of all entries together, in seconds; None before the first."""
    counts = [sum(counts) for counts in zip(*(each.counts for each in of), strict=True)]
    return {"p50": quantile_s(counts, 0.50), "p99": quantile_s(counts, 0.99)}


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """Seconds that `share` of the entries did not exceed, interpolated within its bucket of DURATION_BOUNDS_S.

    Beyond the last bound all that is known is that bound, and that is what it says.
    """
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    bounds_s = (0.0, *DURATION_BOUNDS_S)
    for bucket, reached in enumerate(accumulate(counts)):
        if reached >= wanted and counts[bucket]:
            if bucket == len(DURATION_BOUNDS_S):
                break
            within = 1 - (reached - wanted) / counts[bucket]
            return round(bounds_s[bucket] + within * (bounds_s[bucket + 1] - bounds_s[bucket]), 7)
    return DURATION_BOUNDS_S[-1]
