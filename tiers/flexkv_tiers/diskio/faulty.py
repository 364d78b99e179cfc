"""An engine that breaks things on purpose: what a disk, a kernel or a power cut can do, by script or by seed.

Wraps another engine, so that bytes really move. Ships with the product because the fault tests of the
SSD tier and the log's simulation are written against it; no daemon makes one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio.base import DiskFuture, DiskIo, nothing
from flexkv_tiers.diskio.files import DiskFile
from flexkv_tiers.diskio.unsynced import UnsyncedWrites

T = TypeVar("T")


class DiskOperation(StrEnum):
    """What an engine is asked to do to a file."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"


class DiskTrouble(StrEnum):
    """What can go wrong with it."""

    ERROR = "error"
    """EIO, and nothing moved."""
    PART = "part"
    """EIO after half of the 4 KiB pages moved."""
    FULL = "full"
    """ENOSPC, and nothing moved."""
    SHORT = "short"
    """The file ends after half of the pages (reads)."""
    FLIP = "flip"
    """One bit has another value: of what was read, or of what was written, and nobody says so."""
    LOST = "lost"
    """A write or a sync is acknowledged and never happened: a lying disk."""


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """What one operation meets: a delay, and perhaps trouble."""

    trouble: DiskTrouble | None = None
    delay_s: float = 0.0


WELL = DiskVerdict()
TROUBLES = {
    DiskOperation.OPEN: {DiskTrouble.ERROR, DiskTrouble.FULL},
    DiskOperation.READ: {DiskTrouble.ERROR, DiskTrouble.PART, DiskTrouble.SHORT, DiskTrouble.FLIP},
    DiskOperation.WRITE: {DiskTrouble.ERROR, DiskTrouble.PART, DiskTrouble.FULL, DiskTrouble.FLIP, DiskTrouble.LOST},
    DiskOperation.SYNC: {DiskTrouble.ERROR, DiskTrouble.LOST},
}
"""Which trouble each operation can meet."""


class DiskFaultPlan:
    """Verdicts in the order operations are asked for: scripted ones first, then seeded chance.

    `rates[operation][trouble]` is a probability; delays are uniform in `delay_s` (from, to). The same
    seed and the same questions of one kind give the same answers, however the kinds alternate.
    """

    def __init__(self, seed: int = 0, *, delay_s: tuple[float, float] = (0.0, 0.0)) -> None:
        self.chances = {each: random.Random(f"{seed} {each}") for each in DiskOperation}  # noqa: S311 - replayable
        self.delay_s = delay_s
        self.rates: dict[DiskOperation, Mapping[DiskTrouble, float]] = {}
        self._script: defaultdict[DiskOperation, deque[DiskVerdict]] = defaultdict(deque)

    def script(self, operation: DiskOperation, *verdicts: DiskVerdict) -> None:
        """The next operations of this kind meet these, in order."""
        assert all(verdict.trouble is None or verdict.trouble in TROUBLES[operation] for verdict in verdicts)
        self._script[operation].extend(verdicts)

    def judge(self, operation: DiskOperation) -> DiskVerdict:
        if self._script[operation]:
            return self._script[operation].popleft()
        low, high = self.delay_s
        chance = self.chances[operation]
        delay_s = chance.uniform(low, high)
        drawn = chance.random()
        for trouble, rate in self.rates.get(operation, {}).items():
            if drawn < rate:
                return DiskVerdict(trouble, delay_s)
            drawn -= rate
        return DiskVerdict(None, delay_s)


class FaultyIo:
    """`DiskIo` over `inner`, with faults from `plan` and power cuts by `crash`."""

    def __init__(self, inner: DiskIo, plan: DiskFaultPlan) -> None:
        self.name = inner.name
        self.plan = plan
        self._inner = inner
        self._unsynced = UnsyncedWrites()
        self._tasks: set[asyncio.Task[None]] = set()  # one for each transfer and sync under way
        self._crashed = False

    def open(self, path: Path, *, create_bytes: int = 0) -> DiskFile:
        trouble = self.plan.judge(DiskOperation.OPEN).trouble  # without its delay: the caller would block
        if self._crashed or trouble is not None:
            error = errno.ENOSPC if trouble is DiskTrouble.FULL else errno.EIO
            raise OSError(error, os.strerror(error), str(path))
        file = self._inner.open(path, create_bytes=create_bytes)
        if create_bytes:
            self._unsynced.drop(path)
        return file

    def read(self, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]) -> DiskFuture[T]:
        return self._start(DiskOperation.READ, lambda verdict: self._read(verdict, file, targets, offset, then))

    def write(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> DiskFuture[None]:
        return self._start(DiskOperation.WRITE, lambda verdict: self._write(verdict, file, sources, offset))

    def sync(self, file: DiskFile) -> DiskFuture[None]:
        return self._start(DiskOperation.SYNC, lambda verdict: self._sync(verdict, file))

    def run(self, job: Callable[[], T]) -> DiskFuture[T]:
        if not self._crashed:
            return self._inner.run(job)
        future: DiskFuture[T] = DiskFuture()
        future.set_exception(TierFault(Fault.IO, "the disk has lost its power"))
        return future

    def pages(self, count: int) -> AbstractContextManager[memoryview]:
        return self._inner.pages(count)

    async def stop(self) -> None:
        await self._settle_all()
        await self._inner.stop()

    def status(self) -> dict[str, object]:
        return self._inner.status()

    async def crash(self, kept: float = 0.5) -> None:
        """Cut the power: each 4 KiB written since its file's last sync is kept with this probability, else lost.

        What is under way in the kernel ends, what has not got there fails. Nothing works afterwards: open
        the directory again with another engine.
        """
        self._crashed = True
        await self._settle_all()
        await self._inner.run(partial(self._unsynced.lose, self.plan.chances[DiskOperation.WRITE], kept))

    async def _settle_all(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, operation: DiskOperation, act: Callable[[DiskVerdict], Any]) -> DiskFuture[Any]:
        future: DiskFuture[Any] = DiskFuture()
        task = asyncio.create_task(self._carry_out(self.plan.judge(operation), act, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def _carry_out(
        self, verdict: DiskVerdict, act: Callable[[DiskVerdict], Any], future: DiskFuture[Any]
    ) -> None:
        try:
            if verdict.delay_s:
                await asyncio.sleep(verdict.delay_s)
            if self._crashed:
                raise TierFault(Fault.IO, "the disk has lost its power")
            future.set_result(await act(verdict))
        except BaseException as error:  # it belongs to whoever awaits the future
            future.set_exception(error)

    async def _read(
        self, verdict: DiskVerdict, file: DiskFile, targets: Sequence[memoryview], offset: int, then: Callable[[], T]
    ) -> T:
        match verdict.trouble:
            case DiskTrouble.ERROR:
                raise file.fault(errno.EIO, "read", offset)
            case DiskTrouble.PART | DiskTrouble.SHORT:
                if half := _half(targets):
                    await self._inner.read(file, half, offset, nothing)
                if verdict.trouble is DiskTrouble.PART:
                    raise file.fault(errno.EIO, "read", offset)
                raise TierFault(Fault.CORRUPT, f"{file.path.name} ends early, within a record: it was cut off")
            case DiskTrouble.FLIP:
                flip = partial(_flip_then, targets, self._draw_bit(DiskOperation.READ, targets), then)
                return await self._inner.read(file, targets, offset, flip)
        return await self._inner.read(file, targets, offset, then)

    async def _write(self, verdict: DiskVerdict, file: DiskFile, sources: Sequence[memoryview], offset: int) -> None:
        match verdict.trouble:
            case DiskTrouble.ERROR:
                raise file.fault(errno.EIO, "write", offset)
            case DiskTrouble.FULL:
                raise file.fault(errno.ENOSPC, "write", offset)
            case DiskTrouble.PART:
                if half := _half(sources):
                    await self._write_noted(file, half, offset)
                raise file.fault(errno.EIO, "write", offset)
            case DiskTrouble.LOST:
                return
            case DiskTrouble.FLIP:
                with self._inner.pages(sum(map(len, sources)) // ALIGN_BYTES) as copy:
                    copy[:] = b"".join(sources)
                    _flip([copy], self._draw_bit(DiskOperation.WRITE, sources))
                    await self._write_noted(file, [copy], offset)
                return
        await self._write_noted(file, sources, offset)

    async def _write_noted(self, file: DiskFile, sources: Sequence[memoryview], offset: int) -> None:
        """Write, and keep what may lie there instead if the power fails before the next sync."""
        try:
            noted = await self._inner.run(partial(self._unsynced.note, file, offset, b"".join(sources)))
        except OSError as error:
            raise file.fault(error.errno or 0, "write", offset) from error
        await self._inner.write(file, sources, offset)
        noted.ended = True

    async def _sync(self, verdict: DiskVerdict, file: DiskFile) -> None:
        if verdict.trouble is DiskTrouble.ERROR:
            raise file.fault(errno.EIO, "sync", 0)
        if verdict.trouble is DiskTrouble.LOST:
            return
        covered = self._unsynced.ended(file.path)
        await self._inner.sync(file)
        self._unsynced.cover(file.path, covered)

    def _draw_bit(self, operation: DiskOperation, views: Sequence[memoryview]) -> int:
        return self.plan.chances[operation].randrange(8 * sum(map(len, views)))


def _half(views: Sequence[memoryview]) -> list[memoryview]:
    """The first half of the 4 KiB pages of some memory, rounded down."""
    left = sum(map(len, views)) // ALIGN_BYTES // 2 * ALIGN_BYTES
    half = []
    for view in views:
        if left:
            half.append(view[:left])
            left -= len(half[-1])
    return half


def _flip(views: Sequence[memoryview], bit: int) -> None:
    """Give one bit of some memory its other value."""
    at = bit // 8
    for view in views:
        if at < len(view):
            view[at] ^= 1 << bit % 8
            return
        at -= len(view)


def _flip_then(views: Sequence[memoryview], bit: int, then: Callable[[], T]) -> T:
    _flip(views, bit)
    return then()
