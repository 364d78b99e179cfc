"""The daemon's devices: the driver, if this machine has one, lanes for each device in use, and the pinned arena.

Owns when each of them comes and goes. A device is entered when the first memory on it is registered, which takes
that registration a quarter of a second; pinning the arena begins then, in a thread. Made by `parts`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.wire.messages import RegisterMemory
from flexkv_tiers.cuda import CudaFailure, Device, Driver
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.lanes.base import Lanes
from flexkv_tiers.lanes.by_device import LanesByDevice
from flexkv_tiers.lanes.cuda import CudaLanes
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.cuda import Allocation, CudaMemory, PinnedArena
from flexkvd.config import CudaTable

log = logging.getLogger(__name__)


class Devices:
    """What registrations of device memory need. Without a driver each of them is refused with the reason."""

    def __init__(self, table: CudaTable, arena: Arena, host: Lanes, driver: Driver | None = None) -> None:
        """Raises FlexKVError(CUDA_MISSING) where CUDA is configured `on` and cannot be had."""
        self.lanes = LanesByDevice(host, self._lanes_of)
        self._arena = arena
        self._in_flight_bytes_max = table.copies_in_flight_bytes_max
        self._driver, self._missing = (driver, None) if driver else _open_driver(table)
        self._pinned = PinnedArena(self._driver, arena) if self._driver else None
        self._pinned_for: Device | None = None
        self._stop = threading.Event()
        self._pinning: threading.Thread | None = None

    def open(self, message: RegisterMemory, descriptors: Sequence[int], geometry: Geometry) -> CudaMemory:
        """The memory of a registration that names a device. The descriptors stay the caller's.

        Raises FlexKVError: CUDA_MISSING, DEVICE_UNKNOWN, and what CudaMemory refuses.
        """
        if self._driver is None:
            assert self._missing is not None
            raise FlexKVError(self._missing.code, self._missing.message)
        rest = iter(descriptors)
        parts = [
            Allocation(each.offset, each.length, each.handle, -1 if each.handle else next(rest))
            for each in message.allocations
        ]
        memory = CudaMemory(self._driver, message.device, parts, message, geometry)
        try:
            self.lanes.open(message.device)
        except CudaFailure as failure:
            memory.close()
            raise FlexKVError(
                ErrorCode.TIER_UNAVAILABLE, f"no copies to this device ({failure.detail}): see the driver's log"
            ) from failure
        return memory

    def close(self) -> None:
        """End the lanes, then un-pin; before the arena is closed."""
        self._stop.set()
        if self._pinning is not None:
            self._pinning.join()
        self.lanes.close()
        if self._pinned is not None and self._pinned_for is not None:
            self._pinned.unpin(self._pinned_for)

    def status(self) -> dict[str, object]:
        """Facts for people."""
        if self._pinned is None:
            return {"cuda": self._missing.message if self._missing else "off"}
        return {"cuda": "on", "arena_pinned_bytes": self._pinned.pinned_bytes}

    def _lanes_of(self, uuid: str) -> Lanes:
        assert self._driver is not None
        lanes = CudaLanes(self._driver, uuid, self._arena, bytes_in_flight_max=self._in_flight_bytes_max)
        if self._pinning is None:
            self._pinned_for = self._driver.device(uuid)
            self._pinning = threading.Thread(target=self._pin, name="pin-arena")
            self._pinning.start()
        return lanes

    def _pin(self) -> None:
        assert self._pinned is not None
        assert self._pinned_for is not None
        try:
            self._pinned.pin(self._pinned_for, self._stop)
        except FlexKVError as error:  # what is not pinned is copied all the same, slower
            log.error("the arena is not pinned: %s", error)


def descriptor_count(message: RegisterMemory) -> int:
    """How many descriptors travel beside this registration."""
    return 1 if not message.device else sum(not each.handle for each in message.allocations)


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
