"""Links between DRAM and the tiers below: who goes next, how much at a time, and when one is late.

Owns the order of waiting moves and the limits of running ones; knows nothing of what a move does (the
executor carries it). Its queue is bounded by the planner, which gives out a limited number of moves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from flexkv_py.core.messages import Priority, StartMove
from flexkvd.durations import Durations

STARTS_PER_TURN_MAX = 2
"""Moves begun in one turn of the loop. Whoever pings waits for a whole turn, so turns are kept short."""


@dataclass(frozen=True)
class LinkLimits:
    """A move begins while fewer than `count_max` run or less than `bytes_max` is on its way.

    Small blocks are then limited by bytes, large ones by their number. `transfer_s_max` is how long one
    move may take.
    """

    count_max: int
    bytes_max: int
    transfer_s_max: float


@dataclass(slots=True, eq=False)
class Running:
    """A move on its way. `late` is set when it is being stopped because its time is over."""

    move: StartMove
    bytes: int
    begun_ns: int
    due_s: float
    task: asyncio.Task[int]
    late: bool = False


Carry = Callable[[StartMove], Coroutine[Any, Any, int]]
"""Does the move and returns the record's location; a fault is raised."""

Ended = Callable[[StartMove, "asyncio.Task[int] | None", bool], None]
"""Hears of every move's end once: its task, or None when it was never begun; and whether it was late."""


class Link:
    """Carries moves in order of priority, then of arrival, within its limits.

    A move whose deadline passes before its turn is not begun at all. One that has begun runs to its end, or
    to the link's limit: others may want it by then.
    """

    def __init__(
        self,
        name: str,
        limits: LinkLimits,
        carry: Carry,
        ended: Ended,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
    ) -> None:
        assert limits.count_max > 0
        self.name = name
        self.dropped = 0  # moves never begun, because their deadline had passed
        self.running_bytes = 0
        self.queue_time: defaultdict[Priority, Durations] = defaultdict(Durations)
        self.move_time: defaultdict[Priority, Durations] = defaultdict(Durations)  # of those done, or late
        self._limits = limits
        self._carry = carry
        self._tell_ended = ended
        self._loop = loop
        self._now_ns = now_ns
        self._waiting: list[tuple[Priority, int, int, StartMove]] = []  # priority, order, submitted at (ns), move
        self._order = itertools.count()
        self._running: dict[Running, None] = {}  # in the order they began, and so of their ends' limits
        self._timer: asyncio.TimerHandle | None = None  # none is set while nothing runs for long
        self._start_soon = False  # whether `_start_next` runs in the next turn of the loop

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, move: StartMove) -> None:
        """Begin the move as soon as its turn comes, never before this returns."""
        heapq.heappush(self._waiting, (move.priority, next(self._order), self._now_ns(), move))
        self._look_soon()

    def close(self) -> int:
        """Forget what waits, and return how much it was; what runs goes on to its end."""
        count = len(self._waiting)
        self._waiting.clear()
        return count

    def _look_soon(self) -> None:
        if not self._start_soon:
            self._start_soon = True
            self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        self._start_soon = False
        limits = self._limits
        for _ in range(STARTS_PER_TURN_MAX):
            if not self._waiting:
                return
            if len(self._running) >= limits.count_max and self.running_bytes >= limits.bytes_max:
                return
            self._start(*heapq.heappop(self._waiting)[2:])
        if self._waiting:
            self._look_soon()

    def _start(self, submitted_ns: int, move: StartMove) -> None:
        now_ns = self._now_ns()
        self.queue_time[move.priority].add((now_ns - submitted_ns) / 1e9)
        if 0 < move.deadline_ns <= now_ns:
            self.dropped += 1
            self._tell_ended(move, None, True)
            return
        due_s = self._loop.time() + self._limits.transfer_s_max
        running = Running(move, sum(move.chunk_bytes), now_ns, due_s, self._loop.create_task(self._carry(move)))
        running.task.add_done_callback(partial(self._ended, running))
        self._running[running] = None
        self.running_bytes += running.bytes
        if self._timer is None:  # one of the loop's for all: each its own would cost more than the rest of this
            self._timer = self._loop.call_at(due_s, self._look, due_s)

    def _ended(self, running: Running, task: asyncio.Task[int]) -> None:
        del self._running[running]
        self.running_bytes -= running.bytes
        if running.late or not (task.cancelled() or task.exception()):  # what is refused at once would look fast
            self.move_time[running.move.priority].add((self._now_ns() - running.begun_ns) / 1e9)
        self._tell_ended(running.move, task, running.late)
        if self._waiting:
            self._look_soon()

    def _look(self, now_s: float) -> None:
        """Stop what is late, each once; its store lets go of the frames before its task ends."""
        self._timer = None
        for running in self._running:
            if running.due_s > now_s and not running.late:
                self._timer = self._loop.call_at(running.due_s, self._look, running.due_s)
                return
            if not running.late:
                running.late = True
                running.task.cancel()
