"""The aiofiles engine: seek, then read or write, on unbuffered files. For where nothing better works.

A file object has one position, so a transfer borrows a file object of its own and gives it back. Costs
several hops between threads per transfer. A read's `then` and syncs run on the engine's own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from aiofiles.threadpool import wrap
from aiofiles.threadpool.binary import AsyncFileIO

from flexkv_tiers.background import Background
from flexkv_tiers.diskio.base import DiskFuture, nothing
from flexkv_tiers.diskio.engine import Engine
from flexkv_tiers.diskio.files import DiskFile, IoChoice, IoPath, Transfer
from flexkv_tiers.diskio.lineup import Kind, Lineup
from flexkv_tiers.diskio.workers import DiskThreads

T = TypeVar("T")

HELPER_COUNT = 4
"""Threads for syncs, small jobs and what follows a read."""


class PortableFile(DiskFile):
    """A file with the file objects its transfers borrow."""

    def __init__(self, path: Path, io_path: IoPath, *, create_bytes: int = 0) -> None:
        super().__init__(path, io_path, create_bytes=create_bytes)
        self.free: list[AsyncFileIO] = []  # those that no transfer has
        self._objects: list[FileIO] = []

    def open_object(self) -> FileIO:
        """Another unbuffered file object; blocks. Raises OSError."""
        opened = open(self.path, "r+b", buffering=0, opener=lambda *_: self.open_descriptor())  # noqa: SIM115 - closed by `close`
        self._objects.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._objects:
            opened.close()
        super().close()


@dataclass(slots=True)
class _Operation:
    kind: Kind
    file: PortableFile
    transfer: Transfer
    then: Callable[[], Any]
    future: DiskFuture[Any] = field(default_factory=DiskFuture)

    @property
    def bytes(self) -> int:
        return 0 if self.transfer.is_read else self.transfer.bytes


class AiofilesIo(Engine):
    """`DiskIo` on aiofiles, with `depth` threads of its own."""

    name = "aiofiles"

    def __init__(self, choice: IoChoice, depth: int, reason: str) -> None:
        if choice.path is IoPath.DONTCACHE:  # a flag of preadv, which file objects do not have
            choice = IoChoice(IoPath.FADVISE, f"{choice.reason}; with aiofiles by posix_fadvise after use")
        self._lineup: Lineup[_Operation] = Lineup(depth)
        self._background = Background("disk I/O")
        super().__init__(choice, DiskThreads(HELPER_COUNT), self._lineup, reason)
        self._executor = ThreadPoolExecutor(depth, "flexkv-aiofiles")
        self._moving: dict[asyncio.Task[None], _Operation] = {}  # exactly the transfers under way

    def open(self, path: Path, *, create_bytes: int = 0) -> PortableFile:
        return PortableFile(path, self._choice.path, create_bytes=create_bytes)

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        return self._ask(Kind.READ, file, Transfer(file, targets, offset, is_read=True), then)

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        return self._ask(Kind.WRITE, file, Transfer(file, sources, offset, is_read=False), nothing)

    async def stop(self) -> None:
        await super().stop()
        self._executor.shutdown()

    def _unfinished(self) -> DiskFuture[Any] | None:
        asked = [operation.future for operation in self._moving.values()]
        if (waiting := self._lineup.any()) is not None:
            asked.append(waiting.future)
        return next((future for future in asked if not future.done()), None) or super()._unfinished()

    def _ask(self, kind: Kind, file: DiskFile, transfer: Transfer, then: Callable[[], T]) -> DiskFuture[T]:
        assert isinstance(file, PortableFile)
        operation = _Operation(kind, file, transfer, then)
        self._lineup.add(operation)
        self._start()
        return operation.future

    def _start(self) -> None:
        while (taken := self._lineup.take()) is not None:
            task = self._background.spawn(self._carry_out(taken))
            self._moving[task] = taken
            task.add_done_callback(self._moving.pop)

    async def _carry_out(self, operation: _Operation) -> None:
        try:
            await self._move(operation.file, operation.transfer)
        except BaseException as error:  # it belongs to whoever awaits the transfer, bugs included
            operation.future.set_exception(error)
        else:
            if operation.then is nothing:
                operation.future.set_result(None)
            else:
                self._workers.finish(operation.future, Kind.READ, operation.then)
        self._lineup.end(operation)
        self._start()

    async def _move(self, file: PortableFile, transfer: Transfer) -> None:
        """The whole transfer. Raises TierFault."""
        loop = asyncio.get_running_loop()
        try:
            if file.free:
                opened = file.free.pop()
            else:
                opened = wrap(await loop.run_in_executor(self._executor, file.open_object), executor=self._executor)
            try:
                await opened.seek(transfer.at)
                while transfer.todo:
                    part = transfer.todo[0]
                    done = await (opened.readinto(part) if transfer.is_read else opened.write(part))
                    transfer.advance(done or 0)
            finally:
                file.free.append(opened)
        except OSError as error:
            raise transfer.fault(error.errno or 0) from error
        if transfer.is_read:
            transfer.forget()
