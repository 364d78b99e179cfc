"""Who goes next to the disk: a waiting load first, and never behind more than one write.

A disk serves what it has been given more or less in order, so a read is delayed by every write that is
under way when it comes. While reads come, writes therefore go one at a time; when they have ceased,
several, of limited bytes. One place is always left to writes, so that reads do not starve them.

Pure bookkeeping, shared by all engines; knows neither threads nor rings. Whoever uses it from several
threads locks it.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

WAITING_MAX = 1 << 16
"""Whoever asks limits what it asks for at a time; more than this is a bug there."""
WRITES_UNTIL_CALM = 4
"""After the last read so many writes go one at a time: a load reads several times, with pauses."""
WRITE_BYTES_MAX = 10 << 20
"""With this much under way no other write begins: what the first read of a load may have to wait for, some 5 ms."""


class Kind(IntEnum):
    """What is asked of the disk, in order of precedence."""

    READ = 0
    SMALL = 1
    """Syncs and small jobs. They count as writes, but may not wait behind writes that wait themselves."""
    WRITE = 2


_READ, _SMALL, _WRITE = Kind
"""Python 3.11 takes 0.1 µs to find a member in its class, and every transfer asks several times."""


class Item(Protocol):
    """What waits."""

    @property
    def kind(self) -> Kind: ...

    @property
    def bytes(self) -> int:
        """Bytes it writes."""
        ...


T = TypeVar("T", bound=Item)


class Lineup(Generic[T]):
    """Waiting items in order, and how many are under way: at most `depth`."""

    def __init__(self, depth: int) -> None:
        assert depth > 0
        self._depth = depth
        self._waiting: tuple[deque[T], deque[T], deque[T]] = (deque(), deque(), deque())
        self._running = [0, 0, 0]
        self._write_bytes = 0  # of the writes under way
        self._caution = 0  # writes that still have to go one at a time

    def add(self, item: T) -> None:
        queue = self._waiting[item.kind]
        assert len(queue) < WAITING_MAX
        queue.append(item)

    def take(self) -> T | None:
        """The next to go, now under way; None when nobody waits or there is no room. `end` gives the place back."""
        kind = self.next()
        if kind is None:
            return None
        item = self._waiting[kind].popleft()
        self._running[kind] += 1
        self._write_bytes += item.bytes
        if kind is _READ:
            self._caution = WRITES_UNTIL_CALM
        return item

    def next(self) -> Kind | None:
        """The kind of what `take` would give."""
        reads, small, writes = self._waiting
        reading, small_running, writes_running = self._running
        writing = small_running + writes_running
        if reading + writing >= self._depth:
            return None
        if reads and (reading < self._depth - 1 or not (reading and (small or writes))):
            return _READ
        if not self._may_write(writing, careful=bool(reads or reading or self._caution)):
            return None
        if small:
            return _SMALL
        return _WRITE if writes else None

    def _may_write(self, writing: int, *, careful: bool) -> bool:
        if not writing:
            return True
        return not careful and writing < self._depth - 1 and self._write_bytes < WRITE_BYTES_MAX

    def end(self, item: T) -> None:
        self._running[item.kind] -= 1
        self._write_bytes -= item.bytes
        assert self._running[item.kind] >= 0
        assert self._write_bytes >= 0
        if item.kind is _WRITE and self._caution and not self._running[_READ]:
            self._caution -= 1

    def waiting(self, kind: Kind) -> int:
        return len(self._waiting[kind])

    def running(self, kind: Kind) -> int:
        return self._running[kind]

    def any(self) -> T | None:
        """One of those that wait."""
        return next((item for queue in self._waiting for item in queue), None)
