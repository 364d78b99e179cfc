"""What a plain LRU cache of one size would have hit on the same requests: the yardstick of a replay.

Requests are served one after another, every block is admitted, the tail of a request is touched first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class LruReference:
    """`capacity_blocks` None: no limit."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self.capacity_blocks = capacity_blocks
        self.blocks = 0
        self.hits = 0
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def ratio(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0

    def serve(self, ids: Sequence[int]) -> None:
        """One request: only the leading run of cached blocks is a hit."""
        cached = self._cached
        self.blocks += len(ids)
        self.hits += next((at for at, block in enumerate(ids) if block not in cached), len(ids))
        for block in reversed(ids):
            cached[block] = None
            cached.move_to_end(block)
            if self.capacity_blocks is not None and len(cached) > self.capacity_blocks:
                cached.popitem(last=False)
