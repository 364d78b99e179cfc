"""What of CUDA lanes can be shown without a device: order, limits, gates and events, failing calls, ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from flexkv_py.core.messages import Fault, Priority
from flexkv_tiers.lanes import CopyTask, Direction
from flexkv_tiers.lanes.base import AwaitedEvent
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.gates import Gate
from tests.tiers.host_driver import UUID, HostDriver
from tests.tiers.lane_rigs import FRAME_COUNT, FRAME_PAGES, DriverSide
from tests.tiers.paged import GEOMETRY, PAGE_COUNT, layer_first

MESSAGE = layer_first(GEOMETRY, 8)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(FRAME_COUNT * GEOMETRY.frame_bytes, 1)
    yield arena
    arena.close()


def task_of(side: DriverSide, direction: Direction, blocks: int, chunk: int = 0) -> CopyTask:
    keys = [block.to_bytes(16, "big") for block in range(blocks)]
    frames = [(block * FRAME_PAGES,) * 4 for block in range(blocks)]
    pages = np.array([[2 * block % PAGE_COUNT, (2 * block + 1) % PAGE_COUNT] for block in range(blocks)], np.uint32)
    return CopyTask(direction, side.memory, [chunk], keys, frames, pages)


@pytest.mark.parametrize("code", [801, 1])
def test_a_driver_without_batches_is_found_out_once(arena: Arena, code: int) -> None:
    """Not supported: falls back to rectangles for good; any other failure is a fault of the copy."""
    driver = HostDriver()
    driver.refuse["copy_batch"] = code
    lanes, side = CudaLanes(driver, UUID, arena), DriverSide(driver, MESSAGE)
    for _ in range(2):
        faults = asyncio.run(lanes.copy(task_of(side, Direction.OUT_OF_WORKER, 3), Priority.SAVE))
        assert faults == [None if code == 801 else Fault.MEMORY] * 3
    assert driver.calls.count("copy_batch") == (1 if code == 801 else 2)
    assert lanes.status()["batched"] is (code != 801)
    lanes.close()
    side.close()


@pytest.mark.parametrize("call", ["create_event", "record", "write_value"])
def test_a_driver_that_fails_after_the_copies_frees_nothing_early(arena: Arena, call: str) -> None:
    """Where no event can tell the end, the copy is a fault only after its stream has ended."""
    driver = HostDriver()
    lanes, side = CudaLanes(driver, UUID, arena), DriverSide(driver, MESSAGE)
    side.write(b"\x07" * MESSAGE.bytes)

    async def copy() -> None:
        driver.refuse[call] = 700
        driver.gate.clear()
        task = task_of(side, Direction.OUT_OF_WORKER, 1)
        task.gates = {0: Gate(0, 1, 1)}
        copying = asyncio.create_task(lanes.copy(task, Priority.SAVE))
        await asyncio.sleep(0.05)
        assert not copying.done()
        driver.gate.set()
        assert await copying == [Fault.MEMORY]
        assert arena.view(0, 1)[0] == 7

    asyncio.run(copy())
    lanes.close()
    side.close()


async def submitted(driver: HostDriver, count: int) -> None:
    """Return when so many copies were handed to the driver."""
    for _ in range(10_000):
        if driver.calls.count("copy_batch") >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{driver.calls} within 10 s")


def test_what_is_in_flight_is_bounded_and_the_most_urgent_goes_next(arena: Arena) -> None:
    """Of a direction no more than the limit is submitted, and the most urgent next; a load waits for no save."""
    driver = HostDriver()
    length = GEOMETRY.chunk_bytes[0]
    lanes, side = CudaLanes(driver, UUID, arena, bytes_in_flight_max=2 * length), DriverSide(driver, MESSAGE)
    order: list[str] = []

    def start(name: str, direction: Direction, priority: Priority) -> asyncio.Task[list[Fault | None]]:
        copying = asyncio.create_task(lanes.copy(task_of(side, direction, 2), priority))
        copying.add_done_callback(lambda _: order.append(name))
        return copying

    async def copy() -> None:
        driver.gate.clear()
        copies = [start(f"save {number}", Direction.OUT_OF_WORKER, Priority.SAVE) for number in range(4)]
        await submitted(driver, 1)
        copies.append(start("urgent", Direction.OUT_OF_WORKER, Priority.LOAD))
        await asyncio.sleep(0.05)
        assert driver.calls.count("copy_batch") == 1
        copies.append(start("load", Direction.INTO_WORKER, Priority.LOAD))
        await submitted(driver, 2)
        driver.gate.set()
        await asyncio.gather(*copies)
        await asyncio.sleep(0)

    asyncio.run(copy())
    order.remove("load")
    assert order.index("urgent") <= 1
    lanes.close()
    side.close()


def test_saves_wait_for_the_event_of_the_worker_and_loads_do_not_wait_for_them(arena: Arena) -> None:
    """The event comes only behind the gate of a load: more saves than may be in flight hold up no load.

    It is opened once for all tasks of a ticket, and destroyed when their copies have ended.
    """
    driver = HostDriver()
    lanes = CudaLanes(driver, UUID, arena, bytes_in_flight_max=GEOMETRY.chunk_bytes[0])
    side, stream, event = DriverSide(driver, MESSAGE), driver.create_stream(), driver.create_event()
    before = driver.event_count

    async def copy() -> None:
        after = AwaitedEvent(driver.export_event(event))
        saves = [task_of(side, Direction.OUT_OF_WORKER, 2, chunk) for chunk in (0, 1)]
        for save in saves:
            save.after = after
        saving = [asyncio.create_task(lanes.copy(save, Priority.SAVE)) for save in saves]
        await submitted(driver, 1)
        load = task_of(side, Direction.INTO_WORKER, 2)
        load.gates = {0: Gate(MESSAGE.bytes - 4, 1, 2)}
        assert await lanes.copy(load, Priority.LOAD) == [None] * 2
        assert side.read()[-4:] == b"\x02\0\0\0"
        assert not any(each.done() for each in saving)
        side.write(b"\x09" * MESSAGE.bytes)  # the worker's kernel, which ends only now
        driver.record(event, stream)
        assert await asyncio.gather(*saving) == [[None] * 2] * 2
        assert arena.view(0, 1)[0] == 9

    asyncio.run(copy())
    driver.destroy_stream(stream)
    lanes.close()
    assert driver.event_count == before
    side.close()


def test_an_event_that_does_not_open_is_a_fault_of_its_save(arena: Arena) -> None:
    """A handle of nobody: nothing is copied before its time, and nothing stays open."""
    driver = HostDriver()
    lanes, side = CudaLanes(driver, UUID, arena), DriverSide(driver, MESSAGE)
    task = task_of(side, Direction.OUT_OF_WORKER, 2)
    task.after = AwaitedEvent(bytes(64))
    assert asyncio.run(lanes.copy(task, Priority.SAVE)) == [Fault.MEMORY] * 2
    assert "copy_batch" not in driver.calls
    lanes.close()
    assert driver.event_count == 0
    side.close()


def test_lanes_that_close_open_the_gates_of_what_they_do_not_copy(arena: Arena) -> None:
    """As failed, and at once: an event that is waited for may come only behind them."""
    driver = HostDriver()
    side = DriverSide(driver, MESSAGE)
    gate = Gate(MESSAGE.bytes - 4, 5, 20)

    async def copy() -> None:
        lanes = CudaLanes(driver, UUID, arena, bytes_in_flight_max=GEOMETRY.chunk_bytes[0])
        driver.gate.clear()
        task = task_of(side, Direction.INTO_WORKER, 12)
        task.gates = {0: gate}
        copying = asyncio.create_task(lanes.copy(task, Priority.LOAD))
        await submitted(driver, 1)
        opener = threading.Timer(0.02, driver.gate.set)
        opener.start()
        lanes.close()
        opener.join()
        assert Fault.DOWN in await copying

    asyncio.run(copy())
    assert side.read()[-4:] == b"\x0b\0\0\0"
    side.close()


def test_closing_lanes_ends_threads_and_tells_who_waits(arena: Arena) -> None:
    """What was submitted is copied, what was not is DOWN, and no thread or event is left."""
    driver, before = HostDriver(), set(threading.enumerate())
    side = DriverSide(driver, MESSAGE)

    async def copy() -> None:
        lanes = CudaLanes(driver, UUID, arena, bytes_in_flight_max=GEOMETRY.chunk_bytes[0])
        driver.gate.clear()
        copying = asyncio.create_task(lanes.copy(task_of(side, Direction.INTO_WORKER, 12), Priority.LOAD))
        await asyncio.sleep(0.02)
        opener = threading.Timer(0.02, driver.gate.set)
        opener.start()
        lanes.close()
        lanes.close()
        opener.join()
        faults = await copying
        assert faults[0] is None
        assert faults[-1] is Fault.DOWN
        assert lanes.running(side.memory) == 0

    asyncio.run(copy())
    side.close()
    assert not set(threading.enumerate()) - before
