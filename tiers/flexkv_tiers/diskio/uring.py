"""The io_uring engine: batches of transfers per turn of the loop, an eventfd for their ends.

Owns which transfer is under way in which place of the ring. What follows a read (`then`) and what has
no asynchronous call runs on a few threads, so the loop neither computes nor blocks.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import ring as rings
from flexkv_tiers.diskio.base import DiskFuture, nothing
from flexkv_tiers.diskio.engine import Engine
from flexkv_tiers.diskio.files import IOVECS_MAX, DiskFile, IoChoice, IoPath, Transfer
from flexkv_tiers.diskio.lineup import Kind, Lineup
from flexkv_tiers.diskio.ring import Ring
from flexkv_tiers.diskio.workers import DiskThreads

T = TypeVar("T")

HELPER_COUNT = 4
"""Threads for what follows a read and for jobs that block; half of them are always free for the former."""
INLINE_BYTES_MAX = 256 << 10
"""Larger transfers are handed to threads of the kernel: pinning the pages of 2.5 MiB takes 0.1 ms, which the loop
would be held for. The CPU is the same, and from 512 KiB on it is no slower, measured."""
POSTED_MAX = 8
"""The kernel posts only so many ends at a time (20 today), and says nothing of those left: after more we look again."""
RETRY_S = 0.001
"""How long to wait when the kernel has no memory for another submission."""


@dataclass(slots=True)
class _Operation:
    """One read, write or sync from the question to its end."""

    kind: Kind
    file: DiskFile
    transfer: Transfer | None
    """None: a sync."""
    then: Callable[[], Any]
    bytes: int = 0
    """Bytes it writes."""
    future: DiskFuture[Any] = field(default_factory=DiskFuture)


class UringIo(Engine):
    """`DiskIo` on one ring, used by the loop's thread only."""

    name = "io_uring"

    def __init__(self, choice: IoChoice, depth: int, reason: str) -> None:
        """Raises OSError, its text a reason for people, where the kernel does not let us."""
        self._ring = Ring(depth, IOVECS_MAX)
        self._lineup: Lineup[_Operation] = Lineup(depth)
        super().__init__(choice, DiskThreads(HELPER_COUNT), self._lineup, reason)
        self._loop = asyncio.get_running_loop()
        self._places: dict[int, _Operation] = {}  # what is under way, by its place in the ring
        self._free = list(range(depth))
        self._turn_due = False
        self._stopped = False  # a turn that is due may come after the end
        self._loop.add_reader(self._ring.event, self._on_event)

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        return self._ask(_Operation(Kind.READ, file, Transfer(file, targets, offset, is_read=True), then))

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        transfer = Transfer(file, sources, offset, is_read=False)
        return self._ask(_Operation(Kind.WRITE, file, transfer, nothing, transfer.bytes))

    def _begin_sync(self, file: DiskFile) -> DiskFuture[None]:
        return self._ask(_Operation(Kind.SMALL, file, None, file.end_sync))

    async def stop(self) -> None:
        await super().stop()
        self._stopped = True
        self._loop.remove_reader(self._ring.event)
        self._ring.close()

    def _unfinished(self) -> DiskFuture[Any] | None:
        operation = self._lineup.any() or next(iter(self._places.values()), None)
        return operation.future if operation is not None else super()._unfinished()

    def _ask(self, operation: _Operation) -> DiskFuture[Any]:
        self._lineup.add(operation)
        self._look_soon()
        return operation.future

    def _look_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _on_event(self) -> None:
        os.eventfd_read(self._ring.event)
        self._turn()

    def _turn(self) -> None:
        """Fill free places, enter the kernel once, and end what has ended."""
        self._turn_due = False
        if self._stopped:
            return
        while (taken := self._lineup.take()) is not None:
            place = self._free.pop()
            self._places[place] = taken
            self._prepare(place, taken)
        if not self._ring.enter():
            self._loop.call_later(RETRY_S, self._look_soon)
        ended = self._ring.reap()
        for place, result in ended:
            self._on_result(place, result)
        if len(ended) > POSTED_MAX or (ended and (self._ring.prepared or self._lineup.next() is not None)):
            self._look_soon()

    def _prepare(self, place: int, operation: _Operation) -> None:
        file, transfer = operation.file, operation.transfer
        if transfer is None:
            self._ring.prepare(rings.FSYNC, file.fd, place, flags=rings.DATASYNC)
            return
        pieces = [(_address(view), len(view)) for view in transfer.next_views]
        self._ring.prepare_vector(
            rings.READV if transfer.is_read else rings.WRITEV,
            file.fd,
            place,
            pieces,
            offset=transfer.at,
            entry_flags=rings.ASYNC if transfer.bytes > INLINE_BYTES_MAX else 0,
            flags=file.transfer_flags,
        )

    def _on_result(self, place: int, result: int) -> None:
        operation = self._places[place]
        try:
            if self._is_whole(operation, result):
                self._free_place(place, operation)
                self._finish(operation)
            else:
                self._prepare(place, operation)
        except TierFault as fault:
            self._free_place(place, operation)
            operation.future.set_exception(fault)

    def _is_whole(self, operation: _Operation, result: int) -> bool:
        """Take in one result; False when part of a transfer is still to be moved. Raises TierFault."""
        transfer = operation.transfer
        if transfer is None:
            if result < 0:
                raise operation.file.fault(-result, "sync", 0)
            return True
        if result < 0:
            raise transfer.fault(-result)
        transfer.advance(result)
        return not transfer.todo

    def _free_place(self, place: int, operation: _Operation) -> None:
        del self._places[place]
        self._free.append(place)
        self._lineup.end(operation)

    def _finish(self, operation: _Operation) -> None:
        """The kernel is done with it: what is left may block or compute, and goes to a thread."""
        transfer, then = operation.transfer, operation.then
        if transfer is not None and transfer.is_read and operation.file.io_path is IoPath.FADVISE:
            self._workers.finish(operation.future, Kind.READ, partial(_forget_then, transfer, then))
        elif then is nothing:
            operation.future.set_result(None)
        else:
            self._workers.finish(operation.future, Kind.READ, then)


def _forget_then(transfer: Transfer, then: Callable[[], T]) -> T:
    transfer.forget()
    return then()


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
