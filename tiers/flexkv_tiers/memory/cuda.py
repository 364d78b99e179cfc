"""A worker's KV on a CUDA device, opened from the handles it sent; and the arena pinned for all devices.

Owns what is mapped of other processes' device memory and which parts of the arena are pinned; copies nothing.
Handles come from strangers: their sizes are asked of the driver, never believed.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.wire.messages import RegisterMemory
from flexkv_tiers.cuda import CudaFailure, Device, Driver
from flexkv_tiers.cuda.base import HANDLE_BYTES
from flexkv_tiers.memory.arena import Arena
from flexkv_tiers.memory.descriptors import PieceTable, piece_table
from flexkv_tiers.memory.layout import check_layout
from flexkv_tiers.memory.worker import WorkerMemory

ALLOCATIONS_MAX = 1024
"""Of one registered memory: engines make one per layer and plane."""
PIN_BYTES_MAX = 1 << 30
"""Pinned by one call, so no segment is larger: the driver holds a lock meanwhile, and has refused a hundred times as
much."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A part of a worker's memory: `length` bytes from `offset` of one device allocation that it exported.

    Either an IPC `handle`, or empty and a `descriptor` of physical memory, mapped from its beginning.
    """

    offset: int
    length: int
    handle: bytes = b""
    descriptor: int = -1


class CudaMemory(WorkerMemory):
    """Memory on a device. The parts follow each other in the offsets of the layout; each row lies in one of them."""

    def __init__(
        self, driver: Driver, uuid: str, parts: Sequence[Allocation], message: RegisterMemory, geometry: Geometry
    ) -> None:
        """Check and open; takes milliseconds. The descriptors stay the caller's.

        Raises FlexKVError: BAD_ARGUMENT or GEOMETRY_MISMATCH for the numbers, DEVICE_UNKNOWN for the device,
        BAD_MEMORY for handles that do not open or are smaller than said.
        """
        check_layout(geometry, message)
        check_parts(parts, message)
        self.device = uuid
        self._driver, self._where = driver, driver.device(uuid)
        self._opened = ExitStack()
        self._closed = False
        super().__init__(message, geometry, (uuid, tuple((part.handle, part.offset) for part in parts)))
        driver.enter(self._where)
        try:
            addresses = [self._open(part) for part in parts]
        except CudaFailure as failure:
            self._opened.close()
            raise _refuse(
                f"the device memory cannot be opened ({failure.detail}): send handles that the worker's CUDA "
                "exported of memory on the device that is named, descriptors with the whole length of their memory, "
                "and register again after the worker moved it"
            ) from failure
        except FlexKVError:
            self._opened.close()
            raise
        self._starts = list(itertools.accumulate((part.length for part in parts), initial=0))
        self._addresses = addresses
        self.pieces: tuple[PieceTable, ...] = tuple(piece_table(each, self.address_of) for each in self.strands)

    def address_of(self, offset: int) -> int:
        """Where a byte of the registered memory lies in this process."""
        part = bisect_right(self._starts, offset) - 1
        return self._addresses[part] + offset - self._starts[part]

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._driver.enter(self._where)
        self._opened.close()

    def _open(self, part: Allocation) -> int:
        driver = self._driver
        if not part.handle:
            address = driver.import_memory(part.descriptor, part.length, self._where)
            self._opened.callback(driver.release_memory, address, part.length)
            return address
        address = driver.open_memory(part.handle)
        self._opened.callback(driver.close_memory, address)
        found = driver.allocation_bytes(address)
        if part.offset + part.length > found:
            raise _refuse(
                f"bytes {part.offset} to {part.offset + part.length} of a device allocation of {found} bytes were "
                "announced: send the offset within the allocation, and no more bytes than it has"
            )
        return address + part.offset


def check_parts(parts: Sequence[Allocation], message: RegisterMemory) -> None:
    """Refuse (BAD_ARGUMENT) parts that are not the whole memory, or between which a layer would be torn."""
    if not 1 <= len(parts) <= ALLOCATIONS_MAX:
        raise _bad(f"{len(parts)} allocations make up this memory: send 1 to {ALLOCATIONS_MAX}")
    for part in parts:
        if part.length < 1 or part.offset < 0 or (part.handle and len(part.handle) != HANDLE_BYTES):
            raise _bad(
                f"an allocation of {part.length} bytes from offset {part.offset} with a handle of {len(part.handle)} "
                f"bytes: send at least 1 byte, no negative offset, and the {HANDLE_BYTES} bytes of an IPC handle"
            )
        if not part.handle and part.offset:
            raise _bad(
                f"an allocation that comes as a descriptor begins at offset {part.offset}: it is mapped whole, "
                "so say 0 here and put the offset into the layout"
            )
    ends = list(itertools.accumulate(part.length for part in parts))
    if ends[-1] != message.bytes:
        raise _bad(f"the allocations have {ends[-1]} bytes in all, {message.bytes} were announced: make them equal")
    for entry in message.layout:
        last = entry.offset + (message.page_count - 1) * entry.page_stride + entry.page_bytes - 1
        if bisect_right(ends, entry.offset) != bisect_right(ends, last):
            raise _bad(
                f"plane {entry.plane}, layer {entry.layer} lies in more than one allocation: "
                "register memory whose layers are each in one"
            )


class PinnedArena:
    """Which segments of the arena are registered with the driver, portable to every device.

    A segment is one registration: a frame lies in one segment, and the driver refuses copies that touch two. Says what
    is to be pinned or let go next; who calls sees to it that one thread does so at a time, and nobody copies meanwhile
    what is let go.
    """

    def __init__(self, driver: Driver, arena: Arena) -> None:
        assert arena.segment_bytes <= PIN_BYTES_MAX, "the configuration allows no larger ones"
        self._driver = driver
        self._arena = arena
        self._device: Device | None = None
        self._pinned: dict[int, None] = {}  # segments, in the order in which they were pinned
        self._rest = list(range(arena.segment_count))  # the others, as a heap

    @property
    def pinned_bytes(self) -> int:
        return len(self._pinned) * self._arena.segment_bytes

    def next_to_pin(self, populated_bytes: int) -> int | None:
        """The first segment that is not pinned, if it lies within what is populated."""
        ready = self._rest and (self._rest[0] + 1) * self._arena.segment_bytes <= populated_bytes
        return self._rest[0] if ready else None

    def next_to_let_go(self, used: Container[int]) -> int | None:
        """The segment pinned last that is not `used`."""
        return next((each for each in reversed(self._pinned) if each not in used), None)

    def pin(self, segment: int) -> None:
        """Blocks while the driver looks at every page; the first time also while a device is opened.

        Copies are right before that too, only slower: the driver takes them through memory of its own.
        Raises FlexKVError(BAD_CONFIG).
        """
        length = self._arena.segment_bytes
        try:
            self._enter()
        except CudaFailure as failure:
            raise FlexKVError(
                ErrorCode.BAD_CONFIG,
                f"device {self._driver.uuids[0]} cannot be entered ({failure.detail}): free it, or hide it from "
                "the daemon (CUDA_VISIBLE_DEVICES)",
            ) from failure
        try:
            self._driver.pin(self._arena.segment_address(segment), length)
        except CudaFailure as failure:
            raise _unpinned(length, failure, "make [dram] bytes smaller") from failure
        assert heapq.heappop(self._rest) == segment
        self._pinned[segment] = None

    def unpin(self, segment: int) -> None:
        """Blocks as `pin` does. What the driver will not let go of is the kernel's to let go. Raises CudaFailure."""
        self._enter()
        try:
            self._driver.unpin(self._arena.segment_address(segment))
        finally:
            del self._pinned[segment]
            heapq.heappush(self._rest, segment)

    def _enter(self) -> None:
        self._device = self._device or self._driver.device(self._driver.uuids[0])
        self._driver.enter(self._device)


class MappedArena:
    """A worker's own mapping of the daemon's arena, pinned for its device: what the kernels of the row path read.

    `addresses` are the device's own, for `hbm.tables.Segments.point`.
    """

    def __init__(self, driver: Driver, device: Device, segments: Sequence[memoryview], *, shared: bool) -> None:
        """`segments` stay mapped until `close`; `shared`: they are mapped writable, as only a shared arena may be.

        Raises FlexKVError: UNSUPPORTED from `check_row_path`, before anything is pinned; BAD_CONFIG.
        """
        check_row_path(device, shared=shared)
        self._driver, self._device = driver, device
        views = [np.frombuffer(segment, np.uint8) for segment in segments]
        self.addresses: list[int] = []
        self._pinned: list[int] = []
        driver.enter(device)
        for view in views:
            try:
                driver.pin(view.ctypes.data, view.nbytes, read_only=not shared)
                self._pinned.append(view.ctypes.data)
                self.addresses.append(driver.device_address(view.ctypes.data))
            except CudaFailure as failure:
                self.close()
                raise _unpinned(view.nbytes, failure, "use the page path in this worker") from failure

    def close(self) -> None:
        """Un-pin, before the segments are unmapped. Idempotent."""
        self._driver.enter(self._device)
        self.addresses.clear()
        while self._pinned:
            self._driver.unpin(self._pinned.pop())


def check_row_path(device: Device, *, shared: bool) -> None:
    """Refuse (UNSUPPORTED) the row path where the device cannot pin what its trust group may not write."""
    if not shared and not device.read_only_supported:
        raise FlexKVError(
            ErrorCode.UNSUPPORTED,
            f"device {device.uuid} cannot pin a read-only mapping of the arena, which the row path reads: configure "
            "the trust group as `shared`, so that its members trust each other's bytes, or use the page path only",
        )


def _unpinned(length: int, failure: CudaFailure, cure: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.BAD_CONFIG,
        f"{length} bytes of the arena cannot be pinned ({failure.detail}): {cure}, or raise the limit on locked memory "
        "(LimitMEMLOCK=infinity)",
    )


def _bad(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_MEMORY, why)
