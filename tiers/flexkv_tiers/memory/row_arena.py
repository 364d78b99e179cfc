"""The daemon's arena as a worker's row path reads it: mapped by its client, pinned for its device, found by kernels.

Runs in the worker, on CPU as on CUDA. Owns what is pinned; the mapping is the client's, and what was granted is known
to the row path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from flexkv_py.client.arena import ArenaMap
from flexkv_tiers.cuda import Driver
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.memory.cuda import MappedArena


class ArenaReader(Protocol):
    """Whose requests read the arena: `hbm.worker.RowPath`. Both raise where a request still reads another one."""

    def map_arena(self, segments: Sequence[memoryview], segment_bytes: int) -> None:
        """Use these, which the host reads."""
        ...

    def point_arena(self, addresses: Sequence[int], segment_bytes: int) -> None:
        """Use segments at these addresses of the device."""
        ...


class RowArena:
    """One worker's way to the arena, for one device: its UUID, or none for the CPU.

    `row_arena.open(client.map_arena(writable=row_arena.writable), row_path)`
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

    def open(self, arena: ArenaMap, reader: ArenaReader) -> None:
        """From now on `reader` reads this arena, and no more the one opened before.

        Raises FlexKVError, and changes nothing: BAD_ARGUMENT while requests read another arena; UNSUPPORTED for a
        mapping that the device cannot pin, BAD_CONFIG where it can be pinned no more. All name their cure.
        """
        views = [memoryview(segment) for segment in arena.segments]
        with ExitStack() as undone:
            pinned = None
            if self._driver is None or self._device is None:
                reader.map_arena(views, arena.segment_bytes)
            else:
                pinned = MappedArena(self._driver, self._device, views, shared=arena.writable)
                undone.callback(pinned.close)
                reader.point_arena(pinned.addresses, arena.segment_bytes)
            undone.pop_all()
        self.close()
        self._pinned, self._arena = pinned, arena  # what is pinned must stay mapped

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
