"""What a device's lanes have to submit: tasks cut into units, and which unit goes next.

Owns the order and how much is in flight; calls no driver. Made by `lanes.cuda`: the loop puts units in, one thread
takes them out.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from dataclasses import dataclass

from flexkv_py.core.messages import Fault
from flexkv_tiers.lanes.base import Direction, Job


@dataclass(slots=True)
class Unit:
    """Chunk `chunk` of blocks `first` to `end` of a job; none where gates are given up.

    `event` is recorded behind its copies; `awaited` is the worker's, where this unit has the stream wait.
    """

    job: Job
    chunk: int
    first: int
    end: int
    event: int = 0
    awaited: int = 0

    @property
    def bytes(self) -> int:
        return (self.end - self.first) * self.job.task.memory.chunk_bytes[self.chunk]

    @property
    def direction(self) -> Direction:
        return self.job.task.direction

    def fail(self, fault: Fault) -> None:
        """What has no fault yet has this one."""
        faults = self.job.faults
        for block in range(self.first, self.end):
            faults[block] = faults[block] or fault


def units_of(job: Job, unit_bytes: int) -> list[Unit]:
    """A job's units in the order of its chunks."""
    task, count, units = job.task, len(job.faults), []
    for chunk in task.chunks:
        step = max(1, unit_bytes // task.memory.chunk_bytes[chunk])
        starts = range(0, count, step) if count else range(1)
        units += [Unit(job, chunk, first, min(count, first + step)) for first in starts]
    return units


class Line:
    """Units that wait, most urgent first, then first come; and what of each direction is in flight.

    A direction begins a unit when less than the limit is in flight, so one may go over it. Each has room of its own:
    a save may have to wait for an event of the worker's that comes only behind the gate of a load.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = dict.fromkeys(Direction, 0)
        self._waiting: dict[Direction, list[tuple[int, int, Unit]]] = {direction: [] for direction in Direction}
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, rank: int, unit: Unit) -> None:
        """Have it wait for its turn."""
        with self._changed:
            heapq.heappush(self._waiting[unit.direction], (rank, next(self._order), unit))
            self._changed.notify()

    def take(self) -> Unit | None:
        """The unit whose turn it is, in flight from now on, waiting until there is one; None once closed."""
        with self._changed:
            while not self._closed:
                begins = [self._waiting[each] for each in Direction if self._bytes[each] < self._bytes_max]
                first = min(filter(None, begins), key=lambda waiting: waiting[0][:2], default=None)
                if first is not None:
                    unit = heapq.heappop(first)[2]
                    self._bytes[unit.direction] += unit.bytes
                    return unit
                self._changed.wait()
        return None

    def ended(self, unit: Unit) -> None:
        """It is in flight no more."""
        with self._changed:
            self._bytes[unit.direction] -= unit.bytes
            assert self._bytes[unit.direction] >= 0
            self._changed.notify()

    def close(self) -> list[Unit]:
        """Nothing is taken from here on; what waited comes back."""
        with self._changed:
            self._closed = True
            left = [entry[2] for waiting in self._waiting.values() for entry in sorted(waiting)]
            for waiting in self._waiting.values():
                waiting.clear()
            self._changed.notify()
        return left
