"""The daemon's devices: the driver, if this machine has one, memory on devices, and lanes for each device in use.

Owns when each of them comes and goes; `pinning` has the arena. Entering a device takes a quarter of a second and
opening a handle a millisecond, closing it as long, so all of that is done by one thread, in the order in which it was
asked for. Made by `parts`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import ALIGN_BYTES, Geometry
from flexkv_py.wire.messages import RegisterMemory
from flexkv_tiers.cuda import CudaFailure, Driver
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.lanes.base import Lanes
from flexkv_tiers.lanes.by_device import LanesByDevice
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.lanes.guard import SegmentGuard
from flexkv_tiers.memory import Arena, WorkerMemory
from flexkv_tiers.memory.cuda import Allocation, CudaMemory, PinnedArena
from flexkvd.config import CudaTable

log = logging.getLogger(__name__)

Opened = Callable[[CudaMemory | FlexKVError], None]
"""Hears, on the loop, what came of opening a memory."""


class Devices:
    """What registrations of device memory need. Without a driver each of them is refused with the reason."""

    def __init__(self, table: CudaTable, arena: Arena, host: Lanes, driver: Driver | None = None) -> None:
        """Raises FlexKVError(CUDA_MISSING) where CUDA is configured `on` and cannot be had."""
        self._driver, self._missing = (driver, None) if driver else _open_driver(table)
        self.guard = SegmentGuard(arena.segment_bytes // ALIGN_BYTES)
        self.lanes = LanesByDevice(host, self.guard)
        self.pinned = PinnedArena(self._driver, arena) if self._driver and self._driver.uuids else None
        self._arena = arena
        self._in_flight_bytes_max = table.copies_in_flight_bytes_max
        self._made: dict[str, CudaLanes] = {}  # the thread's own
        self._thread = ThreadPoolExecutor(1, "devices") if self._driver else None
        self._opening: dict[Future[CudaMemory], Opened] = {}  # whose ends nobody has heard of

    def check(self) -> None:
        """Raises FlexKVError(CUDA_MISSING) where no device can be used."""
        if self._missing is not None:
            raise FlexKVError(self._missing.code, self._missing.message)

    def open(self, message: RegisterMemory, descriptors: Sequence[int], geometry: Geometry, opened: Opened) -> None:
        """Open the memory of a registration that names a device; `opened` gets it, or the reason why not.

        The descriptors stay the caller's, and open until `opened` is called. Reasons are DEVICE_UNKNOWN,
        TIER_UNAVAILABLE and what CudaMemory refuses.
        """
        assert self._thread is not None, "see `check`"
        rest = iter(descriptors)
        parts = [
            Allocation(each.offset, each.length, each.handle, -1 if each.handle else next(rest))
            for each in message.allocations
        ]
        future = self._thread.submit(self._open, message, parts, geometry)
        self._opening[future] = opened
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: _on_loop(loop, partial(self._deliver, done)))

    def release(self, memory: WorkerMemory, closed: Callable[[], None]) -> None:
        """Close a memory that no copy touches any more, and call `closed`: at once where that takes no time."""
        if not isinstance(memory, CudaMemory):
            memory.close()
            closed()
            return
        assert self._thread is not None
        loop = asyncio.get_running_loop()
        try:
            future = self._thread.submit(_close, memory)
        except RuntimeError:  # the thread has ended, and soon this process will
            _close(memory)
            closed()
            return
        future.add_done_callback(lambda _: _on_loop(loop, closed))

    def close(self) -> None:
        """End the thread, then the lanes; before the arena is closed. No session lives to take what it opened."""
        if self._thread is not None:
            self._thread.shutdown()
        for future in list(self._opening):
            self._deliver(future)
        for device, lanes in self._made.items():
            self.lanes.add(device, lanes)
        self.lanes.close()

    def status(self) -> dict[str, object]:
        """Facts for people."""
        if self._driver is None:
            return {"cuda": self._missing.message if self._missing else "off"}
        pinned_bytes = self.pinned.pinned_bytes if self.pinned else 0
        return {"cuda": "on", "arena_pinned_bytes": pinned_bytes, "devices": list(self._driver.uuids)}

    def _deliver(self, future: Future[CudaMemory]) -> None:
        opened = self._opening.pop(future, None)
        if opened is None:
            return  # `close` was first
        error = future.exception()
        if error is None:
            memory = future.result()
            self.lanes.add(memory.device, self._made[memory.device])
            opened(memory)
        elif isinstance(error, FlexKVError):
            opened(error)
        else:
            log.error("a bug while opening memory of a device", exc_info=error)
            why = "the daemon met a bug while opening this memory: its log has the traceback"
            opened(FlexKVError(ErrorCode.INTERNAL, why))

    # ------------------------------------------------------------ on the thread

    def _open(self, message: RegisterMemory, parts: Sequence[Allocation], geometry: Geometry) -> CudaMemory:
        assert self._driver is not None
        memory = CudaMemory(self._driver, message.device, parts, message, geometry)
        if message.device in self._made:
            return memory
        try:
            self._made[message.device] = CudaLanes(
                self._driver, message.device, self._arena, bytes_in_flight_max=self._in_flight_bytes_max
            )
        except CudaFailure as failure:
            memory.close()
            raise FlexKVError(
                ErrorCode.TIER_UNAVAILABLE, f"no copies to this device ({failure.detail}): see the driver's log"
            ) from failure
        return memory


def descriptor_count(message: RegisterMemory) -> int:
    """How many descriptors travel beside this registration."""
    return 1 if not message.device else sum(not each.handle for each in message.allocations)


def _close(memory: WorkerMemory) -> None:
    try:
        memory.close()
    except CudaFailure as failure:  # its worker is gone, or the device is: there is nothing left to hold
        log.warning("memory of a device was not closed in order: %s", failure.detail)


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended: `close` sees to what is left
        loop.call_soon_threadsafe(call)


def _open_driver(table: CudaTable) -> tuple[Driver | None, FlexKVError | None]:
    if table.mode == "off":
        why = 'CUDA is off in this daemon: set [cuda] mode = "auto", or register memory of the host'
        return None, FlexKVError(ErrorCode.CUDA_MISSING, why)
    try:
        return CudaDriver(), None
    except FlexKVError as error:
        if table.mode == "on":
            raise
        return None, error
