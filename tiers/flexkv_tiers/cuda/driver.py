"""libcuda through NVIDIA's own bindings, loaded when first asked for.

The bindings take the arrays of a batch as lists of Python objects: 55 µs a block of 122 pieces (measured on a
CPU, without the driver's own time), more than all the time such a block may cost. So that one call goes to the
driver's entry point by ctypes, which reads our arrays where they lie; the rest is too rare to matter.
Not yet run on a device.
"""

from __future__ import annotations

import ctypes
import importlib
import uuid as uuids
from types import ModuleType
from typing import Any

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.cuda.base import HANDLE_BYTES, CudaFailure, Device, Numbers, Rectangle

LIBRARY = "libcuda.so.1"
BATCH_WITHOUT_INDEX = 13_000
"""The driver version since which a batch call no longer tells the index of what failed."""
BATCH_WITH_INDEX = 12_080
_PINNED_PORTABLE, _PINNED_MAPPED, _PINNED_READ_ONLY = 0x01, 0x02, 0x08
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p


class MemoryCopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: how every copy of a batch reads its source. The two hints are for managed memory."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


SOURCE_IN_STREAM_ORDER = 1


class CudaDriver:
    """The Driver of this machine. Any thread may call it after `enter`."""

    def __init__(self) -> None:
        """Raises FlexKVError(CUDA_MISSING)."""
        self._cuda = _load()
        try:
            self._check("cuInit", self._cuda.cuInit(0))
        except (CudaFailure, RuntimeError, OSError) as error:
            raise _missing(str(error)) from error
        self._devices: dict[str, Device] = {}
        self._batch = self._batch_entry()
        self.batches = self._batch is not None
        self._ordinals = {
            uuid_text(self._call("cuDeviceGetUuid", self._call("cuDeviceGet", ordinal)).bytes): ordinal
            for ordinal in range(self._call("cuDeviceGetCount"))
        }

    @property
    def uuids(self) -> list[str]:
        return list(self._ordinals)

    def device(self, uuid: str) -> Device:
        if uuid not in self._ordinals:
            known = ", ".join(self._ordinals) or "none"
            raise FlexKVError(
                ErrorCode.DEVICE_UNKNOWN,
                f"the daemon sees no device {uuid[:64]!r} (it sees: {known}): give the daemon the worker's devices "
                "(CUDA_VISIBLE_DEVICES, or the container's --gpus), and name them by UUID, never by ordinal",
            )
        if uuid not in self._devices:
            self._devices[uuid] = self._open_device(uuid)
        return self._devices[uuid]

    def enter(self, device: Device) -> None:
        self._call("cuCtxSetCurrent", device.context)

    def create_stream(self) -> int:
        return int(self._call("cuStreamCreate", self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def create_event(self) -> int:
        flags = self._cuda.CUevent_flags
        return int(self._call("cuEventCreate", flags.CU_EVENT_BLOCKING_SYNC | flags.CU_EVENT_DISABLE_TIMING))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def await_event(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def copy_batch(self, stream: int, targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
        assert self._batch is not None
        self._batch(stream, targets, sources, lengths)

    def copy_rectangle(self, stream: int, rectangle: Rectangle) -> None:
        if rectangle.height == 1:
            self._call("cuMemcpyAsync", rectangle.target, rectangle.source, rectangle.width, stream)
            return
        copy = self._cuda.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = self._cuda.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch = self._cuda.CUdeviceptr(rectangle.source), rectangle.source_pitch
        copy.dstDevice, copy.dstPitch = self._cuda.CUdeviceptr(rectangle.target), rectangle.target_pitch
        copy.WidthInBytes, copy.Height = rectangle.width, rectangle.height
        self._call("cuMemcpy2DAsync", copy, stream)

    def write_value(self, stream: int, address: int, value: int) -> None:
        # The default flag: a memory barrier before the write, so that who sees it sees the copies too.
        self._call("cuStreamWriteValue32", stream, address, value, 0)

    def pin(self, address: int, length: int, *, read_only: bool = False) -> None:
        flags = _PINNED_PORTABLE | _PINNED_MAPPED | (_PINNED_READ_ONLY if read_only else 0)
        self._call("cuMemHostRegister", address, length, flags)

    def unpin(self, address: int) -> None:
        self._call("cuMemHostUnregister", address)

    def device_address(self, address: int) -> int:
        return int(self._call("cuMemHostGetDevicePointer", address, 0))

    def open_memory(self, handle: bytes) -> int:
        opaque = _opaque(self._cuda.CUipcMemHandle(), handle)
        flag = self._cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(self._call("cuIpcOpenMemHandle", opaque, flag))

    def close_memory(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def import_memory(self, descriptor: int, length: int, device: Device) -> int:
        cuda = self._cuda
        kind = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        physical = self._call("cuMemImportFromShareableHandle", descriptor, kind)
        try:
            address = int(self._call("cuMemAddressReserve", length, 0, 0, 0))
            try:
                self._call("cuMemMap", address, length, 0, physical, 0)
                access = cuda.CUmemAccessDesc()
                access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = device.ordinal
                access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                self._call("cuMemSetAccess", address, length, [access], 1)
            except CudaFailure:
                cuda.cuMemUnmap(address, length)  # fails where nothing was mapped: no matter
                self._call("cuMemAddressFree", address, length)
                raise
        finally:
            self._call("cuMemRelease", physical)  # the mapping keeps the memory
        return address

    def release_memory(self, address: int, length: int) -> None:
        self._call("cuMemUnmap", address, length)
        self._call("cuMemAddressFree", address, length)

    def allocation_bytes(self, address: int) -> int:
        return int(self._call("cuMemGetAddressRange", address)[1])

    def export_memory(self, address: int) -> tuple[bytes, int]:
        """In the worker: the IPC handle of the allocation `address` lies in, and how far into it that is."""
        base = int(self._call("cuMemGetAddressRange", address)[0])
        handle = self._call("cuIpcGetMemHandle", base)
        return ctypes.string_at(handle.getPtr(), HANDLE_BYTES), address - base

    def open_event(self, handle: bytes) -> int:
        opaque = _opaque(self._cuda.CUipcEventHandle(), handle)
        return int(self._call("cuIpcOpenEventHandle", opaque))

    def _open_device(self, uuid: str) -> Device:
        """Takes a quarter of a second and some hundred megabytes of the device, so only for devices in use."""
        cuda, ordinal = self._cuda, self._ordinals[uuid]
        handle = self._call("cuDeviceGet", ordinal)
        attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        read_only = bool(self._call("cuDeviceGetAttribute", attribute, handle))
        return Device(uuid, ordinal, int(self._call("cuDevicePrimaryCtxRetain", handle)), read_only)

    def _batch_entry(self) -> BatchEntry | None:
        """The entry point that this driver has; None before 12.8."""
        version = self._call("cuDriverGetVersion")
        wanted = batch_version(version)
        if wanted is None:
            return None
        error, address, *_ = self._cuda.cuGetProcAddress(b"cuMemcpyBatchAsync", wanted, 0)
        return BatchEntry(int(address), wanted) if not int(error) and address else None

    def _call(self, name: str, *arguments: object) -> Any:
        return self._check(name, getattr(self._cuda, name)(*arguments))

    def _check(self, name: str, answer: tuple[Any, ...]) -> Any:
        error, *values = answer
        if int(error):
            raise CudaFailure(name, int(error), error.name)
        return values[0] if len(values) == 1 else tuple(values)


class BatchEntry:
    """cuMemcpyBatchAsync at an address, in the form of one driver version.

    ctypes releases the GIL around it and converts nothing: the arrays are passed where they lie.
    """

    def __init__(self, address: int, version: int) -> None:
        index = (_POINTER,) if version < BATCH_WITHOUT_INDEX else ()
        arguments = (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, *index, _POINTER)
        self._entry = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address)
        self._attributes = MemoryCopyAttributes(source_access_order=SOURCE_IN_STREAM_ORDER)
        self._first = _SIZE(0)
        self._failed = _SIZE(0)
        self._index = (ctypes.byref(self._failed),) if index else ()

    def __call__(self, stream: int, targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
        """Raises CudaFailure. Not for two threads at a time."""
        assert len(targets) == len(sources) == len(lengths) > 0
        places = [array.ctypes.data for array in (targets, sources, lengths)]
        attributes = (ctypes.byref(self._attributes), ctypes.byref(self._first), 1)
        code = self._entry(*places, len(targets), *attributes, *self._index, stream)
        if code:
            raise CudaFailure("cuMemcpyBatchAsync", code, "see cuda.h")


def batch_version(driver_version: int) -> int | None:
    """Which form of the batch call to ask a driver of this version for.

    >>> [batch_version(version) for version in (12_040, 12_080, 12_090, 13_010)]
    [None, 12080, 12080, 13000]
    """
    if driver_version >= BATCH_WITHOUT_INDEX:
        return BATCH_WITHOUT_INDEX
    return BATCH_WITH_INDEX if driver_version >= BATCH_WITH_INDEX else None


def uuid_text(raw: bytes) -> str:
    """A device's UUID as tools print it.

    >>> uuid_text(bytes(range(16)))
    'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    return f"GPU-{uuids.UUID(bytes=bytes(raw))}"


def _opaque(handle: Any, content: bytes) -> Any:
    """A handle of the bindings with this content; they name no field of it."""
    assert len(content) == HANDLE_BYTES
    ctypes.memmove(handle.getPtr(), content, HANDLE_BYTES)
    return handle


def _load() -> ModuleType:
    try:
        ctypes.CDLL(LIBRARY)  # first: without a driver the bindings would search the disk for it
    except OSError as error:
        raise _missing(f"there is no NVIDIA driver: {error}") from error
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise _missing(f"the Python bindings of CUDA are not installed ({error})") from error


def _missing(why: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.CUDA_MISSING,
        f"CUDA cannot be reached here ({why}): install NVIDIA's driver and `pip install flexkv-py[cuda]`, "
        "or use memory of the host",
    )
