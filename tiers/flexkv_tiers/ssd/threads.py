"""The threads that wait for the disk, and how coroutines wait for them.

Own threads instead of the loop's executor: a third of the CPU per GiB, an aligned page each, and a
known number in flight. Each job belongs to one waiting coroutine, so whoever limits the moves in
flight (the executor) limits the queue. Used by `SsdStore` and `recovery` only.
"""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from flexkv_py.geometry import ALIGN_BYTES

T = TypeVar("T")
Job = Callable[[memoryview], T]
"""Runs on a disk thread; it is lent that thread's aligned 4 KiB page."""


class DiskFuture(asyncio.Future[T]):
    """The end of an I/O. It cannot be cancelled, because the I/O cannot: the disk uses the frames until it ends.

    A coroutine that is cancelled while it awaits one therefore goes on waiting, and meets its
    CancelledError when the I/O is over.
    """

    def cancel(self, *_: object, **__: object) -> bool:  # whatever Future takes
        return False


async def settle(work: DiskFuture[T]) -> bool:
    """Wait until `work` has ended; True when the caller was cancelled meanwhile. The outcome stays in `work`."""
    try:
        await work
    except asyncio.CancelledError:
        return True
    except BaseException:  # whoever looks at `work` next raises it
        assert work.done()
    return False


class DiskThreads:
    """A fixed number of threads over one queue. Made on the loop that awaits the results."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[memoryview], None] | None] = SimpleQueue()
        self._pending: set[DiskFuture[Any]] = set()  # exactly the jobs that have not ended
        self._calls: deque[Callable[[], object]] = deque()  # what the loop is to call next
        self._woken = False
        self._threads = [Thread(target=self._work, name=f"flexkv-disk-{at}", daemon=True) for at in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job[T]) -> DiskFuture[T]:
        """Queue a job; await the future for its result."""
        future: DiskFuture[T] = DiskFuture(loop=self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._jobs.put(partial(self._run, job, future))
        return future

    def post(self, call: Callable[[], object]) -> None:
        """From a disk thread: have the loop call this, in the order posted. One wake serves many."""
        self._calls.append(call)
        if not self._woken:  # two threads may both see False: one wake too many does no harm
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    async def stop(self) -> None:
        """Let queued jobs run to their end, then end the threads."""
        for future in tuple(self._pending):
            await settle(future)
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()  # idle, so this takes no time
        self._threads.clear()

    def _drain(self) -> None:
        self._woken = False  # before the first look: what is appended from here on wakes again
        while self._calls:
            self._calls.popleft()()

    def _run(self, job: Job[T], future: DiskFuture[T], page: memoryview) -> None:
        try:
            result = job(page)
        except BaseException as error:  # it belongs to whoever awaits the job, bugs included
            self.post(partial(future.set_exception, error))
        else:
            self.post(partial(future.set_result, result))

    def _work(self) -> None:
        page = memoryview(mmap.mmap(-1, ALIGN_BYTES))  # never closed by hand: a fault's traceback may hold a view
        while (job := self._jobs.get()) is not None:
            job(page)


class GroupSync:
    """One fdatasync for all who wait for one: each gets a sync that began after it asked."""

    def __init__(self, threads: DiskThreads, sync: Callable[[], None]) -> None:
        self._threads = threads
        self._sync = sync
        self._waiting: list[DiskFuture[None]] = []  # for the next sync, not the running one
        self._running = False

    def wait(self) -> DiskFuture[None]:
        """Ends when everything written to the file so far is durable. Raises TierFault."""
        future: DiskFuture[None] = DiskFuture()
        self._waiting.append(future)
        if not self._running:
            self._begin()
        return future

    def _begin(self) -> None:
        group, self._waiting, self._running = self._waiting, [], True
        self._threads.submit(lambda _page: self._sync()).add_done_callback(partial(self._end, group))

    def _end(self, group: list[DiskFuture[None]], synced: asyncio.Future[None]) -> None:
        self._running = False
        error = synced.exception()
        for future in group:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if self._waiting:
            self._begin()
