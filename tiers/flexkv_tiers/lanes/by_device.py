"""The lanes of every device behind one door: a task goes to those of its memory's device.

Owns and closes them all. Lanes of a device are added before memory on it is registered. Copies of devices pass the
guard, because what is un-pinned under one would be torn from under the device.
"""

from __future__ import annotations

import asyncio
from functools import partial

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.lanes.base import Copied, CopyTask, Lanes
from flexkv_tiers.lanes.guard import SegmentGuard
from flexkv_tiers.memory.worker import PageTable, WorkerMemory


class LanesByDevice:
    """Lanes over lanes."""

    def __init__(self, host: Lanes, guard: SegmentGuard) -> None:
        self._lanes = {"": host}
        self._guard = guard

    def add(self, device: str, lanes: Lanes) -> None:
        """Have lanes for this device."""
        self._lanes[device] = lanes

    def start(self, task: CopyTask, priority: Priority, copied: Copied) -> None:
        lanes = self._lanes[task.memory.device]
        if task.memory.device:
            self._guard.start(task, partial(lanes.start, task, priority), copied)
        else:
            lanes.start(task, priority, copied)

    async def copy(self, task: CopyTask, priority: Priority) -> list[Fault | None]:
        ended: asyncio.Future[list[Fault | None]] = asyncio.get_running_loop().create_future()
        self.start(task, priority, lambda faults: None if ended.done() else ended.set_result(faults))
        return await ended

    def running(self, memory: WorkerMemory) -> int:
        return self._guard.waiting(memory) + self._lanes[memory.device].running(memory)

    async def fence(self, memory: WorkerMemory, pages: PageTable | None = None) -> None:
        await self._guard.begun(memory)
        await self._lanes[memory.device].fence(memory, pages)

    def close(self) -> None:
        self._guard.close()
        for lanes in self._lanes.values():
            lanes.close()

    def status(self) -> dict[str, object]:
        devices = {device: lanes.status() for device, lanes in self._lanes.items() if device}
        return self._lanes[""].status() | ({"devices": devices} if devices else {})
