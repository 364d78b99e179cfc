"""Copies of devices beside the un-pinning of what they copy: neither begins while the other has the segment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.lanes import CopyTask, CpuLanes, Direction
from flexkv_tiers.lanes.by_device import LanesByDevice
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.lanes.guard import SegmentGuard
from flexkv_tiers.memory import Arena
from tests.tiers.host_driver import UUID, HostDriver
from tests.tiers.lane_rigs import FRAME_PAGES, DriverSide, HostSide
from tests.tiers.paged import GEOMETRY, layer_first

FRAMES_PER_SEGMENT = 8
MESSAGE = layer_first(GEOMETRY, 8)


class Bed:
    """An arena of three segments, lanes of the host and of one device, a worker's memory on each."""

    def __init__(self, stack: ExitStack) -> None:
        self.driver = HostDriver()
        arena = Arena(FRAMES_PER_SEGMENT * GEOMETRY.frame_bytes, 3, huge_pages=False)
        stack.callback(arena.close)
        self.guard = SegmentGuard(FRAMES_PER_SEGMENT * FRAME_PAGES)
        self.lanes = LanesByDevice(CpuLanes(arena), self.guard)
        self.lanes.add(UUID, CudaLanes(self.driver, UUID, arena))
        stack.callback(self.lanes.close)
        self.device, self.host = DriverSide(self.driver, MESSAGE), HostSide(MESSAGE)
        stack.callback(self.device.close)
        stack.callback(self.host.close)

    def save(self, segment: int, *, host: bool = False) -> asyncio.Task[list[Fault | None]]:
        """One chunk into the first frame of a segment."""
        frames = [(segment * FRAMES_PER_SEGMENT * FRAME_PAGES,) * 4]
        memory = self.host.memory if host else self.device.memory
        pages = np.zeros((1, memory.pages_per_block), np.uint32)
        pages[0] = range(memory.pages_per_block)
        task = CopyTask(Direction.OUT_OF_WORKER, memory, [0], [bytes(16)], frames, pages)
        return asyncio.get_running_loop().create_task(self.lanes.copy(task, Priority.SAVE))


@pytest.fixture
def bed() -> Iterator[Bed]:
    with ExitStack() as stack:
        yield Bed(stack)


def test_a_segment_is_used_while_a_copy_of_a_device_runs_there(bed: Bed) -> None:
    """From its start to its end, and then whoever asked is told; copies of the host pin nothing."""

    async def copy() -> None:
        bed.driver.gate.clear()
        copying, hosts = bed.save(1), bed.save(2, host=True)
        ended: list[set[int]] = []
        bed.guard.on_ended = lambda: ended.append(bed.guard.used())
        assert await hosts == [None]
        assert bed.guard.used() == {1}
        bed.driver.gate.set()
        assert await copying == [None]
        assert ended == [set()]

    asyncio.run(copy())


def test_a_copy_waits_for_the_segment_that_is_held_and_for_no_other(bed: Bed) -> None:
    """It begins when let through; a fence and the count of running copies know of it meanwhile."""

    async def copy() -> None:
        bed.guard.hold(1)
        held, other, hosts = bed.save(1), bed.save(2), bed.save(1, host=True)
        assert await other == [None]
        assert await hosts == [None]
        assert bed.lanes.running(bed.device.memory) == 1
        fence, given_up = (asyncio.get_running_loop().create_task(bed.lanes.fence(bed.device.memory)) for _ in range(2))
        await asyncio.sleep(0)
        given_up.cancel()
        assert not held.done()
        assert not fence.done()
        bed.guard.let_through()
        await fence
        assert await held == [None]
        assert bed.lanes.running(bed.device.memory) == 0

    asyncio.run(copy())


def test_what_is_held_when_the_lanes_end_is_told_so(bed: Bed) -> None:
    """A copy that never began ends as DOWN, so that nobody waits for it."""

    async def copy() -> None:
        bed.guard.hold(0)
        held = bed.save(0)
        await asyncio.sleep(0)
        bed.lanes.close()
        assert await held == [Fault.DOWN]

    asyncio.run(copy())
