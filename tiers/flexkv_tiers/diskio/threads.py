"""The engine of threads: one `preadv` or `pwritev` at a time on each, as many threads as transfers under way.

Works wherever Python does. A read's `then` runs on the thread that read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from flexkv_tiers.diskio.base import DiskFuture
from flexkv_tiers.diskio.engine import Engine
from flexkv_tiers.diskio.files import DiskFile, IoChoice
from flexkv_tiers.diskio.lineup import Kind
from flexkv_tiers.diskio.workers import DiskThreads

T = TypeVar("T")


class ThreadsIo(Engine):
    """`DiskIo` on `depth` threads."""

    name = "threads"

    def __init__(self, choice: IoChoice, depth: int, reason: str) -> None:
        workers = DiskThreads(depth)
        super().__init__(choice, workers, workers, reason)

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        return self._workers.submit(Kind.READ, partial(_read, file, targets, offset, then))

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        length = sum(map(len, sources))
        return self._workers.submit(Kind.WRITE, partial(file.write, sources, offset), write_bytes=length)


def _read(file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> T:
    file.read(targets, offset)
    return then()
