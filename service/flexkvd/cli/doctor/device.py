"""Checks of the GPU by the driver's own library: is there one, and does it pin an arena that workers cannot write."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from flexkvd.cli.doctor.finding import Finding, Subject, failed, ok, skipped, warning

LIBRARY = "libcuda.so.1"
DEVICES_MAX = 64
_NAME_BYTES = 256
_HOST_REGISTER_SUPPORTED = 99  # CUdevice_attribute, cuda.h
_READ_ONLY_HOST_REGISTER_SUPPORTED = 113
DRIVER_CURE = (
    "install the NVIDIA driver; in a container run with --gpus all, and with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


def device(subject: Subject) -> Iterator[Finding]:
    """Driver, devices, and how each pins host memory."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        if (subject.root / "dev/nvidiactl").exists():
            yield failed("cuda", f"there is an NVIDIA device, but no {LIBRARY}", DRIVER_CURE)
        else:
            yield skipped("cuda", f"no NVIDIA device and no {LIBRARY}: workers on CPU only")
        return
    if status := driver.cuInit(0):
        yield failed("cuda", f"the driver does not start (CUDA error {status})", f"see nvidia-smi; {DRIVER_CURE}")
        return
    version, found = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(found))
    yield ok("cuda", f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}, {found.value} devices")
    for ordinal in range(min(found.value, DEVICES_MAX)):
        yield _pinning(driver, ordinal, subject.config.row_path.arena)


def _pinning(driver: ctypes.CDLL, ordinal: int, arena: str) -> Finding:
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(handle), ordinal)
    driver.cuDeviceGetName(name, _NAME_BYTES, handle)
    what = f"pinning on {name.value.decode(errors='replace')} ({ordinal})"
    register = _attribute(driver, _HOST_REGISTER_SUPPORTED, handle)
    read_only = _attribute(driver, _READ_ONLY_HOST_REGISTER_SUPPORTED, handle)
    said = f"HOST_REGISTER_SUPPORTED = {register}, HOST_REGISTER_READ_ONLY_SUPPORTED = {read_only}"
    if not register:
        return failed(what, f"{said}: no memory of ours can be pinned", "use a device and driver that can register it")
    if not read_only and arena == "read-only":
        cure = (
            'set [row_path] arena = "shared" if all workers of this daemon may be trusted with each other\'s bytes; '
            "or use only the page path, which needs none of this"
        )
        return warning(what, f"{said}: the row path is refused with a read-only arena", cure)
    return ok(what, said)


def _attribute(driver: ctypes.CDLL, attribute: int, handle: ctypes.c_int) -> int:
    found = ctypes.c_int()
    return found.value if driver.cuDeviceGetAttribute(ctypes.byref(found), attribute, handle) == 0 else 0
