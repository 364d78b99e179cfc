"""A disk without threads: transfers end in random order on the running loop, over real small files.

Owns when a transfer ends, which the seed decides, and the count of troubles met. What breaks, and what a
power cut forgets, is `flexkv_tiers.diskio.faulty`'s: it wraps this engine.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flexkv_tiers.diskio import DiskFile, DiskFuture, IoPath
from flexkv_tiers.diskio.faulty import DiskFaultPlan, DiskOperation, DiskVerdict
from flexkv_tiers.diskio.pages import PagePool

T = TypeVar("T")

DELAY_S = 20e-6, 2e-3
"""A transfer takes between so long and so long."""


class CountingPlan(DiskFaultPlan):
    """A plan that remembers how often each operation met trouble."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.met: Counter[DiskOperation] = Counter()

    def judge(self, operation: DiskOperation) -> DiskVerdict:
        verdict = super().judge(operation)
        self.met[operation] += verdict.trouble is not None
        return verdict


class SimulatedIo:
    """`DiskIo` that moves bytes at the end of a transfer's time, in one step, on the loop itself."""

    name = "simulated"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._pool = PagePool()
        self._running: set[DiskFuture[Any]] = set()

    def open(self, path: Path, *, create_bytes: int = 0) -> DiskFile:
        return DiskFile(path, IoPath.FADVISE, create_bytes=create_bytes)

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        return self.run(partial(_read, file, targets, offset, then))

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        return self.run(partial(file.write, sources, offset))

    def sync(self, file: DiskFile) -> DiskFuture[None]:
        return self.run(file.sync)

    def run(self, job: Callable[[], T]) -> DiskFuture[T]:
        future: DiskFuture[T] = DiskFuture()
        self._running.add(future)
        asyncio.get_running_loop().call_later(self._chance.uniform(*DELAY_S), self._end, job, future)
        return future

    def pages(self, count: int) -> AbstractContextManager[memoryview]:
        return self._pool.lend(count)

    async def stop(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    def status(self) -> dict[str, object]:
        return {"engine": self.name}

    def _end(self, job: Callable[[], T], future: DiskFuture[T]) -> None:
        self._running.discard(future)
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)


def _read(file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> T:
    file.read(targets, offset)
    return then()
