"""Deadlines of what runs, cheap to set and to forget: most are never reached.

A wheel of buckets (Varghese and Lauck, 1987, scheme 6, with a heap in place of the array): one timer of
the loop serves all, where a timer each would cost more than the rest of a small move. Owns nobody's
fate: `links` says what happens to a move that is late.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

GRAIN_S = 0.05
"""How much later than its deadline an item may be told of, the loop's own lag aside."""


class Deadlines(Generic[T]):
    """Calls `late` once for every item whose time is over and that was not removed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[T], None]) -> None:
        self._loop = loop
        self._late = late
        self._buckets: dict[int, set[T]] = {}  # by tick, the first multiple of GRAIN_S not before the deadline
        self._ticks: list[int] = []  # heap of exactly the ticks that have a bucket
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, item: T, due_s: float) -> int:
        """`late(item)` will be called at `due_s` (loop's clock); returns what `remove` wants."""
        tick = -int(-due_s // GRAIN_S)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._set_timer()
        bucket.add(item)
        return tick

    def remove(self, item: T, tick: int) -> None:
        """It has ended. Removing what was late already is no error."""
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.discard(item)

    def close(self) -> None:
        """Call nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._ticks.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ticks:
            self._timer_tick = self._ticks[0]
            self._timer = self._loop.call_at(self._timer_tick * GRAIN_S, self._look)

    def _look(self) -> None:
        self._timer = None
        over = []
        while self._ticks and self._ticks[0] * GRAIN_S <= max(self._loop.time(), self._timer_tick * GRAIN_S):
            over.append(self._buckets.pop(heapq.heappop(self._ticks)))
        self._set_timer()
        for bucket in over:
            for item in bucket:
                self._late(item)
