"""Copy lanes of one CUDA device: a stream per direction, one thread that submits, one per direction that finishes.

A unit is one chunk of some blocks: one call into the driver, the gate if it is the last, then an event.
Submitting never waits for a copy, except for room: what is in flight is bounded, so a load waits for that much
and no more. A finishing thread waits for the oldest event with the GIL released; a callback of the driver
instead would hold its stream up until Python has got the GIL. Not yet run on a device.
"""

from __future__ import annotations

import asyncio
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
from flexkv_tiers.lanes.base import Copied, CopyTask, Direction, Job
from flexkv_tiers.lanes.units import Line, Unit, units_of
from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.cuda import CudaMemory
from flexkv_tiers.memory.descriptors import Descriptors, describe, rectangles
from flexkv_tiers.memory.worker import PageTable, WorkerMemory

BYTES_IN_FLIGHT_MAX = 32 * 1024 * 1024
"""Submitted and not ended, of each direction: half a millisecond of a bus of 55 GB/s, far more than keeps it busy."""
UNIT_BYTES_MAX = 8 * 1024 * 1024
"""Of one call: a sixth of a millisecond of that bus. Half of it costs a third more CPU."""
NOT_SUPPORTED = 801

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Counters:
    """Bytes and faults are the loop's, the rest the submitting thread's."""

    bytes_copied: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    faults: dict[Fault, int] = field(default_factory=dict)
    calls: int = 0
    pieces: int = 0


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
        self._line = Line(bytes_in_flight_max)
        self._submitted = {direction: queue.SimpleQueue[Unit | None]() for direction in Direction}
        self._finished: deque[Unit] = deque()
        self._wake_pending = False
        self._jobs: set[Job] = set()
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
        if self._closed or not (count or task.gates):
            copied([Fault.DOWN] * count)
            return
        job = Job(task, asyncio.get_running_loop(), 0, [None] * count, [copied])
        units = units_of(job, self._unit_bytes)
        job.units_left = len(units)
        self._jobs.add(job)
        for unit in units:
            self._line.put(int(priority), unit)

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
        left = self._line.close()
        self._submitter.join()
        self._driver.enter(self._device)
        for unit in left:
            unit.fail(Fault.DOWN)
            self._give_up_gate(unit)  # before anything is waited for: a save's event may come only behind it
        for direction, finisher in zip(Direction, self._finishers, strict=True):
            self._submitted[direction].put(None)
            finisher.join()
        self._finished.extend(left)
        self._deliver()
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
            "queued_units": len(self._line),
            "batched": self._batches,
            "driver_calls": counters.calls,
            "pieces": counters.pieces,
            "bytes": {direction.value: count for direction, count in counters.bytes_copied.items()},
            "faults": {fault.value: count for fault, count in counters.faults.items()},
        }

    # ------------------------------------------------------------ on the loop

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
        while (unit := self._line.take()) is not None:
            try:
                self._submit(unit)
            except Exception as error:
                if not isinstance(error, CudaFailure):
                    _log.exception("a copy of chunk %d failed", unit.chunk)
                unit.fail(getattr(error, "fault", Fault.INTERNAL))
            self._submitted[unit.direction].put(unit)

    def _submit(self, unit: Unit) -> None:
        """Enqueue the wait, the copies, the gate and the event. Whatever fails before the gate spoils it."""
        stream, failed = self._streams[unit.direction], True
        try:
            self._await_worker(unit, stream)
            self._submit_copies(unit, stream)
            failed = any(unit.job.faults[unit.first : unit.end])
        finally:
            self._run_gate(unit, stream, unit.end - unit.first, failed=failed)
            event = self._events.popleft() if self._events else self._driver.create_event()
            self._driver.record(event, stream)
            unit.event = event

    def _await_worker(self, unit: Unit, stream: int) -> None:
        after = unit.job.task.after
        if after is None or after.awaited:
            return
        try:
            unit.awaited = self._driver.open_event(after.handle)
        except CudaFailure as failure:
            after.why_not = (
                f"the event it waits for cannot be opened ({failure.detail}): send the handle of an inter-process "
                "event on this device, and keep the event until the save is over"
            )
            raise
        self._driver.wait_event(stream, unit.awaited)
        after.awaited = True

    def _run_gate(self, unit: Unit, stream: int, blocks: int, *, failed: bool) -> None:
        """Tell the unit's gate of copies that are enqueued (0: of none to come); open it behind them if it is time."""
        memory, gate = unit.job.task.memory, unit.job.task.gates.get(unit.chunk)
        if gate is not None and gate.ran(blocks, failed=failed) and not memory.closed:
            assert isinstance(memory, CudaMemory)
            self._driver.write_value(stream, memory.address_of(gate.offset), gate.value)

    def _give_up_gate(self, unit: Unit) -> None:
        """At the end, on the loop, for a unit that is not submitted any more."""
        try:
            self._run_gate(unit, self._streams[unit.direction], 0, failed=True)
        except CudaFailure as failure:
            _log.error("a gate stays shut until its worker opens it: %s", failure)

    def _submit_copies(self, unit: Unit, stream: int) -> None:
        task = unit.job.task
        blocks, frames = self._sound_blocks(unit)
        if not blocks:
            return
        assert isinstance(task.memory, CudaMemory)
        copies = describe(task.memory.pieces[unit.chunk], frames, task.pages[blocks])
        into = task.direction is Direction.INTO_WORKER
        self._call(stream, copies, into)
        self._counters.pieces += len(copies.lengths)

    def _sound_blocks(self, unit: Unit) -> tuple[list[int], list[int]]:
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
                unit.fail(getattr(error, "fault", Fault.INTERNAL))
            self._finished.append(unit)
            if not self._wake_pending:
                self._wake_pending = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    unit.job.loop.call_soon_threadsafe(self._deliver)

    def _finish(self, unit: Unit, direction: Direction) -> None:
        try:
            if unit.event:
                self._driver.await_event(unit.event)
                self._events.append(unit.event)
            else:  # it could not be recorded: whatever was enqueued before must end all the same
                self._driver.synchronize(self._streams[direction])
        finally:
            self._line.ended(unit)
            if unit.awaited:
                self._driver.destroy_event(unit.awaited)
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
