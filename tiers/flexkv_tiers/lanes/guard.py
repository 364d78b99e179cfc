"""Keeps copies of devices off a segment of the arena for the moment in which it is un-pinned.

Knows which tasks run, not what they copy; a task that touches the held segment waits here, and goes on when
it is let through. Used by `lanes.by_device`; held by whoever un-pins. All on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flexkv_py.core.messages import Fault
from flexkv_tiers.lanes.base import Copied, CopyTask
from flexkv_tiers.memory.worker import WorkerMemory

Start = Callable[[Copied], None]
"""Begins a task on its lanes, which call back when it has ended."""


class SegmentGuard:
    """`units`: how many frame numbers a segment has. At most one segment is held at a time."""

    def __init__(self, units: int) -> None:
        self.on_ended: Callable[[], None] = lambda: None  # a task has: it uses its segments no more
        self._units = units
        self._running: dict[int, CopyTask] = {}
        self._known: dict[int, set[int]] = {}  # segments of running tasks that were asked about
        self._held: int | None = None
        self._waiting: list[tuple[CopyTask, Start, Copied]] = []
        self._let_through: list[asyncio.Future[None]] = []

    def start(self, task: CopyTask, start: Start, copied: Copied) -> None:
        """Begin it now, or when the segment it touches is held no more."""
        if self._held is not None and self._held in self._segments(task):
            self._waiting.append((task, start, copied))
            return
        self._running[id(task)] = task
        start(partial(self._ended, task, copied))

    def used(self) -> set[int]:
        """Segments that running tasks touch. Looks at every frame of theirs once: for questions that are rare."""
        for number in self._running.keys() - self._known.keys():
            self._known[number] = self._segments(self._running[number])
        return set().union(*self._known.values())

    def hold(self, segment: int) -> None:
        """From now on no task touches it; none may be running that does."""
        assert self._held is None
        self._held = segment

    def let_through(self) -> None:
        """Begin what waited for the held segment."""
        self._held = None
        waiting, self._waiting = self._waiting, []
        for task, start, copied in waiting:
            self.start(task, start, copied)
        futures, self._let_through = self._let_through, []
        for each in futures:
            if not each.done():  # who waited may have been cancelled
                each.set_result(None)

    def waiting(self, memory: WorkerMemory) -> int:
        """How many tasks of this memory have not begun."""
        return sum(task.memory is memory for task, _, _ in self._waiting)

    async def begun(self, memory: WorkerMemory) -> None:
        """Return once every task of this memory has begun."""
        while self.waiting(memory):
            self._let_through.append(asyncio.get_running_loop().create_future())
            await self._let_through[-1]

    def close(self) -> None:
        """What waits is not copied any more. Idempotent."""
        waiting, self._waiting = self._waiting, []
        for task, _, copied in waiting:
            copied([Fault.DOWN] * len(task.frames))

    def _segments(self, task: CopyTask) -> set[int]:
        return {frames[chunk] // self._units for frames in task.frames for chunk in task.chunks}

    def _ended(self, task: CopyTask, copied: Copied, faults: list[Fault | None]) -> None:
        del self._running[id(task)]
        self._known.pop(id(task), None)
        copied(faults)
        self.on_ended()
