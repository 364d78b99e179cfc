"""A Driver whose device is this process's own memory: what a machine without a GPU can run of the CUDA lanes.

Streams are real threads that run what is enqueued in order, events are waited for, and bytes move. It checks what
a device would refuse or be broken by: handles and descriptors of nobody, memory un-pinned under a copy.
It says nothing of the real driver's behaviour: that is what tests marked `gpu` are for.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.cuda import CudaFailure, Device, Rectangle
from flexkv_tiers.cuda.base import HANDLE_BYTES, Numbers

UUID = "GPU-00000000-0000-0000-0000-000000000001"
INVALID_VALUE = 1
GRANULARITY_BYTES = 2 << 20
"""Of physical memory, as on every device so far."""


class _Stream:
    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="host-stream")
        self.thread.start()

    def _run(self) -> None:
        while (step := self.work.get()) is not None:
            step()


class HostDriver:
    """See flexkv_tiers.cuda.Driver.

    Nothing is copied while `gate` is shut, nothing opened while `door` is, nothing pinned or un-pinned while `latch`
    is; `refuse` makes calls of a name fail.
    """

    def __init__(self, *, batches: bool = True) -> None:
        self.batches = batches
        self.uuids = [UUID]
        self.read_only_supported = False
        self.gate, self.door, self.latch = threading.Event(), threading.Event(), threading.Event()
        for each in (self.gate, self.door, self.latch):
            each.set()
        self.unpin_s = 0.0
        self._leaving = 0  # being un-pinned
        self.refuse: dict[str, int] = {}
        self.calls: list[str] = []
        self.pinned: dict[int, int] = {}
        self.opened: list[int] = []
        self.imported: dict[int, mmap.mmap] = {}
        self.read_only: list[bool] = []
        self._allocations: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._handles: dict[bytes, int] = {}
        self._physical: dict[int, int] = {}  # bytes by inode
        self._streams: dict[int, _Stream] = {}
        self._events: dict[int, threading.Event] = {}
        self._exported: dict[bytes, int] = {}
        self._next = 1

    def allocate(self, length: int) -> tuple[bytes, memoryview]:
        """What a worker would allocate and export: the handle, and its bytes."""
        memory = ctypes.create_string_buffer(length)
        handle = os.urandom(HANDLE_BYTES)
        self._allocations[ctypes.addressof(memory)] = memory
        self._handles[handle] = ctypes.addressof(memory)
        return handle, memoryview(memory).cast("B")

    def allocate_physical(self, length: int) -> tuple[int, mmap.mmap]:
        """What a worker would create and export of virtual memory management: the descriptor, and its bytes."""
        descriptor = os.memfd_create("physical")
        os.ftruncate(descriptor, length)
        self._physical[os.fstat(descriptor).st_ino] = length
        return descriptor, mmap.mmap(descriptor, length)

    def device(self, uuid: str) -> Device:
        if uuid != UUID:
            raise FlexKVError(ErrorCode.DEVICE_UNKNOWN, f"no device {uuid}: use {UUID}")
        self._called("device")
        return Device(UUID, 0, 1, self.read_only_supported)

    def enter(self, device: Device) -> None: ...

    def create_stream(self) -> int:
        self._called("create_stream")
        self._streams[self._number()] = _Stream()
        return self._next

    def destroy_stream(self, stream: int) -> None:
        gone = self._streams.pop(stream)
        gone.work.put(None)
        gone.thread.join()

    def synchronize(self, stream: int) -> None:
        done = threading.Event()
        self._streams[stream].work.put(done.set)
        assert done.wait(10)

    def create_event(self) -> int:
        self._called("create_event")
        self._events[self._number()] = threading.Event()
        return self._next

    def destroy_event(self, event: int) -> None:
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        self._called("record")
        self._events[event].clear()
        self._streams[stream].work.put(self._events[event].set)

    def await_event(self, event: int) -> None:
        assert self._events[event].wait(10)

    def wait_event(self, stream: int, event: int) -> None:
        self._streams[stream].work.put(lambda: self._events[event].wait(10))

    def copy_batch(self, stream: int, targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
        self._called("copy_batch")
        self._enqueue(stream, list(zip(targets.tolist(), sources.tolist(), lengths.tolist(), strict=True)))

    def copy_rectangle(self, stream: int, rectangle: Rectangle) -> None:
        self._called("copy_rectangle")
        each = rectangle
        rows = [
            (each.target + row * each.target_pitch, each.source + row * each.source_pitch, each.width)
            for row in range(each.height)
        ]
        self._enqueue(stream, rows)

    def write_value(self, stream: int, address: int, value: int) -> None:
        self._called("write_value")
        self._streams[stream].work.put(lambda: ctypes.memmove(address, value.to_bytes(4, "little"), 4))

    def pin(self, address: int, length: int, *, read_only: bool = False) -> None:
        assert self.latch.wait(10)
        self.read_only.append(read_only)
        self._called("pin")
        self.pinned[address] = length

    def unpin(self, address: int) -> None:
        self._leaving = address
        time.sleep(self.unpin_s)
        assert self.latch.wait(10)
        self._called("unpin")
        del self.pinned[address]
        self._leaving = 0

    def device_address(self, address: int) -> int:
        self._called("device_address")
        assert address in self.pinned
        return address

    def open_memory(self, handle: bytes) -> int:
        assert self.door.wait(10)
        if handle not in self._handles:
            raise CudaFailure("open_memory", INVALID_VALUE, "invalid value")
        self.opened.append(self._handles[handle])
        return self._handles[handle]

    def close_memory(self, address: int) -> None:
        self.opened.remove(address)

    def import_memory(self, descriptor: int, length: int, device: Device) -> int:
        """Refuses, as drivers do, what it has not exported, more than that has, and parts of granules."""
        assert self.door.wait(10)
        found = self._physical.get(os.fstat(descriptor).st_ino, 0)
        if length > found or length % GRANULARITY_BYTES:
            raise CudaFailure("import_memory", INVALID_VALUE, "invalid value")
        mapped = mmap.mmap(descriptor, length)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.imported[address] = mapped
        return address

    def release_memory(self, address: int, length: int) -> None:
        assert len(self.imported.pop(address)) == length

    def allocation_bytes(self, address: int) -> int:
        return len(self._allocations[address])

    def enqueue(self, stream: int, step: Callable[[], object] | None) -> None:
        """Work of the worker's own; None ends the stream."""
        self._streams[stream].work.put(step)

    def export_event(self, event: int) -> bytes:
        """What a worker would send of an event of its own."""
        handle = os.urandom(HANDLE_BYTES)
        self._exported[handle] = event
        return handle

    def open_event(self, handle: bytes) -> int:
        if handle not in self._exported:
            raise CudaFailure("open_event", INVALID_VALUE, "invalid value")
        self._events[self._number()] = self._events[self._exported[handle]]
        return self._next

    @property
    def event_count(self) -> int:
        """Those that nobody has destroyed."""
        return len(self._events)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.refuse:
            raise CudaFailure(name, self.refuse[name], "as the test wants it")

    def _enqueue(self, stream: int, rows: list[tuple[int, int, int]]) -> None:
        pinned = {self._registration(address) for row in rows for address in row[:2]}
        assert not self._leaving or self._leaving not in pinned, "a copy begins where memory is being un-pinned"
        self._streams[stream].work.put(lambda: self._copy(rows, pinned))

    def _registration(self, address: int) -> int:
        """The pinned part an address lies in; 0: in none."""
        pinned = dict(self.pinned)
        return next((each for each, length in pinned.items() if each <= address < each + length), 0)

    def _copy(self, rows: list[tuple[int, int, int]], pinned: set[int]) -> None:
        assert self.gate.wait(10)
        assert pinned <= {0, *self.pinned}, "memory was un-pinned under a copy that was submitted while it was pinned"
        for target, source, length in rows:
            ctypes.memmove(target, source, length)
