"""The one loop around the planner: events in, instructions out, the clock, the timer.

Owns the order of events and the monotonic clock. Decides nothing: the planner decides, the
executor and the sessions carry out. Everything in the daemon that happens reaches the planner through
`post`; transfers' ends come through `finish`, which batches those of one turn of the loop.

An exception in the planner or in a handler is a bug, and the state after it is in doubt. The engine
then stops for good (`on_broken`): a cache that restarts loses time, one that goes on may serve wrong bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from flexkv_py.core.messages import Event, Instruction, TimePassed, TransferResult, TransfersFinished
from flexkv_py.errors import ErrorCode, FlexKVError

log = logging.getLogger(__name__)

RESULTS_PER_TURN_MAX = 4
"""Ends of transfers handled in one turn of the loop: whoever pings waits for a whole turn, so turns are kept short."""
TIMER_MIN_NS = 500_000
"""Deadlines need no finer grain; a planner whose deadline has just passed must not spin the loop."""


class Decider(Protocol):
    """What the engine needs of the planner."""

    def handle(self, event: Event) -> list[Instruction]: ...

    def next_deadline_ns(self) -> int | None:
        """When to be woken if no event comes; the time of the last event when more is left than it could take."""
        ...


class Engine:
    """Runs events to completion, one after another, on one event loop.

    `handlers` maps each type of instruction to what carries it out; a handler returns at once.
    `now_ns` is the one clock of the daemon, the one the loop's timers follow.
    """

    def __init__(
        self, planner: Decider, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.planner = planner
        self.now_ns = clock_ns
        self.handlers: dict[type, Callable[..., None]] = {}
        self.on_event: Callable[[Event], None] = lambda _: None
        """Told of every event before the planner handles it, and may change."""
        self.on_broken: Callable[[], None] = lambda: None
        self.broken = False
        self.failure: BaseException | None = None
        """The bug that broke it, if that is known."""
        self._closed = False
        self.events = 0
        self._loop = loop
        self._queue: deque[Event] = deque()
        self._results: list[TransferResult] = []
        self._running = False
        self._timer: asyncio.Handle | None = None
        self._timer_ns = 0
        self._handled_ns = 0  # the time of the last event

    def post(self, event: Event) -> None:
        """Let the planner handle `event` and carry out its instructions before returning.

        Called from within a handler, it queues: events never nest.
        """
        if self.broken:
            raise FlexKVError(ErrorCode.INTERNAL, "the daemon met a bug and is stopping: its log has the traceback")
        if self._closed:
            return
        self._queue.append(event)
        if self._running:
            return
        self._running = True
        try:
            self._run()
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._running = False
        self._set_timer()

    def finish(self, result: TransferResult) -> None:
        """Note that a transfer ended; those that end in one turn of the loop make one event, or a few."""
        if not self._results:
            self._loop.call_soon(self._flush)
        self._results.append(result)

    def fail(self, error: BaseException | None) -> None:
        """A bug left the state in doubt: handle no event any more."""
        if self.broken:
            return
        log.error("a bug: the daemon stops", exc_info=error)
        self.broken, self.failure = True, error
        self.close()
        self.on_broken()

    def close(self) -> None:
        """Handle nothing any more: what still ends goes unheard, and so starts nothing new."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        queue, handlers = self._queue, self.handlers
        while queue:
            event = queue.popleft()
            self.events += 1
            self._handled_ns = event.now_ns
            self.on_event(event)
            for instruction in self.planner.handle(event):
                handlers[type(instruction)](instruction)

    def _flush(self) -> None:
        results, self._results = self._results[:RESULTS_PER_TURN_MAX], self._results[RESULTS_PER_TURN_MAX:]
        if self._results:
            self._loop.call_soon(self._flush)
        if not self._closed:
            self.post(TransfersFinished(results, self.now_ns()))

    def _set_timer(self) -> None:
        deadline = self.planner.next_deadline_ns()
        if self._timer is not None:
            if deadline is not None and self._timer_ns <= deadline:
                return  # it fires early at worst, and is then set anew
            self._timer.cancel()
            self._timer = None
        if deadline is not None and deadline <= self._handled_ns:  # more is left than one event may take
            if not self._results:  # whose event takes the next slice
                self._timer_ns, self._timer = deadline, self._loop.call_soon(self._tick)
        elif deadline is not None:
            self._timer_ns = max(deadline, self.now_ns() + TIMER_MIN_NS)
            self._timer = self._loop.call_at(self._timer_ns / 1e9, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(TimePassed(self.now_ns()))
