"""Links between DRAM and the tiers below: who goes next, and how many at a time.

Owns the order of waiting moves; knows nothing of what a move does. Its queue is bounded by the planner,
which gives out a limited number of moves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from flexkv_py.core.messages import Priority

Work = Callable[[], Coroutine[Any, Any, None]]


class Link:
    """Runs work in order of priority, then of arrival; at most `in_flight_max` at a time."""

    def __init__(self, name: str, in_flight_max: int, loop: asyncio.AbstractEventLoop) -> None:
        assert in_flight_max > 0
        self.name = name
        self._in_flight_max = in_flight_max
        self._loop = loop
        self._waiting: list[tuple[Priority, int, Work]] = []
        self._order = itertools.count()
        self._running: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """What runs now; there is some as long as anything waits."""
        return frozenset(self._running)

    def submit(self, priority: Priority, work: Work) -> None:
        """Run `work()` as soon as its turn comes. It must not raise."""
        heapq.heappush(self._waiting, (priority, next(self._order), work))
        self._start_next()

    def close(self) -> None:
        """Forget what waits; what runs goes on to its end."""
        self._waiting.clear()

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < self._in_flight_max:
            _, _, work = heapq.heappop(self._waiting)
            task = self._loop.create_task(work(), name=self.name)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.result()
        self._start_next()
