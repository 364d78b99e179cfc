"""A worker's KV on a CUDA device, opened from the handles it sent; and the arena pinned for all devices.

Owns what is mapped of other processes' device memory and which parts of the arena are pinned; copies nothing.
Handles come from strangers: their sizes are asked of the driver, never believed.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
"""Pinned by one call: the driver holds a lock meanwhile, and has refused calls of a hundred times as much."""


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
                f"the device memory cannot be opened ({failure.detail}): send handles of this life's memory, made on "
                "the device that is named, and register again after the worker moved it"
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


def pin_pieces(segment_bytes: int, segment_count: int, frame_bytes: int = 0) -> Iterator[tuple[int, int, int]]:
    """What is pinned by one call each: (segment, offset, bytes). No frame lies in two of them.

    A copy whose host side spans two registrations is refused by the driver. Frames lie within a segment, so a
    segment up to PIN_BYTES_MAX is one piece. A larger one is cut at multiples of `frame_bytes`, which must be what
    its frames have; 0: that is not known, and it stays whole.
    """
    piece = segment_bytes
    if frame_bytes and segment_bytes > PIN_BYTES_MAX:
        piece = max(1, PIN_BYTES_MAX // frame_bytes) * frame_bytes
    for segment in range(segment_count):
        for offset in range(0, segment_bytes, piece):
            yield segment, offset, min(piece, segment_bytes - offset)


class PinnedArena:
    """The arena's registration with the driver, portable to every device. One thread pins and un-pins it."""

    def __init__(self, driver: Driver, arena: Arena) -> None:
        self.pinned_bytes = 0
        self._driver = driver
        self._arena = arena
        self._pinned: list[tuple[int, int]] = []  # address and bytes of each registration, in order

    def pin(self, device: Device, stop: threading.Event, pinned: Callable[[], None] = lambda: None) -> None:
        """Pin all of it piece by piece until done or `stop` is set, calling `pinned` after each.

        Copies are right before that too, only slower: the driver takes them through memory of its own.
        Raises FlexKVError(BAD_CONFIG); what was pinned by then stays pinned.
        """
        arena, driver = self._arena, self._driver
        driver.enter(device)
        for segment, offset, length in pin_pieces(arena.segment_bytes, arena.room_bytes // arena.segment_bytes):
            if stop.is_set():
                return
            address = arena.segment_address(segment) + offset
            try:
                driver.pin(address, length)
            except CudaFailure as failure:
                raise _unpinned(length, failure, "make [dram] bytes smaller") from failure
            self._pinned.append((address, length))
            self.pinned_bytes += length
            pinned()

    def unpin(self, device: Device) -> None:
        """Let go piece by piece, the last first, so that an end in between leaves less to the kernel. Idempotent."""
        self._driver.enter(device)
        while self._pinned:
            address, length = self._pinned.pop()
            self._driver.unpin(address)
            self.pinned_bytes -= length


class MappedArena:
    """A worker's own mapping of the daemon's arena, pinned for its device: what the kernels of the row path read.

    `addresses` are for `hbm.tables.Segments.point`: addressing is unified, the device sees what the host sees.
    """

    def __init__(self, driver: Driver, device: Device, segments: Sequence[memoryview], *, shared: bool) -> None:
        """`segments` stay mapped until `close`; `shared`: they are mapped writable, as only a shared arena may be.

        Raises FlexKVError: UNSUPPORTED from `check_row_path`, before anything is pinned; BAD_CONFIG.
        """
        check_row_path(device, shared=shared)
        self._driver, self._device = driver, device
        views = [np.frombuffer(segment, np.uint8) for segment in segments]
        self.addresses: list[int] = []
        driver.enter(device)
        for view in views:
            try:
                driver.pin(view.ctypes.data, view.nbytes, read_only=not shared)
            except CudaFailure as failure:
                self.close()
                raise _unpinned(view.nbytes, failure, "use the page path in this worker") from failure
            self.addresses.append(view.ctypes.data)

    def close(self) -> None:
        """Un-pin, before the segments are unmapped. Idempotent."""
        self._driver.enter(self._device)
        while self.addresses:
            self._driver.unpin(self.addresses.pop())


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
