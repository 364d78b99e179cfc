"""Least recently used: everything in the one list of blocks used once, however often they were."""

from __future__ import annotations

from flexkv_py.core.blocks import Copy
from flexkv_py.core.policies.base import Policy


class LeastRecentlyUsed(Policy):
    """Evicts what was used longest ago. Every operation is O(1)."""

    def add(self, copy: Copy) -> None:
        self.once.push_newest(copy)

    def coldest(self) -> Copy | None:
        return self.cold.oldest or self.once.oldest
