"""Memory on a device, opened from what a worker sent, over the driver of the host: what lies where, what is refused."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import LayerLayout, RegisterMemory
from flexkv_tiers.memory.cuda import ALLOCATIONS_MAX, Allocation, CudaMemory
from tests.tiers.host_driver import GRANULARITY_BYTES, UUID, HostDriver
from tests.tiers.paged import GEOMETRY, PAGE_COUNT, layer_first

MESSAGE = layer_first(GEOMETRY, 8)


def by_plane() -> RegisterMemory:
    """The layers of each plane in an allocation of their own, of one granule: as virtual memory management gives it."""
    layout, ends = [], [0, GRANULARITY_BYTES]
    for entry in MESSAGE.layout:
        layout.append(LayerLayout(entry.plane, entry.layer, ends[entry.plane], entry.page_stride, entry.page_bytes))
        ends[entry.plane] += PAGE_COUNT * entry.page_stride
    return RegisterMemory(1, 2 * GRANULARITY_BYTES, PAGE_COUNT, MESSAGE.page_tokens, layout)


def opened(driver: HostDriver, *parts: Allocation, uuid: str = UUID, message: RegisterMemory = MESSAGE) -> CudaMemory:
    return CudaMemory(driver, uuid, parts, message, GEOMETRY)


class Physical:
    """What a worker exported of its virtual memory management, and descriptors that are no such thing."""

    def __init__(self, driver: HostDriver, stack: ExitStack) -> None:
        self._driver, self._stack = driver, stack

    def part(self, length: int, said: int | None = None) -> tuple[Allocation, mmap.mmap]:
        descriptor, content = self._driver.allocate_physical(length)
        self._stack.callback(os.close, descriptor)
        return Allocation(0, length if said is None else said, b"", descriptor), content

    def foreign(self, path: str) -> Allocation:
        """A descriptor that no driver exported."""
        descriptor = os.open(path, os.O_RDWR)
        self._stack.callback(os.close, descriptor)
        return Allocation(0, GRANULARITY_BYTES, b"", descriptor)


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    """Whatever a test does, nothing is left open."""
    driver = HostDriver()
    yield driver
    assert not driver.opened
    assert not driver.imported


@pytest.fixture
def physical(driver: HostDriver) -> Iterator[Physical]:
    with ExitStack() as stack:
        yield Physical(driver, stack)


def test_physical_memory_that_comes_as_descriptors_is_mapped_whole_and_released(
    driver: HostDriver, physical: Physical
) -> None:
    """Two allocations are one memory: what the worker writes is read where its layout says."""
    (first, kv), (second, index) = physical.part(GRANULARITY_BYTES), physical.part(GRANULARITY_BYTES)
    memory = opened(driver, first, second, message=by_plane())
    kv[5], index[7] = 55, 77
    for offset, value in {5: 55, GRANULARITY_BYTES + 7: 77}.items():
        assert ctypes.string_at(memory.address_of(offset), 1)[0] == value
    assert len(driver.imported) == 2
    memory.close()


def test_handles_and_descriptors_make_one_memory(driver: HostDriver, physical: Physical) -> None:
    """An engine may have some of its KV from a pool with handles and some that moves when it sleeps."""
    handle, content = driver.allocate(GRANULARITY_BYTES)
    part, moving = physical.part(GRANULARITY_BYTES)
    memory = opened(driver, Allocation(0, GRANULARITY_BYTES, handle), part, message=by_plane())
    content[0], moving[0] = 1, 2
    for offset, value in {0: 1, GRANULARITY_BYTES: 2}.items():
        assert ctypes.string_at(memory.address_of(offset), 1)[0] == value
    memory.close()


@pytest.mark.parametrize("what", ["larger", "torn granule", "/dev/zero", "/dev/null"])
def test_descriptors_that_lie_are_refused_and_leave_nothing_mapped(
    driver: HostDriver, physical: Physical, what: str
) -> None:
    """More than there is, a part of a granule, no physical memory at all: the part before it is released again."""
    sound, _ = physical.part(GRANULARITY_BYTES)
    message = by_plane()
    if what == "larger":
        bad, _ = physical.part(GRANULARITY_BYTES, said=2 * GRANULARITY_BYTES)
    elif what == "torn granule":
        bad, _ = physical.part(GRANULARITY_BYTES, said=GRANULARITY_BYTES - 4096)
    else:
        bad = physical.foreign(what)
    message.bytes = sound.length + bad.length
    with pytest.raises(FlexKVError, match="the whole length of their memory") as caught:
        opened(driver, sound, bad, message=message)
    assert caught.value.code is ErrorCode.BAD_MEMORY


def test_a_memory_of_several_allocations_is_one() -> None:
    """Engines allocate by layer: offsets of the layout go on through the parts, wherever these lie."""
    driver = HostDriver()
    cut = MESSAGE.layout[3].offset
    handles = [driver.allocate(64 + cut), driver.allocate(MESSAGE.bytes - cut)]
    memory = opened(driver, Allocation(64, cut, handles[0][0]), Allocation(0, MESSAGE.bytes - cut, handles[1][0]))
    for offset, (view, at) in {0: (handles[0][1], 64), cut: (handles[1][1], 0), cut + 9: (handles[1][1], 9)}.items():
        assert memory.address_of(offset) == ctypes.addressof(ctypes.c_char.from_buffer(view, at))
    memory.close()
    assert not driver.opened


HANDLE = bytes(64)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], ErrorCode.BAD_ARGUMENT),
        ([Allocation(0, 1, HANDLE)] * (ALLOCATIONS_MAX + 1), ErrorCode.BAD_ARGUMENT),
        ([Allocation(0, MESSAGE.bytes - 1, HANDLE)], ErrorCode.BAD_ARGUMENT),
        ([Allocation(-1, MESSAGE.bytes, HANDLE)], ErrorCode.BAD_ARGUMENT),
        ([Allocation(0, MESSAGE.bytes, b"short")], ErrorCode.BAD_ARGUMENT),
        ([Allocation(8, MESSAGE.bytes, b"", 3)], ErrorCode.BAD_ARGUMENT),
        ([Allocation(0, 10, HANDLE), Allocation(0, MESSAGE.bytes - 10, HANDLE)], ErrorCode.BAD_ARGUMENT),
        ([Allocation(0, MESSAGE.bytes, HANDLE)], ErrorCode.BAD_MEMORY),  # a handle of nobody
    ],
)
def test_handles_that_lie_are_refused(parts: list[Allocation], code: ErrorCode) -> None:
    """Parts that are not the memory, tear a layer or open nothing are coded errors that leave nothing open."""
    driver = HostDriver()
    with pytest.raises(FlexKVError) as caught:
        opened(driver, *parts)
    assert caught.value.code is code
    assert ": " in caught.value.message
    assert not driver.opened


def test_an_allocation_smaller_than_said_is_refused() -> None:
    """The driver's word on the size counts, not the worker's: else a copy could leave the allocation."""
    driver = HostDriver()
    handle, _ = driver.allocate(MESSAGE.bytes)
    with pytest.raises(FlexKVError, match="allocation of") as caught:
        opened(driver, Allocation(8, MESSAGE.bytes, handle))
    assert caught.value.code is ErrorCode.BAD_MEMORY
    assert not driver.opened


def test_a_device_the_daemon_does_not_see_is_refused() -> None:
    """Devices are named by UUID; one that is not there is said so before anything is opened."""
    with pytest.raises(FlexKVError) as caught:
        opened(HostDriver(), Allocation(0, MESSAGE.bytes, HANDLE), uuid="GPU-none")
    assert caught.value.code is ErrorCode.DEVICE_UNKNOWN
