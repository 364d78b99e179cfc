"""Disk threads: waiting, cancelling, failing, order of precedence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from flexkv_tiers.diskio import DiskFuture, settle
from flexkv_tiers.diskio.lineup import Kind
from flexkv_tiers.diskio.workers import DiskThreads


def with_threads(count: int, scene: Callable[[DiskThreads], Awaitable[None]]) -> None:
    async def life() -> None:
        threads = DiskThreads(count)
        try:
            await scene(threads)
        finally:
            await threads.stop()

    asyncio.run(life())


def test_a_bug_in_a_job_reaches_the_caller_and_harms_no_thread():
    """An exception of any kind comes out of `await`; the same thread serves the next job."""

    def broken() -> None:
        raise ZeroDivisionError

    async def scene(threads: DiskThreads) -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await threads.submit(Kind.WRITE, broken)
        assert await threads.submit(Kind.READ, int) == 0

    with_threads(1, scene)


def test_a_cancelled_caller_waits_for_the_job():
    """Cancellation, even twice, ends an `await` only after the job has ended."""
    go, ended = threading.Event(), threading.Event()

    def job() -> None:
        go.wait(5)
        ended.set()

    async def scene(threads: DiskThreads) -> None:
        async def caller() -> None:
            await threads.submit(Kind.READ, job)

        waiting = asyncio.create_task(caller())
        for _ in range(2):
            await asyncio.sleep(0.01)
            waiting.cancel()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended.is_set()

    with_threads(1, scene)


def test_no_wake_is_lost():
    """Thousands of tiny jobs from many threads all come back: none waits for a wake that nobody sent."""

    async def scene(threads: DiskThreads) -> None:
        for _ in range(20):
            results = await asyncio.wait_for(asyncio.gather(*(threads.submit(Kind.READ, int) for _ in range(100))), 10)
            assert results == [0] * 100

    with_threads(8, scene)


def test_writes_leave_threads_to_reads():
    """However many writes wait, a thread stays free: a read starts at once."""
    gate, running = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        running.release()
        assert gate.wait(5)

    async def scene(threads: DiskThreads) -> None:
        writes = [threads.submit(Kind.WRITE, write) for _ in range(20)]
        for _ in range(3):
            assert await asyncio.to_thread(running.acquire, timeout=5)
        assert threads.running(Kind.WRITE) == 3
        assert await asyncio.wait_for(threads.submit(Kind.READ, int), 5) == 0
        assert not running.acquire(blocking=False)
        gate.set()
        await asyncio.gather(*writes)

    with_threads(4, scene)


def test_sleeping_threads_join_in_again():
    """Writes held back for a read's sake run side by side again once it is over, though nobody asks for more."""
    together = threading.Barrier(2)

    def write() -> bool:
        try:
            together.wait(0.05)
        except threading.BrokenBarrierError:
            together.reset()
            return False
        return True

    async def scene(threads: DiskThreads) -> None:
        writes = [threads.submit(Kind.WRITE, write) for _ in range(12)]
        await threads.submit(Kind.READ, int)
        assert any((await asyncio.gather(*writes))[2:])

    with_threads(4, scene)


def test_settle_leaves_the_outcome_where_it_is():
    """`settle` neither raises nor hides: the exception stays in the future."""

    async def scene() -> None:
        future: DiskFuture[None] = DiskFuture()
        future.set_exception(ValueError())
        assert await settle(future) is False
        assert isinstance(future.exception(), ValueError)

    asyncio.run(scene())
