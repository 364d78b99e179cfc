"""What `test_cuda_library.py` runs in a process whose libcuda is `host_libcuda.c`: the real CudaDriver, memory, arena.

NVIDIA's bindings load one libcuda for good, so each kind of it takes a process of its own. `pins_read_only` is the
argument: whether this one's device can pin a read-only mapping.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import pytest
from cuda.bindings import driver as cuda

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import LayerLayout, RegisterMemory
from flexkv_tiers.cuda import CudaFailure, Device
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.cuda import Allocation, CudaMemory, MappedArena, PinnedArena
from tests.tiers.host_driver import GRANULARITY_BYTES, UUID
from tests.tiers.paged import GEOMETRY, PAGE_COUNT, layer_first


def check_device(driver: CudaDriver, *, pins_read_only: bool) -> Device:
    """Named by UUID, with the attribute that decides on the row path; another UUID is refused."""
    assert driver.uuids == [UUID]
    device = driver.device(UUID)
    assert (device.ordinal, device.read_only_supported) == (0, pins_read_only)
    with pytest.raises(FlexKVError) as unknown:
        driver.device("GPU-none")
    assert unknown.value.code is ErrorCode.DEVICE_UNKNOWN
    driver.enter(device)
    return device


def check_pinning(driver: CudaDriver, device: Device) -> None:
    """The arena's segments are registered once and let go; a worker's mapping as the device allows it."""
    arena = Arena(1 << 20, 2, huge_pages=False)
    pinned = PinnedArena(driver, arena)
    for segment in range(2):
        pinned.pin(segment)
    with pytest.raises(CudaFailure) as twice:
        driver.pin(arena.segment_address(0), 4096)
    assert twice.value.code == int(cuda.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    for segment in (1, 0):
        pinned.unpin(segment)
    with pytest.raises(CudaFailure) as gone:
        driver.unpin(arena.segment_address(0))
    assert gone.value.code == int(cuda.CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    views = [arena.view(0, 1 << 20), arena.view(256, 1 << 20)]
    mapped = MappedArena(driver, device, views, shared=not device.read_only_supported)
    assert mapped.addresses == [arena.segment_address(0), arena.segment_address(1)]
    mapped.close()
    for view in views:
        view.release()
    arena.close()


def check_physical(driver: CudaDriver) -> None:
    """Descriptors of physical memory are mapped, read and released; those that lie leave nothing mapped."""
    descriptor = os.memfd_create("physical")
    os.ftruncate(descriptor, GRANULARITY_BYTES)
    written = mmap.mmap(descriptor, GRANULARITY_BYTES)
    written[4097] = 77
    address = driver.import_memory(descriptor, GRANULARITY_BYTES, driver.device(UUID))
    assert ctypes.string_at(address + 4097, 1) == bytes([77])
    driver.release_memory(address, GRANULARITY_BYTES)
    null = os.open("/dev/null", os.O_RDWR)
    before = mappings()
    for lying, length in ((descriptor, 2 * GRANULARITY_BYTES), (descriptor, 4096), (null, GRANULARITY_BYTES)):
        with pytest.raises(CudaFailure):
            driver.import_memory(lying, length, driver.device(UUID))
    assert mappings() == before


def mappings() -> list[str]:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return [line.split()[0] for line in lines if "physical" in line]


def check_handles(driver: CudaDriver) -> None:
    """Memory opened from handle and descriptor is one; sizes are asked of the driver; an event's handle is opened."""
    message, ends = layer_first(GEOMETRY, 8), [0, GRANULARITY_BYTES]
    layout = []
    for entry in message.layout:
        layout.append(LayerLayout(entry.plane, entry.layer, ends[entry.plane], entry.page_stride, entry.page_bytes))
        ends[entry.plane] += PAGE_COUNT * entry.page_stride
    message = RegisterMemory(1, 2 * GRANULARITY_BYTES, PAGE_COUNT, 8, layout)
    error, base = cuda.cuMemAlloc(GRANULARITY_BYTES + 512)
    assert not int(error)
    handle, offset = driver.export_memory(int(base) + 512)
    assert offset == 512
    descriptor = os.memfd_create("physical")
    os.ftruncate(descriptor, GRANULARITY_BYTES)
    parts = [Allocation(offset, GRANULARITY_BYTES, handle), Allocation(0, GRANULARITY_BYTES, b"", descriptor)]
    memory = CudaMemory(driver, UUID, parts, message, GEOMETRY)
    assert memory.address_of(9) == int(base) + 512 + 9
    memory.close()
    with pytest.raises(FlexKVError, match="device allocation of"):
        CudaMemory(driver, UUID, [Allocation(513, GRANULARITY_BYTES, handle), parts[1]], message, GEOMETRY)
    driver.destroy_event(driver.open_event(b"\x5a" * 64))
    with pytest.raises(CudaFailure):
        driver.open_event(bytes(64))


if __name__ == "__main__":
    pins_read_only = sys.argv[1] == "pins_read_only"
    opened = CudaDriver()
    check_pinning(opened, check_device(opened, pins_read_only=pins_read_only))
    check_physical(opened)
    check_handles(opened)
    sys.stdout.write("all of it\n")
