"""Every kind of lanes with memory to copy: what the contract suite runs over."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from flexkv_py.wire.messages import RegisterMemory
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.lanes import CpuLanes, Lanes
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.memory import Arena, WorkerMemory
from flexkv_tiers.memory.cuda import Allocation, CudaMemory
from tests.tiers.host_driver import UUID, HostDriver
from tests.tiers.paged import GEOMETRY, Worker

LIBRARY = "FLEXKV_LIBCUDA_OF_THE_HOST"
"""Set where `libcuda.so.1` is `host_libcuda.c`: then the kinds `driver` are the real CudaDriver over it."""
EVENT = b"\x5a" * 64
"""The handle of an event of that library."""
FRAME_COUNT = 64
FRAME_PAGES = GEOMETRY.frame_bytes // 4096


class Side(Protocol):
    """A worker's own side of its memory."""

    memory: WorkerMemory

    def read(self) -> bytes: ...

    def write(self, content: bytes) -> None: ...

    def write_behind_event(self, content: bytes) -> bytes:
        """Write a little later, on a stream of the worker's; the handle of an event that was recorded behind it."""
        ...

    def close(self) -> None: ...


class HostSide(Worker):
    """A memfd."""

    def read(self) -> bytes:
        return self.bytes[:]

    def write(self, content: bytes) -> None:
        self.bytes[:] = content

    def write_behind_event(self, content: bytes) -> bytes:
        raise AssertionError("the host has no events")


class DriverSide:
    """Memory of the HostDriver."""

    def __init__(self, driver: HostDriver, message: RegisterMemory) -> None:
        self._driver = driver
        handle, self.bytes = driver.allocate(message.bytes)
        self.memory = CudaMemory(driver, UUID, [Allocation(0, message.bytes, handle)], message, GEOMETRY)

    def read(self) -> bytes:
        return bytes(self.bytes)

    def write(self, content: bytes) -> None:
        self.bytes[:] = content

    def write_behind_event(self, content: bytes) -> bytes:
        stream, event = self._driver.create_stream(), self._driver.create_event()
        self._driver.enqueue(stream, lambda: time.sleep(0.05))
        self._driver.enqueue(stream, lambda: self.write(content))
        self._driver.record(event, stream)
        self._driver.enqueue(stream, None)
        return self._driver.export_event(event)

    def close(self) -> None:
        self.memory.close()


class LibrarySide:
    """Memory of a libcuda whose device is this process (`host_libcuda.c`)."""

    def __init__(self, driver: CudaDriver, uuid: str, message: RegisterMemory) -> None:
        from cuda.bindings import driver as cuda

        driver.enter(driver.device(uuid))
        error, address = cuda.cuMemAlloc(message.bytes)
        assert not int(error)
        handle, offset = driver.export_memory(int(address))
        self._bytes = (ctypes.c_char * message.bytes).from_address(int(address))
        self.memory = CudaMemory(driver, uuid, [Allocation(offset, message.bytes, handle)], message, GEOMETRY)

    def read(self) -> bytes:
        return self._bytes.raw

    def write(self, content: bytes) -> None:
        self._bytes[:] = content

    def write_behind_event(self, content: bytes) -> bytes:
        self.write(content)  # its streams do everything at once
        return EVENT

    def close(self) -> None:
        self.memory.close()


class DeviceSide:
    """Memory of a real device, which a process of a worker holds and exports."""

    def __init__(self, driver: object, uuid: str, message: RegisterMemory) -> None:
        from tests.tiers.device_worker import DeviceWorker

        self._worker = DeviceWorker(message.bytes)
        part = Allocation(self._worker.offset, message.bytes, self._worker.handle)
        self.memory = CudaMemory(driver, uuid, [part], message, GEOMETRY)  # type: ignore[arg-type]

    def read(self) -> bytes:
        return self._worker.read()

    def write(self, content: bytes) -> None:
        self._worker.write(content)

    def write_behind_event(self, content: bytes) -> bytes:
        return self._worker.write_behind_event(content)

    def close(self) -> None:
        self.memory.close()
        self._worker.close()


class Rig:
    """Lanes over an arena, and how a worker's memory for them is made."""

    def __init__(self, arena: Arena, lanes: Lanes, side: Callable[[RegisterMemory], Side]) -> None:
        self.arena, self.lanes, self.side = arena, lanes, side


@contextmanager
def rig_of(kind: str) -> Iterator[Rig]:
    """`cpu`, `driver` (CUDA lanes over the host driver), `driver-2d` (without batches), or `device`."""
    arena = Arena(FRAME_COUNT * GEOMETRY.frame_bytes, 1)
    lanes, side = _make(kind, arena)
    try:
        yield Rig(arena, lanes, side)
    finally:
        lanes.close()
        arena.close()


def _make(kind: str, arena: Arena) -> tuple[Lanes, Callable[[RegisterMemory], Side]]:
    if kind == "cpu":
        return CpuLanes(arena), HostSide
    if kind == "device":
        from tests.tiers.device_worker import device_uuid

        real, uuid = CudaDriver(), device_uuid()
        return CudaLanes(real, uuid, arena), lambda message: DeviceSide(real, uuid, message)
    if LIBRARY in os.environ:
        library = CudaDriver()
        library.batches = kind == "driver"
        return CudaLanes(library, UUID, arena), lambda message: LibrarySide(library, UUID, message)
    driver = HostDriver(batches=kind == "driver")
    return CudaLanes(driver, UUID, arena), lambda message: DriverSide(driver, message)
