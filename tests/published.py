"""The published traces, where they are at hand, and an LRU cache in its plainest form to judge by.

FLEXKV_TRACES names the folder that holds them (default: `shared/traces` beside the repository).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

TRACES = Path(os.environ.get("FLEXKV_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
MOONCAKE = TRACES / "mooncake_conversation.jsonl.gz"
WEKA = TRACES / "weka_agentic_a.jsonl.gz"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not on this machine")


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
