"""Who goes next to the disk: reads first, and never so many writes that a read finds no room.

Pure bookkeeping, shared by all engines; knows neither threads nor rings. Whoever uses it from several
threads locks it.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING_MAX = 1 << 16
"""Whoever asks limits what it asks for at a time; more than this is a bug there."""


class Kind(IntEnum):
    """What is asked of the disk, in order of precedence."""

    READ = 0
    SMALL = 1
    """Syncs and small jobs. They may not wait behind writes that wait themselves."""
    WRITE = 2


def writes_max(depth: int) -> int:
    """Of `depth` places, those that writes, syncs and small jobs may take: the rest is always free for reads."""
    return max(1, depth // 2)


class Lineup(Generic[T]):
    """Waiting items in order, and how many are under way. `depth` places, `writes_max` of them for other than reads."""

    def __init__(self, depth: int) -> None:
        assert depth > 0
        self._depth = depth
        self._writes_max = writes_max(depth)
        self._waiting: tuple[deque[T], deque[T], deque[T]] = (deque(), deque(), deque())
        self._running = [0, 0, 0]

    def add(self, kind: Kind, item: T) -> None:
        queue = self._waiting[kind]
        assert len(queue) < WAITING_MAX
        queue.append(item)

    def take(self) -> tuple[Kind, T] | None:
        """The next to go, now under way; None when nobody waits or there is no room. `end` gives the place back."""
        reads, small, writes = self._waiting
        running = self._running
        others = running[Kind.SMALL] + running[Kind.WRITE]
        if running[Kind.READ] + others >= self._depth:
            return None
        if reads:
            kind = Kind.READ
        elif others >= self._writes_max:
            return None
        elif small:
            kind = Kind.SMALL
        elif writes:
            kind = Kind.WRITE
        else:
            return None
        running[kind] += 1
        return kind, self._waiting[kind].popleft()

    def end(self, kind: Kind) -> None:
        self._running[kind] -= 1
        assert self._running[kind] >= 0

    def waiting(self, kind: Kind) -> int:
        return len(self._waiting[kind])

    def running(self, kind: Kind) -> int:
        return self._running[kind]

    def any(self) -> T | None:
        """One of those that wait."""
        return next((item for queue in self._waiting for item in queue), None)
