"""What we ask of a CUDA driver: the seam between our lanes and memory and the machine's libcuda.

Addresses, streams and events are plain integers. `driver` implements it; nothing in here says what is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault

HANDLE_BYTES = 64
"""Of a handle by which another process's memory or event is opened."""

Numbers = npt.NDArray[np.uint64]
"""Addresses or lengths in bytes, one dimension, contiguous: handed to the driver as it lies in memory."""


class CudaFailure(TierFault):
    """A driver call that failed. `code` is the driver's number, such as 801 for what it does not support."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(Fault.MEMORY, f"{call} failed: {name} ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this machine. `ordinal` and `context` are this process's own; `uuid` is everyone's."""

    uuid: str
    ordinal: int
    context: int
    read_only_supported: bool
    """Whether it can pin a mapping that cannot be written: what a trust group of strangers needs for the row path."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`height` runs of `width` bytes, evenly spaced on both sides: one 2-D copy, or a plain one if `height` is 1."""

    target: int
    source: int
    width: int
    height: int = 1
    target_pitch: int = 0
    source_pitch: int = 0


class Driver(Protocol):
    """One process's way to its devices. Calls that fail raise CudaFailure."""

    batches: bool
    """Whether `copy_batch` is there: since driver 12.8."""

    @property
    def uuids(self) -> Sequence[str]:
        """Of all devices this process sees, in the driver's order."""
        ...

    def device(self, uuid: str) -> Device:
        """Takes a quarter of a second the first time. Raises FlexKVError(DEVICE_UNKNOWN)."""
        ...

    def enter(self, device: Device) -> None:
        """Later calls of this thread mean this device."""
        ...

    def create_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None:
        """Return when all that was enqueued on the stream has ended; a thread may wait here, the loop never."""
        ...

    def create_event(self) -> int: ...

    def destroy_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None: ...

    def await_event(self, event: int) -> None:
        """Block this thread until the event's last record is reached."""
        ...

    def wait_event(self, stream: int, event: int) -> None:
        """What is enqueued on the stream from here on waits for the event's last record."""
        ...

    def copy_batch(self, stream: int, targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
        """Enqueue all copies with one call; they run in any order among themselves."""
        ...

    def copy_rectangle(self, stream: int, rectangle: Rectangle) -> None: ...

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Enqueue a 32-bit write that becomes visible after everything enqueued before it."""
        ...

    def pin(self, address: int, length: int, *, read_only: bool = False) -> None:
        """Make host memory known to all devices, so that copies from and into it are asynchronous.

        `read_only`: it is mapped so; needs a device with `read_only_supported`.
        """
        ...

    def unpin(self, address: int) -> None: ...

    def device_address(self, address: int) -> int:
        """Where kernels find pinned memory: not everywhere where the host does."""
        ...

    def open_memory(self, handle: bytes) -> int:
        """Address here of an allocation another process exported."""
        ...

    def close_memory(self, address: int) -> None: ...

    def import_memory(self, descriptor: int, length: int, device: Device) -> int:
        """Map physical memory that came as a descriptor, all of it; the descriptor stays the caller's."""
        ...

    def release_memory(self, address: int, length: int) -> None: ...

    def allocation_bytes(self, address: int) -> int:
        """How many bytes the allocation that begins at `address` has."""
        ...

    def open_event(self, handle: bytes) -> int:
        """Another process's event. Destroyed like one's own."""
        ...
