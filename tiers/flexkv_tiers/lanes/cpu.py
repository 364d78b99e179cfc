"""Copy lanes on threads, for workers whose KV lies in host memory.

A task is cut into units of a few megabytes, queued by priority: between two units a waiting load
overtakes a demotion. numpy's copies and xxhash release the GIL, so the loop stays responsive and two
threads fill two cores. The loop owns the list of running jobs; threads touch only their unit, and
hand finished ones back over one deque with one wake-up for all that gathered meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.lanes.base import CopyTask, Direction
from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.layout import PageRun, page_runs
from flexkv_tiers.memory.worker import PageTable, WorkerMemory

BYTES_IN_FLIGHT_MAX = 4 * 1024 * 1024
"""Being copied at a time by all threads: what a load may have to wait for, below a millisecond."""

_STOP_RANK = -1  # sorts before every Priority

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """One task in the lanes. Owned by the loop; a thread writes only the faults of its own unit."""

    task: CopyTask
    ended: asyncio.Future[None]
    units_left: int
    faults: list[Fault | None]


@dataclass(slots=True)
class _Unit:
    """Blocks `start` to `end` of a job: what one thread copies without looking at the queue."""

    job: _Job
    start: int
    end: int


@dataclass(slots=True)
class _Counters:
    """Written by the loop only."""

    bytes_copied: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(Direction, 0))
    faults: dict[Fault, int] = field(default_factory=dict)


class CpuLanes:
    """The Lanes of host memory. The queue needs no limit of its own: every unit holds reserved frames."""

    def __init__(self, arena: Arena, *, threads: int = 2, bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX) -> None:
        assert threads > 0
        assert bytes_in_flight_max > 0
        self._arena = arena
        self._unit_bytes = bytes_in_flight_max // threads
        self._queue: queue.PriorityQueue[tuple[int, int, _Unit | None]] = queue.PriorityQueue()
        self._order = itertools.count()  # first come, first served within a priority
        self._jobs: set[_Job] = set()  # queued or running
        self._finished: deque[_Unit] = deque()  # filled by threads, emptied by the loop
        self._wake_pending = threading.Event()
        self._counters = _Counters()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"copy-lane-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    async def copy(self, task: CopyTask, priority: Priority) -> list[Fault | None]:
        count = len(task.frames)
        assert count == len(task.keys) == len(task.pages)
        if self._closed:
            return [Fault.DOWN] * count
        if not count:
            return []
        blocks_per_unit = max(1, self._unit_bytes // task.block_bytes)
        starts = range(0, count, blocks_per_unit)
        job = _Job(task, asyncio.get_running_loop().create_future(), len(starts), [None] * count)
        self._jobs.add(job)
        for start in starts:
            unit = _Unit(job, start, min(start + blocks_per_unit, count))
            self._queue.put((int(priority), next(self._order), unit))
        await asyncio.shield(job.ended)  # a cancelled caller must not end what `fence` waits for
        return job.faults

    def running(self, memory: WorkerMemory) -> int:
        return sum(job.task.memory is memory for job in self._jobs)

    async def fence(self, memory: WorkerMemory, pages: PageTable | None = None) -> None:
        touching = [
            job.ended
            for job in self._jobs
            if job.task.memory is memory and (pages is None or np.isin(job.task.pages, pages).any())
        ]
        if touching:
            await asyncio.wait(touching)  # not gather, which would cancel them with its caller

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put((_STOP_RANK, next(self._order), None))
        for thread in self._threads:
            thread.join()  # at most one unit each
        while not self._queue.empty():
            unit = self._queue.get()[2]
            assert unit is not None
            unit.job.faults[unit.start : unit.end] = [Fault.DOWN] * (unit.end - unit.start)
            self._finished.append(unit)
        self._deliver()

    def status(self) -> dict[str, object]:
        return {
            "kind": "cpu",
            "threads": len(self._threads),
            "jobs": len(self._jobs),
            "queued_units": self._queue.qsize(),
            "bytes": {direction.value: count for direction, count in self._counters.bytes_copied.items()},
            "faults": {fault.value: count for fault, count in self._counters.faults.items()},
        }

    # ------------------------------------------------------------ on the loop

    def _deliver(self) -> None:
        """Settle every unit that finished since the last wake-up."""
        self._wake_pending.clear()  # first: a unit that ends from here on wakes the loop again
        while self._finished:
            job = self._finished.popleft().job
            job.units_left -= 1
            if job.units_left:
                continue
            self._jobs.remove(job)
            self._count(job)
            if not job.ended.get_loop().is_closed():
                job.ended.set_result(None)

    def _count(self, job: _Job) -> None:
        good = job.faults.count(None)
        self._counters.bytes_copied[job.task.direction] += good * job.task.block_bytes
        for fault in filter(None, job.faults):
            self._counters.faults[fault] = self._counters.faults.get(fault, 0) + 1

    # ------------------------------------------------------------- on threads

    def _work(self) -> None:
        while unit := self._queue.get()[2]:
            _copy_unit(self._arena, unit)
            self._finished.append(unit)
            if not self._wake_pending.is_set():
                self._wake_pending.set()
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    unit.job.ended.get_loop().call_soon_threadsafe(self._deliver)


def _copy_unit(arena: Arena, unit: _Unit) -> None:
    task, faults = unit.job.task, unit.job.faults
    rows = task.pages[unit.start : unit.end].tolist()
    for block, pages in enumerate(rows, unit.start):
        try:
            for chunk in task.chunks:
                _copy_chunk(arena, task, block, chunk, pages)
        except TierFault as fault:
            faults[block] = fault.fault
        except Exception:
            _log.exception("a copy of chunks %s failed", list(task.chunks))
            faults[block] = Fault.INTERNAL


def _copy_chunk(arena: Arena, task: CopyTask, block: int, chunk: int, pages: list[int]) -> None:
    number = task.frames[block][chunk]
    frame = arena.view(number, task.memory.chunk_bytes[chunk])
    for run in page_runs(pages):
        _copy_run(frame, task, chunk, run)
    if task.direction is Direction.OUT_OF_WORKER:
        payload_bytes = task.memory.chunk_payload_bytes[chunk]
        frame[payload_bytes:] = bytes(len(frame) - payload_bytes)
        # Now, while the chunk is still in the core's cache.
        arena.set_checksum(number, chunk_checksum(task.keys[block], chunk, frame))


def _copy_run(frame: memoryview, task: CopyTask, chunk: int, run: PageRun) -> None:
    """One strided copy per strand: layers × pages × bytes, whatever lies between them on either side."""
    for strand in task.memory.strands[chunk]:
        outside = task.memory.view(strand, run)
        inside: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]] = np.ndarray(
            outside.shape,
            np.uint8,
            frame,
            strand.frame_offset + run.start * strand.page_bytes,
            (strand.piece_bytes, strand.page_bytes, 1),
        )
        if task.direction is Direction.INTO_WORKER:
            np.copyto(outside, inside)
        else:
            np.copyto(inside, outside)
