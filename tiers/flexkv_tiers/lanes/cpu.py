"""Copy lanes on threads, for workers whose KV lies in host memory.

A task is cut into units of a few megabytes, queued by priority. Between two chunks a thread looks whether
something more urgent waits, and then puts the rest of its unit back: a flood of demotions delays a load by
one chunk. numpy's copies and xxhash release the GIL, so the loop stays responsive and two threads fill two
cores. The loop owns the list of running jobs; threads touch only their unit, and hand finished ones back
over one deque with one wake-up for all that gathered meanwhile.
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

import numpy as np

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.lanes.base import Copied, CopyTask, Direction, Job
from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.layout import PageRun, page_runs
from flexkv_tiers.memory.worker import HostMemory, PageTable, WorkerMemory

BYTES_IN_FLIGHT_MAX = 4 * 1024 * 1024
"""Being copied at a time by all threads: what a thread takes before it looks at the queue again."""

_STOP_RANK = -1  # sorts before every Priority

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unit:
    """Pieces `start` to `end` of a job, each one chunk of one block, those of a block next to each other."""

    job: Job
    start: int
    end: int


_Entry = tuple[int, int, "_Unit | None"]
"""In the queue: rank (a priority, or _STOP_RANK), order of arrival, unit (None: the thread ends)."""


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
        # A heap whose every push is followed by a token: pushes and pops of tuples of numbers are atomic under
        # the GIL, and waiting for a token in C costs a tenth of what `queue.PriorityQueue` does in Python.
        self._waiting: list[_Entry] = []
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._order = itertools.count()  # first come, first served within a priority
        self._jobs: set[Job] = set()  # queued or running
        self._finished: deque[_Unit] = deque()  # filled by threads, emptied by the loop
        self._wake_pending = False  # two threads may both see False: one wake-up too many does no harm
        self._counters = _Counters()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"copy-lane-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def start(self, task: CopyTask, priority: Priority, copied: Copied) -> None:
        count = len(task.frames)
        assert count == len(task.keys) == len(task.pages)
        if self._closed or not count:
            _run_gates(task, failed=self._closed)
            copied([Fault.DOWN] * count)
            return
        chunk_count = len(task.chunks)
        pieces_per_unit = chunk_count * max(1, self._unit_bytes // task.block_bytes)
        starts = range(0, count * chunk_count, pieces_per_unit)
        job = Job(task, asyncio.get_running_loop(), len(starts), [None] * count, [copied])
        self._jobs.add(job)
        for start in starts:
            unit = _Unit(job, start, min(start + pieces_per_unit, count * chunk_count))
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
        if not touching:
            return
        passed, left = asyncio.get_running_loop().create_future(), len(touching)

        def ended(_: list[Fault | None]) -> None:
            nonlocal left
            left -= 1
            if not left and not passed.done():
                passed.set_result(None)

        for job in touching:
            job.copied.append(ended)
        await passed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._put((_STOP_RANK, next(self._order), None))
        for thread in self._threads:
            thread.join()  # at most one chunk each
        while self._waiting:
            unit = heapq.heappop(self._waiting)[2]
            assert unit is not None
            _fail(unit, Fault.DOWN)
            self._finished.append(unit)
        self._deliver()

    def status(self) -> dict[str, object]:
        return {
            "kind": "cpu",
            "threads": len(self._threads),
            "jobs": len(self._jobs),
            "queued_units": len(self._waiting),
            "bytes": {direction.value: count for direction, count in self._counters.bytes_copied.items()},
            "faults": {fault.value: count for fault, count in self._counters.faults.items()},
        }

    # ------------------------------------------------------------ on the loop

    def _put(self, entry: _Entry) -> None:
        heapq.heappush(self._waiting, entry)
        self._tokens.put(None)

    def _deliver(self) -> None:
        """Settle every unit that finished since the last wake-up."""
        self._wake_pending = False  # first: a unit that ends from here on wakes the loop again
        while self._finished:
            job = self._finished.popleft().job
            job.units_left -= 1
            if job.units_left:
                continue
            self._jobs.remove(job)
            self._count(job)
            _run_gates(job.task, failed=any(job.faults))
            if not job.loop.is_closed():
                for copied in job.copied:
                    copied(job.faults)

    def _count(self, job: Job) -> None:
        good = job.faults.count(None)
        self._counters.bytes_copied[job.task.direction] += good * job.task.block_bytes
        for fault in filter(None, job.faults):
            self._counters.faults[fault] = self._counters.faults.get(fault, 0) + 1

    # ------------------------------------------------------------- on threads

    def _work(self) -> None:
        while True:
            self._tokens.get()
            rank, order, unit = heapq.heappop(self._waiting)
            if unit is None:
                return
            if not self._copy_unit(unit, rank):
                self._put((rank, order, unit))  # before all that came later, as it was
                continue
            self._finished.append(unit)
            if not self._wake_pending:
                self._wake_pending = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    unit.job.loop.call_soon_threadsafe(self._deliver)

    def _copy_unit(self, unit: _Unit, rank: int) -> bool:
        """Copy until all is done, or something more urgent waits: then False, and `unit` is what is left."""
        task, faults, waiting = unit.job.task, unit.job.faults, self._waiting
        chunk_count = len(task.chunks)
        first = unit.start // chunk_count
        rows = task.pages[first : -(-unit.end // chunk_count)].tolist()
        for piece in range(unit.start, unit.end):
            if piece > unit.start and _first_rank(waiting) < rank:
                unit.start = piece
                return False
            block, chunk = divmod(piece, chunk_count)
            if faults[block] is None:
                faults[block] = _copy_piece(self._arena, task, block, task.chunks[chunk], rows[block - first])
        return True


def _run_gates(task: CopyTask, *, failed: bool) -> None:
    """Tell a task's gates of its end, on the loop, and open those that waited for no other."""
    for gate in task.gates.values():
        if gate.ran(len(task.frames), failed=failed):
            assert isinstance(task.memory, HostMemory)
            task.memory.write_gate(gate)


def _first_rank(waiting: list[_Entry]) -> int:
    try:
        return waiting[0][0]
    except IndexError:  # also when another thread took the last one this moment
        return len(Priority)


def _fail(unit: _Unit, fault: Fault) -> None:
    chunk_count = len(unit.job.task.chunks)
    for block in range(unit.start // chunk_count, -(-unit.end // chunk_count)):
        unit.job.faults[block] = unit.job.faults[block] or fault


def _copy_piece(arena: Arena, task: CopyTask, block: int, chunk: int, pages: list[int]) -> Fault | None:
    """One chunk of one block; why it failed, if it did."""
    try:
        _copy_chunk(arena, task, block, chunk, pages)
    except TierFault as fault:
        return fault.fault
    except Exception:
        _log.exception("a copy of chunk %d failed", chunk)
        return Fault.INTERNAL
    return None


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
    memory = task.memory
    assert isinstance(memory, HostMemory)
    for strand in memory.strands[chunk]:
        outside = memory.view(strand, run)
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
