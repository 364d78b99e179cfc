"""Lists that copies stand in: an order of eviction is made of some of them. They decide nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexkv_py.core.blocks import Copy


class CopyList:
    """Copies from oldest to newest; every operation is O(1). The links are the copies' own."""

    __slots__ = ("count", "hand", "newest", "oldest", "spare")

    def __init__(self, *, spare: bool = False) -> None:
        self.spare = spare  # what stands here may go at once
        self.count = 0
        self.hand: Copy | None = None  # where somebody stands who walks the list in slices: moves on when that one goes
        self.oldest: Copy | None = None
        self.newest: Copy | None = None

    def push_newest(self, copy: Copy) -> None:
        self._insert(copy, self.newest, None)

    def push_oldest(self, copy: Copy) -> None:
        self._insert(copy, None, self.oldest)

    def _insert(self, copy: Copy, older: Copy | None, newer: Copy | None) -> None:
        assert copy.queue is None
        assert copy.readers == 0
        copy.queue, copy.older, copy.newer = self, older, newer
        if older is None:
            self.oldest = copy
        else:
            older.newer = copy
        if newer is None:
            self.newest = copy
        else:
            newer.older = copy
        self.count += 1

    def remove(self, copy: Copy) -> None:
        assert copy.queue is self
        older, newer = copy.older, copy.newer
        if copy is self.hand:
            self.hand = newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        copy.older = copy.newer = copy.queue = None
        self.count -= 1
