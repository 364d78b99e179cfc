"""What all engines of disk I/O have in common: files, scratch pages, group syncs, the words of their status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from flexkv_tiers.diskio.base import DiskFuture, settle
from flexkv_tiers.diskio.files import DiskFile, IoChoice
from flexkv_tiers.diskio.lineup import Kind
from flexkv_tiers.diskio.pages import PagePool
from flexkv_tiers.diskio.syncs import GroupSyncs
from flexkv_tiers.diskio.workers import DiskThreads

T = TypeVar("T")


class Queue(Protocol):
    """Where transfers wait, and how many are under way."""

    def waiting(self, kind: Kind) -> int: ...

    def running(self, kind: Kind) -> int: ...


class Engine:
    """Base of the engines. `workers` run what blocks; `reason` says why this engine was chosen."""

    name = ""

    def __init__(self, choice: IoChoice, workers: DiskThreads, queue: Queue, reason: str) -> None:
        self._choice = choice
        self._queue = queue
        self._workers = workers
        self._reason = reason
        self._pages = PagePool()
        self._syncs = GroupSyncs(self._begin_sync)

    def open(self, path: Path, *, create_bytes: int = 0) -> DiskFile:
        return DiskFile(path, self._choice.path, create_bytes=create_bytes, read_only=self._choice.read_only)

    def sync(self, file: DiskFile) -> DiskFuture[None]:
        return self._syncs.wait(file)

    def run(self, job: Callable[[], T]) -> DiskFuture[T]:
        return self._workers.submit(Kind.SMALL, job)

    def pages(self, count: int) -> AbstractContextManager[memoryview]:
        return self._pages.lend(count)

    async def stop(self) -> None:
        while (future := self._unfinished()) is not None or self._syncs.running:
            if future is not None:
                await settle(future)
            else:  # a sync has ended, and its callback may begin the next one of that file
                await asyncio.sleep(0)
        await self._workers.stop()

    def status(self) -> dict[str, object]:
        return {
            "engine": self.name,
            "engine_reason": self._reason,
            "io_path": str(self._choice.path),
            "io_reason": self._choice.reason,
            "reads_waiting": self._queue.waiting(Kind.READ),
            "reads_under_way": self._queue.running(Kind.READ),
            "writes_waiting": self._queue.waiting(Kind.WRITE),
            "writes_under_way": self._queue.running(Kind.WRITE),
        }

    def _unfinished(self) -> DiskFuture[Any] | None:
        """The future of something under way, wherever it is."""
        return self._workers.unfinished()

    def _begin_sync(self, file: DiskFile) -> DiskFuture[None]:
        return self._workers.submit(Kind.SMALL, file.sync)
