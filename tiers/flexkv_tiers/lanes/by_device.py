"""The lanes of every device behind one door: a task goes to those of its memory's device.

Lanes of a device are made when its first memory is registered. Owns and closes them all.
"""

from __future__ import annotations

from collections.abc import Callable

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.lanes.base import Copied, CopyTask, Lanes
from flexkv_tiers.memory.worker import PageTable, WorkerMemory


class LanesByDevice:
    """Lanes over lanes."""

    def __init__(self, host: Lanes, make: Callable[[str], Lanes]) -> None:
        """`make` is called with the UUID of each device once; what it raises is the registration's failure."""
        self._lanes = {"": host}
        self._make = make

    def open(self, device: str) -> None:
        """Have lanes for this device, before memory on it is registered."""
        if device not in self._lanes:
            self._lanes[device] = self._make(device)

    def start(self, task: CopyTask, priority: Priority, copied: Copied) -> None:
        self._lanes[task.memory.device].start(task, priority, copied)

    async def copy(self, task: CopyTask, priority: Priority) -> list[Fault | None]:
        return await self._lanes[task.memory.device].copy(task, priority)

    def running(self, memory: WorkerMemory) -> int:
        return self._lanes[memory.device].running(memory)

    async def fence(self, memory: WorkerMemory, pages: PageTable | None = None) -> None:
        await self._lanes[memory.device].fence(memory, pages)

    def close(self) -> None:
        for lanes in self._lanes.values():
            lanes.close()

    def status(self) -> dict[str, object]:
        devices = {device: lanes.status() for device, lanes in self._lanes.items() if device}
        return self._lanes[""].status() | ({"devices": devices} if devices else {})
