"""The daemon's arena as a worker's row path reads it: mapped by its client, pinned for its device, found by kernels.

Runs in the worker, on CPU as on CUDA. Owns what is pinned; the mapping is the client's, and what was granted is known
to the row path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from flexkv_py.client.arena import ArenaMap
from flexkv_tiers.cuda import Driver
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.memory.cuda import MappedArena


class SegmentTable(Protocol):
    """Where kernels look segments up: `hbm.tables.Segments`."""

    def map(self, buffers: Sequence[memoryview], segment_bytes: int) -> None:
        """Use these, which the host reads."""
        ...

    def point(self, addresses: Sequence[int], segment_bytes: int) -> None:
        """Use segments at these addresses of the device."""
        ...


class RowArena:
    """One worker's way to the arena, for one device: its UUID, or none for the CPU.

    `row_arena.open(client.map_arena(writable=row_arena.writable), row_path.tables.requests.segments)`
    """

    def __init__(self, device: str = "", driver: Driver | None = None) -> None:
        """Enters the device; takes a quarter of a second. Raises FlexKVError: CUDA_MISSING, DEVICE_UNKNOWN."""
        self._driver = driver or (CudaDriver() if device else None)
        self._device = self._driver.device(device) if self._driver and device else None
        self._arena: ArenaMap | None = None
        self._pinned: MappedArena | None = None

    @property
    def writable(self) -> bool:
        """How it must be mapped. A daemon whose arena is not `shared` refuses that, and names the cures."""
        return self._device is not None and not self._device.read_only_supported

    def open(self, arena: ArenaMap, segments: SegmentTable) -> None:
        """From now on kernels find this arena, and no more the one opened before: no request may read that any more.

        Raises FlexKVError: UNSUPPORTED for a mapping that the device cannot pin, BAD_CONFIG where it can be pinned no
        more; both name their cure.
        """
        self.close()
        views = [memoryview(segment) for segment in arena.segments]
        if self._driver is None or self._device is None:
            segments.map(views, arena.segment_bytes)
        else:
            self._pinned = MappedArena(self._driver, self._device, views, shared=arena.writable)
            segments.point(self._pinned.addresses, arena.segment_bytes)
        self._arena = arena  # what is pinned must stay mapped

    def close(self) -> None:
        """Un-pin; no kernel may read it any more. Idempotent."""
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.close()
        self._arena = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
