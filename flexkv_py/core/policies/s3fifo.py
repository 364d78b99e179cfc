"""S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

New blocks pass through a small queue and leave the cache from there unless they are used again; the main
queue gives used ones another round. The ghost queue is the planner's history: a block saved again has
its earlier uses. One difference: a copy that is read leaves its queue and returns at the young end,
for the planner takes out what is pinned.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Copy, CopyList

SMALL_SHARE = 0.1
ROUNDS_MAX = 3
ROTATIONS_PER_CALL_MAX = 64
USES_OF_MAIN_MIN = 2


class SmallMainFifo:
    """`mark` is how many of the block's uses no longer count: the rest are further rounds, at most three."""

    def __init__(self) -> None:
        self._cold = CopyList()
        self._small = CopyList()
        self._main = CopyList()

    @property
    def count(self) -> int:
        return self._cold.count + self._small.count + self._main.count

    def add(self, copy: Copy) -> None:
        uses = copy.block.uses
        if not copy.mark:
            copy.mark = uses
        (self._main if uses >= USES_OF_MAIN_MIN else self._small).push_newest(copy)

    def cool(self, copy: Copy) -> None:
        self._cold.push_oldest(copy)

    def remove(self, copy: Copy) -> None:
        assert copy.queue is not None
        copy.queue.remove(copy)

    def coldest(self) -> Copy | None:
        if self._cold.oldest is not None:
            return self._cold.oldest
        if self._small.count > SMALL_SHARE * self.count or self._main.oldest is None:
            return self._small.oldest
        for _ in range(ROTATIONS_PER_CALL_MAX):  # each round was earned by a use, so this is O(1) per use
            copy = self._main.oldest
            rounds = min(copy.block.uses - copy.mark, ROUNDS_MAX)
            if rounds <= 0:
                break
            copy.mark = copy.block.uses - rounds + 1
            self._main.remove(copy)
            self._main.push_newest(copy)
        return self._main.oldest
