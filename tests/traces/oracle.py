"""An LRU cache in its plainest form, to judge readers and planner by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


def lru_hit_ratio(requests: Iterable[Sequence[int]], capacity_blocks: int | None) -> float:
    """Share of listed ids that were in the leading run of cached ids; tail touched first."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for ids in requests:
        total += len(ids)
        for block in ids:
            if block not in cached:
                break
            hits += 1
        for block in reversed(ids):
            cached[block] = None
            cached.move_to_end(block)
            if capacity_blocks is not None and len(cached) > capacity_blocks:
                cached.popitem(last=False)
    return hits / total
