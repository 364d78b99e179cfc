"""Threads that wait for the disk, or compute, so that the loop does not.

Own threads instead of the loop's executor: a third of the CPU per GiB, an order of precedence, and a
known number under way. The `threads` engine runs everything on them, the io_uring engine only what
follows a read and what has no asynchronous call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from flexkv_tiers.diskio.base import DiskFuture, settle
from flexkv_tiers.diskio.lineup import Kind, Lineup

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    """One job that waits or runs."""

    kind: Kind
    bytes: int
    run: Callable[[], None]


class DiskThreads:
    """A fixed number of threads that take jobs in the order of a `Lineup`. Made on the loop that awaits the results."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()  # around `_lineup` and `_asleep`
        self._lineup: Lineup[_Job] = Lineup(count)
        self._asleep = 0  # threads that wait for a wake nobody has sent yet
        self._wakes: SimpleQueue[bool] = SimpleQueue()  # False: end
        self._pending: set[DiskFuture[Any]] = set()  # exactly the jobs that have not ended
        self._calls: deque[Callable[[], object]] = deque()  # what the loop is to call next
        self._woken = False
        self._threads = [Thread(target=self._work, name=f"flexkv-disk-{at}", daemon=True) for at in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, kind: Kind, job: Callable[[], T], *, write_bytes: int = 0) -> DiskFuture[T]:
        """Queue a job; await the future for its result."""
        future: DiskFuture[T] = DiskFuture(loop=self._loop)
        self.finish(future, kind, job, write_bytes=write_bytes)
        return future

    def finish(self, future: DiskFuture[T], kind: Kind, job: Callable[[], T], *, write_bytes: int = 0) -> None:
        """Queue a job whose result ends `future`."""
        self._pending.add(future)
        with self._lock:
            self._lineup.add(_Job(kind, write_bytes, partial(self._run, job, future)))
            self._wake_one()

    def post(self, call: Callable[[], object]) -> None:
        """From a disk thread: have the loop call this, in the order posted. One wake serves many."""
        self._calls.append(call)
        if not self._woken:  # two threads may both see False: one wake too many does no harm
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    async def stop(self) -> None:
        """Let queued jobs run to their end, then end the threads."""
        while (future := self.unfinished()) is not None:
            await settle(future)
        for _ in self._threads:
            self._wakes.put(False)
        for thread in self._threads:
            thread.join()  # idle, so this takes no time
        self._threads.clear()

    def unfinished(self) -> DiskFuture[Any] | None:
        """One of the jobs that have not ended."""
        return next(iter(self._pending), None)

    def waiting(self, kind: Kind) -> int:
        return self._lineup.waiting(kind)

    def running(self, kind: Kind) -> int:
        return self._lineup.running(kind)

    def _drain(self) -> None:
        self._woken = False  # before the first look: what is appended from here on wakes again
        while self._calls:
            self._calls.popleft()()

    def _run(self, job: Callable[[], T], future: DiskFuture[T]) -> None:
        try:
            result = job()
        except BaseException as error:  # it belongs to whoever awaits the job, bugs included
            self.post(partial(self._fail, future, error))
        else:
            self.post(partial(self._end, future, result))

    def _end(self, future: DiskFuture[T], result: T) -> None:
        self._pending.discard(future)
        future.set_result(result)

    def _fail(self, future: DiskFuture[Any], error: BaseException) -> None:
        self._pending.discard(future)
        future.set_exception(error)

    def _wake_one(self) -> None:
        """Under the lock: if a job may start and a thread sleeps, wake it; it wakes the next."""
        if self._asleep and self._lineup.next() is not None:
            self._asleep -= 1
            self._wakes.put(True)

    def _work(self) -> None:
        """One thread's life. It sleeps only when, under the lock, there was nothing it may start.

        A job that may not start yet is started by the thread whose job's end allows it: it looks again.
        """
        while True:
            with self._lock:
                taken = self._lineup.take()
                if taken is None:
                    self._asleep += 1
                else:
                    self._wake_one()
            if taken is None:
                if not self._wakes.get():
                    return
                continue
            taken.run()
            with self._lock:
                self._lineup.end(taken)
            del taken  # or the last job's memory would stay referenced while the thread sleeps
