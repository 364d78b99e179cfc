"""Copy lanes of one CUDA device: a stream per direction, one thread that submits, one per direction that finishes.

A unit is one chunk of some blocks: one call into the driver, then an event, then the gate if it is the last.
Submitting never waits for a copy, except for room: what is in flight is bounded, so a load waits for that much
and no more. A finishing thread waits for the oldest event with the GIL released; a callback of the driver
instead would hold its stream up until Python has got the GIL. Not yet run on a device.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import queue
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.cuda import CudaFailure, Driver
from flexkv_tiers.lanes.base import Copied, CopyTask, Direction
from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.cuda import CudaMemory
from flexkv_tiers.memory.descriptors import Descriptors, describe, rectangles
from flexkv_tiers.memory.worker import PageTable, WorkerMemory

BYTES_IN_FLIGHT_MAX = 32 * 1024 * 1024
"""Submitted and not ended, both directions: half a millisecond of a bus of 55 GB/s, far more than keeps it busy."""
UNIT_BYTES_MAX = 8 * 1024 * 1024
"""Of one call: a sixth of a millisecond of that bus. Half of it costs a third more CPU."""
NOT_SUPPORTED = 801
_STOP_RANK = -1

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """One task in the lanes. Threads write only the faults of blocks of their unit."""

    task: CopyTask
    loop: asyncio.AbstractEventLoop
    units_left: int
    faults: list[Fault | None]
    copied: list[Copied]


@dataclass(slots=True)
class _Unit:
    """Chunk `chunk` of blocks `first` to `end` of a job; `event` is recorded behind its copies."""

    job: _Job
    chunk: int
    first: int
    end: int
    last: bool
    """No block of this chunk comes after it."""
    event: int = 0

    @property
    def bytes(self) -> int:
        return (self.end - self.first) * self.job.task.memory.chunk_bytes[self.chunk]


@dataclass(slots=True)
class _Counters:
    """Bytes and faults are the loop's, the rest the submitting thread's."""

    bytes_copied: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    faults: dict[Fault, int] = field(default_factory=dict)
    calls: int = 0
    pieces: int = 0


class _Room:
    """How much is in flight. A unit begins when that is below the limit, so one may go over it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def await_some(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._bytes_max)

    def change(self, length: int) -> None:
        with self._changed:
            self._bytes += length
            assert self._bytes >= 0
            self._changed.notify()


class CudaLanes:
    """The Lanes of one device."""

    def __init__(
        self, driver: Driver, uuid: str, arena: Arena, *, bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX
    ) -> None:
        """Raises FlexKVError(DEVICE_UNKNOWN), CudaFailure."""
        self._driver, self._arena, self._device = driver, arena, driver.device(uuid)
        self._batches = driver.batches
        self._unit_bytes = min(UNIT_BYTES_MAX, bytes_in_flight_max)
        driver.enter(self._device)
        self._streams = {direction: driver.create_stream() for direction in Direction}
        self._events: deque[int] = deque()  # recorded before and reached: to be used again
        self._waiting: list[tuple[int, int, _Unit | None]] = []
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._order = itertools.count()
        self._room = _Room(bytes_in_flight_max)
        self._submitted = {direction: queue.SimpleQueue[_Unit | None]() for direction in Direction}
        self._finished: deque[_Unit] = deque()
        self._wake_pending = False
        self._jobs: set[_Job] = set()
        self._counters = _Counters()
        self._closed = False
        self._submitter = threading.Thread(target=self._submit_all, name="copy-lane-submit")
        self._finishers = [
            threading.Thread(target=self._finish_all, args=(direction,), name=f"copy-lane-{direction.value}")
            for direction in Direction
        ]
        for thread in (self._submitter, *self._finishers):
            thread.start()

    def start(self, task: CopyTask, priority: Priority, copied: Copied) -> None:
        count = len(task.frames)
        assert count == len(task.keys) == len(task.pages)
        if self._closed or not count:
            copied([Fault.DOWN] * count)
            return
        job = _Job(task, asyncio.get_running_loop(), 0, [None] * count, [copied])
        units: list[_Unit] = []
        for chunk in task.chunks:
            step = max(1, self._unit_bytes // task.memory.chunk_bytes[chunk])
            units += [
                _Unit(job, chunk, first, min(count, first + step), first + step >= count)
                for first in range(0, count, step)
            ]
        job.units_left = len(units)
        self._jobs.add(job)
        for unit in units:
            self._put((int(priority), next(self._order), unit))

    async def copy(self, task: CopyTask, priority: Priority) -> list[Fault | None]:
        ended: asyncio.Future[list[Fault | None]] = asyncio.get_running_loop().create_future()
        self.start(task, priority, lambda faults: None if ended.done() else ended.set_result(faults))
        return await ended

    def running(self, memory: WorkerMemory) -> int:
        return sum(job.task.memory is memory for job in self._jobs)

    async def fence(self, memory: WorkerMemory, pages: PageTable | None = None) -> None:
        touching = [
            job
            for job in self._jobs
            if job.task.memory is memory and (pages is None or np.isin(job.task.pages, pages).any())
        ]
        ends = [asyncio.get_running_loop().create_future() for _ in touching]
        for job, end in zip(touching, ends, strict=True):
            job.copied.append(partial(_pass, end))
        await asyncio.gather(*ends)

    def close(self) -> None:
        """Blocks for what is in flight, as it must not outlive the arena."""
        if self._closed:
            return
        self._closed = True
        self._put((_STOP_RANK, next(self._order), None))
        self._submitter.join()
        for direction, finisher in zip(Direction, self._finishers, strict=True):
            self._submitted[direction].put(None)
            finisher.join()
        while self._waiting:
            unit = heapq.heappop(self._waiting)[2]
            assert unit is not None
            _fail(unit, range(unit.first, unit.end), Fault.DOWN)
            self._finished.append(unit)
        self._deliver()
        self._driver.enter(self._device)
        for event in self._events:
            self._driver.destroy_event(event)
        for stream in self._streams.values():
            self._driver.destroy_stream(stream)

    def status(self) -> dict[str, object]:
        counters = self._counters
        return {
            "kind": "cuda",
            "device": self._device.uuid,
            "jobs": len(self._jobs),
            "queued_units": len(self._waiting),
            "batched": self._batches,
            "driver_calls": counters.calls,
            "pieces": counters.pieces,
            "bytes": {direction.value: count for direction, count in counters.bytes_copied.items()},
            "faults": {fault.value: count for fault, count in counters.faults.items()},
        }

    # ------------------------------------------------------------ on the loop

    def _put(self, entry: tuple[int, int, _Unit | None]) -> None:
        heapq.heappush(self._waiting, entry)
        self._tokens.put(None)

    def _deliver(self) -> None:
        self._wake_pending = False  # first: a unit that ends from here on wakes the loop again
        while self._finished:
            job = self._finished.popleft().job
            job.units_left -= 1
            if job.units_left:
                continue
            self._jobs.remove(job)
            good = job.faults.count(None)
            self._counters.bytes_copied[job.task.direction] += good * job.task.block_bytes
            for fault in filter(None, job.faults):
                self._counters.faults[fault] = self._counters.faults.get(fault, 0) + 1
            if not job.loop.is_closed():
                for copied in job.copied:
                    copied(job.faults)

    # ------------------------------------------------- on the submitting thread

    def _submit_all(self) -> None:
        self._driver.enter(self._device)
        while True:
            self._tokens.get()
            self._room.await_some()  # before it looks who is first: the most urgent may come meanwhile
            _, _, unit = heapq.heappop(self._waiting)
            if unit is None:
                return
            self._room.change(unit.bytes)
            try:
                self._submit(unit)
            except Exception as error:
                if not isinstance(error, CudaFailure):
                    _log.exception("a copy of chunk %d failed", unit.chunk)
                _fail(unit, range(unit.first, unit.end), getattr(error, "fault", Fault.INTERNAL))
            self._submitted[unit.job.task.direction].put(unit)

    def _submit(self, unit: _Unit) -> None:
        """Enqueue the copies, the event and the gate. Whatever fails before the event, the gate opens as failed."""
        task, stream = unit.job.task, self._streams[unit.job.task.direction]
        assert isinstance(task.memory, CudaMemory)
        gate = task.gates.get(unit.chunk)
        try:
            if task.after:
                self._driver.wait_event(stream, task.after)
            self._submit_copies(unit, stream)
        except BaseException:
            if gate is not None:
                gate.failed = True
            raise
        finally:
            if gate is not None:
                gate.failed |= any(unit.job.faults[unit.first : unit.end])
                if unit.last and not task.memory.closed:
                    self._driver.write_value(stream, task.memory.address_of(gate.offset), gate.value)
            event = self._events.popleft() if self._events else self._driver.create_event()
            self._driver.record(event, stream)
            unit.event = event

    def _submit_copies(self, unit: _Unit, stream: int) -> None:
        task = unit.job.task
        blocks, frames = self._sound_blocks(unit)
        if not blocks:
            return
        assert isinstance(task.memory, CudaMemory)
        copies = describe(task.memory.pieces[unit.chunk], frames, task.pages[blocks])
        into = task.direction is Direction.INTO_WORKER
        self._call(stream, copies, into)
        self._counters.pieces += len(copies.lengths)

    def _sound_blocks(self, unit: _Unit) -> tuple[list[int], list[int]]:
        """The blocks whose pages and frames exist, and the frames' addresses; the others fail alone."""
        task, faults = unit.job.task, unit.job.faults
        outside = task.pages[unit.first : unit.end].max(axis=1) >= task.memory.page_count  # all at once: 4 µs each
        blocks, frames = [], []
        for block, lost in enumerate(outside.tolist(), unit.first):
            if lost or task.memory.closed:
                faults[block] = faults[block] or Fault.MEMORY
                continue
            try:
                frames.append(self._arena.address(task.frames[block][unit.chunk]))
                blocks.append(block)
            except AssertionError:
                _log.exception("a frame of chunk %d is not in the arena", unit.chunk)
                faults[block] = faults[block] or Fault.INTERNAL
        return blocks, frames

    def _call(self, stream: int, copies: Descriptors, into: bool) -> None:
        targets, sources = (copies.outside, copies.inside) if into else (copies.inside, copies.outside)
        if self._batches:
            try:
                self._driver.copy_batch(stream, targets, sources, copies.lengths)
            except CudaFailure as failure:
                if failure.code != NOT_SUPPORTED:
                    raise
                _log.warning("the driver takes no batches of copies: page copies cost more CPU from here on")
                self._batches = False
            else:
                self._counters.calls += 1
                return
        for rectangle in rectangles(targets, sources, copies.lengths):
            self._driver.copy_rectangle(stream, rectangle)
            self._counters.calls += 1

    # ------------------------------------------------- on a finishing thread

    def _finish_all(self, direction: Direction) -> None:
        self._driver.enter(self._device)
        while (unit := self._submitted[direction].get()) is not None:
            try:
                self._finish(unit, direction)
            except Exception as error:
                if not isinstance(error, CudaFailure):
                    _log.exception("the end of a copy of chunk %d", unit.chunk)
                _fail(unit, range(unit.first, unit.end), getattr(error, "fault", Fault.INTERNAL))
            self._finished.append(unit)
            if not self._wake_pending:
                self._wake_pending = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    unit.job.loop.call_soon_threadsafe(self._deliver)

    def _finish(self, unit: _Unit, direction: Direction) -> None:
        try:
            if unit.event:
                self._driver.await_event(unit.event)
                self._events.append(unit.event)
            else:  # it could not be recorded: whatever was enqueued before must end all the same
                self._driver.synchronize(self._streams[direction])
        finally:
            self._room.change(-unit.bytes)
        if direction is Direction.OUT_OF_WORKER:
            for block in range(unit.first, unit.end):
                if unit.job.faults[block] is None:
                    self._seal(unit.job.task, block, unit.chunk)

    def _seal(self, task: CopyTask, block: int, chunk: int) -> None:
        """Zero a frame's padding and set its checksum."""
        number, payload_bytes = task.frames[block][chunk], task.memory.chunk_payload_bytes[chunk]
        frame = self._arena.view(number, task.memory.chunk_bytes[chunk])
        frame[payload_bytes:] = bytes(len(frame) - payload_bytes)
        self._arena.set_checksum(number, chunk_checksum(task.keys[block], chunk, frame))


def _pass(fence: asyncio.Future[None], _: list[Fault | None]) -> None:
    if not fence.done():
        fence.set_result(None)


def _fail(unit: _Unit, blocks: range, fault: Fault) -> None:
    for block in blocks:
        unit.job.faults[block] = unit.job.faults[block] or fault
