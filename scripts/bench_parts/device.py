"""Benchmark of the CUDA copy lanes: what submitting page copies of DeepSeek-V3.2 blocks costs the CPU.

On a device: load and save of the real lanes, a worker's memory opened by its handle, against the bar of the design.
Without one: the same lanes over a driver that does nothing, which is what Python adds to the driver's own time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from flexkv_py.core.messages import Priority
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.cuda import Driver
from flexkv_tiers.cuda.base import Numbers
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.lanes import CopyTask, Direction
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.cuda import Allocation, CudaMemory, PinnedArena
from scripts.bench_parts.copy import BLOCKS, GEOMETRY, layer_first, row
from tests.tiers.device_worker import DeviceWorker, device_uuid
from tests.tiers.host_driver import UUID, HostDriver

CPU_S_PER_GB_MAX = 0.02
TURNS = 20
BLOCKS_PER_TURN = 32


class NullDriver(HostDriver):
    """Copies nothing and ends everything at once."""

    def copy_batch(self, stream: int, targets: Numbers, sources: Numbers, lengths: Numbers) -> None: ...

    def record(self, event: int, stream: int) -> None: ...

    def await_event(self, event: int) -> None: ...


def rows() -> list[dict[str, Any]]:
    """CPU seconds per GB of loads and saves; their speed where there is a device."""
    import torch  # noqa: PLC0415 - the other parts need not wait for it

    message = layer_first(GEOMETRY, BLOCKS)
    arena = Arena(BLOCKS * GEOMETRY.chunk_count * GEOMETRY.frame_bytes, 1)
    np.frombuffer(arena.view(0, arena.room_bytes), np.uint8)[:] = 1
    if not torch.cuda.is_available():
        null = NullDriver()
        handle, _ = null.allocate(message.bytes)
        return _measure(null, UUID, Allocation(0, message.bytes, handle), arena, "no device, Python alone: ")
    driver, uuid, worker = CudaDriver(), device_uuid(), DeviceWorker(message.bytes)
    pinned = PinnedArena(driver, arena)
    driver.enter(driver.device(uuid))  # which takes a while, and is no pinning
    began_s = time.monotonic()
    pinned.pin(0)
    pin_gb_per_s = arena.room_bytes / (time.monotonic() - began_s) / 1e9
    measured = _measure(driver, uuid, Allocation(worker.offset, message.bytes, worker.handle), arena, "device: ")
    began_s = time.monotonic()
    pinned.unpin(0)
    unpin_gb_per_s = arena.room_bytes / (time.monotonic() - began_s) / 1e9
    worker.close()
    return [
        row("device: pinning the arena", pin_gb_per_s, "GB/s"),
        row("device: un-pinning it", unpin_gb_per_s, "GB/s"),
        *measured,
    ]


def _measure(driver: Driver, uuid: str, part: Allocation, arena: Arena, name: str) -> list[dict[str, Any]]:
    message = layer_first(GEOMETRY, BLOCKS)
    lanes, memory = CudaLanes(driver, uuid, arena), CudaMemory(driver, uuid, [part], message, GEOMETRY)
    result = []
    for direction in Direction:
        cpu_s, wall_s = asyncio.run(_turns(lanes, memory, direction))
        gigabytes = TURNS * BLOCKS_PER_TURN * GEOMETRY.block_bytes / 1e9
        into = direction is Direction.INTO_WORKER
        what = name + ("load" if into else "save, checksum included")
        on_device = not isinstance(driver, NullDriver)  # else it is one share of what the bar is for
        most = CPU_S_PER_GB_MAX if into and on_device else None
        result.append(row(f"{what}, CPU", cpu_s / gigabytes, "s/GB", most=most))
        if on_device:
            result.append(row(what, gigabytes / wall_s, "GB/s"))
    lanes.close()
    memory.close()
    return result


async def _turns(lanes: CudaLanes, memory: CudaMemory, direction: Direction) -> tuple[float, float]:
    """Seconds of CPU and of the clock."""
    await _copy(lanes, memory, direction)  # makes events, warms up
    cpu_s, wall_s = time.process_time(), time.monotonic()
    for _ in range(TURNS):
        await _copy(lanes, memory, direction)
    return time.process_time() - cpu_s, time.monotonic() - wall_s


async def _copy(lanes: CudaLanes, memory: CudaMemory, direction: Direction) -> None:
    blocks, chunks = range(BLOCKS_PER_TURN), range(GEOMETRY.chunk_count)
    keys = [block.to_bytes(16, "little") for block in blocks]
    pages = np.array(blocks, np.uint32).reshape(-1, 1)
    frame_pages = GEOMETRY.frame_bytes // ALIGN_BYTES
    frames = [tuple((block * GEOMETRY.chunk_count + chunk) * frame_pages for chunk in chunks) for block in blocks]
    tasks = [CopyTask(direction, memory, [chunk], keys, frames, pages) for chunk in chunks]
    for faults in await asyncio.gather(*(lanes.copy(task, Priority.LOAD) for task in tasks)):
        assert not any(faults)
