"""S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

New blocks pass through a small queue and leave the cache from there unless they are used again; the main
queue gives used ones another round. The ghost queue is the planner's history: a block saved again has
its earlier uses. One difference: a copy that is read leaves its queue and returns at the young end,
for the planner takes out what is pinned.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Copy
from flexkv_py.core.policies.base import NEW_MIN, Policy

SMALL_SHARE = 0.1
ROUNDS_MAX = 3
ROTATIONS_PER_CALL_MAX = 64


class SmallMainFifo(Policy):
    """Small queue: `once`, main queue: `again`. `mark` is how many of a block's uses are spent; the rest are rounds."""

    def add(self, copy: Copy) -> None:
        copy.mark = copy.mark or copy.block.uses
        super().add(copy)

    def coldest(self) -> Copy | None:
        main = self.again
        if self.cold.oldest is not None:
            return self.cold.oldest
        if self.once.count > max(NEW_MIN, SMALL_SHARE * self.count) or main.oldest is None:
            return self.once.oldest
        for _ in range(ROTATIONS_PER_CALL_MAX):  # each round was earned by a use, so this is O(1) per use
            copy = main.oldest
            rounds = min(copy.block.uses - copy.mark, ROUNDS_MAX)
            if rounds <= 0:
                break
            copy.mark = copy.block.uses - rounds + 1
            main.remove(copy)
            main.push_newest(copy)
        return main.oldest
