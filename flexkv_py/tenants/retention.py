"""How long blocks are kept at most, where a save said so.

Owns the times, nothing else: `handlers` drops what is due. Blocks are held by seconds, so that keeping, forgetting
and finding what is due are O(1), and a block that leaves by itself leaves nothing here.
"""

from __future__ import annotations

import heapq

from flexkv_py.core.blocks import Block

SECOND_NS = 1_000_000_000
"""A block is dropped at the end of the second its time ends in."""
FOREVER = 0


class Retention:
    """When each block's time ends; blocks without an end are not here."""

    def __init__(self) -> None:
        self.seconds: dict[Block, int] = {}  # in which each ends
        self._due: dict[int, dict[Block, None]] = {}
        self._order: list[int] = []  # the seconds of `_due`, a heap; some of them may be empty

    def until_ns(self, block: Block) -> int:
        """When the block's time ends; 0 = never."""
        return self.seconds.get(block, FOREVER) * SECOND_NS

    def keep(self, block: Block, until_ns: int) -> None:
        """Keep it until then, 0 = without an end, instead of what was said before."""
        self.forget(block)
        if until_ns:
            self._enter(block, -(-until_ns // SECOND_NS))

    def keep_longer(self, block: Block, until_ns: int) -> None:
        """Somebody saved it again: the longest time that anybody asked for counts."""
        known = self.seconds.get(block, FOREVER)
        if known and (not until_ns or until_ns > known * SECOND_NS):
            self.keep(block, until_ns)

    def forget(self, block: Block) -> None:
        """The block is gone, or has no end any more."""
        second = self.seconds.pop(block, FOREVER)
        if second:
            del self._due[second][block]

    def next_ns(self) -> int | None:
        """When something is due next."""
        while self._order and not self._due[self._order[0]]:
            del self._due[heapq.heappop(self._order)]
        return self._order[0] * SECOND_NS if self._order else None

    def take(self, now_ns: int) -> Block | None:
        """A block whose time has ended; it is forgotten here."""
        next_ns = self.next_ns()
        if next_ns is None or next_ns > now_ns:
            return None
        block = next(iter(self._due[self._order[0]]))
        self.forget(block)
        return block

    def _enter(self, block: Block, second: int) -> None:
        self.seconds[block] = second
        if second not in self._due:
            self._due[second] = {}
            heapq.heappush(self._order, second)
        self._due[second][block] = None
