"""Least recently used: one list."""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.core.blocks import Copy, CopyList


class LeastRecentlyUsed:
    """Evicts what was used longest ago. Every operation is O(1)."""

    def __init__(self) -> None:
        self._order = CopyList()

    @property
    def count(self) -> int:
        return self._order.count

    @property
    def lists(self) -> Sequence[CopyList]:
        return (self._order,)

    def add(self, copy: Copy) -> None:
        self._order.push_newest(copy)

    def cool(self, copy: Copy) -> None:
        self._order.push_oldest(copy)

    def remove(self, copy: Copy) -> None:
        self._order.remove(copy)

    def coldest(self) -> Copy | None:
        return self._order.oldest
