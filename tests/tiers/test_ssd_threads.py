"""Disk threads: waiting, cancelling, failing, and one sync for many."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from flexkv_tiers.ssd.threads import DiskFuture, DiskThreads, GroupSync, settle


def with_threads(count: int, scene: Callable[[DiskThreads], Awaitable[None]]) -> None:
    async def life() -> None:
        threads = DiskThreads(count)
        try:
            await scene(threads)
        finally:
            await threads.stop()

    asyncio.run(life())


def test_each_thread_lends_an_aligned_page_of_its_own():
    """Jobs at the same time see different pages of 4 KiB."""
    together = threading.Barrier(4)

    def job(page: memoryview) -> int:
        together.wait(5)
        assert len(page) == 4096
        return id(page)

    async def scene(threads: DiskThreads) -> None:
        assert len(set(await asyncio.gather(*(threads.submit(job) for _ in range(4))))) == 4

    with_threads(4, scene)


def test_a_bug_in_a_job_reaches_the_caller_and_harms_no_thread():
    """An exception of any kind comes out of `await`; the same thread serves the next job."""

    def broken(page: memoryview) -> None:
        raise ZeroDivisionError

    async def scene(threads: DiskThreads) -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await threads.submit(broken)
        assert await threads.submit(len) == 4096

    with_threads(1, scene)


def test_a_cancelled_caller_waits_for_the_job():
    """Cancellation, even twice, ends an `await` only after the job has ended."""
    go, ended = threading.Event(), threading.Event()

    def job(page: memoryview) -> None:
        go.wait(5)
        ended.set()

    async def scene(threads: DiskThreads) -> None:
        async def caller() -> None:
            await threads.submit(job)

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
            results = await asyncio.wait_for(asyncio.gather(*(threads.submit(len) for _ in range(100))), 10)
            assert results == [4096] * 100

    with_threads(8, scene)


def test_one_sync_serves_all_who_wait():
    """Twenty writers ask while one sync runs: one more sync serves them all, and began after they asked."""
    begun = []
    running = threading.Event()

    def sync() -> None:
        begun.append(time.monotonic())
        running.set()
        time.sleep(0.02)

    async def scene(threads: DiskThreads) -> None:
        group = GroupSync(threads, sync)
        first = group.wait()
        assert await asyncio.to_thread(running.wait, 5)
        asked = time.monotonic()
        await asyncio.gather(first, *(group.wait() for _ in range(20)))
        assert len(begun) == 2
        assert begun[1] > asked

    with_threads(2, scene)


def test_a_failed_sync_fails_all_who_waited_for_it():
    """Nobody takes another's failed sync for a success; the next sync is a new try."""
    outcomes = [None, OSError("disk"), None]

    def sync() -> None:
        if outcome := outcomes.pop(0):
            raise outcome

    async def scene(threads: DiskThreads) -> None:
        group = GroupSync(threads, sync)
        ends = await asyncio.gather(*(group.wait() for _ in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [type(None), OSError, OSError]
        await group.wait()

    with_threads(2, scene)


def test_settle_leaves_the_outcome_where_it_is():
    """`settle` neither raises nor hides: the exception stays in the future."""

    async def scene() -> None:
        future: DiskFuture[None] = DiskFuture()
        future.set_exception(ValueError())
        assert await settle(future) is False
        assert isinstance(future.exception(), ValueError)

    asyncio.run(scene())
