"""What this machine's device is: its releases and attributes, told before anything is measured on it.

`python -m scripts.bench_parts.attributes` prints them; it fails, and says with what, where nothing can be measured.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator

MODULES = ("torch", "triton", "cuda.bindings", "msgspec", "numpy", "xxhash", "rich", "pytest", "pytest_timeout")
"""What `scripts/device` needs of other projects; an interpreter that is named must have them all."""
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": "compute capability, major",
    "COMPUTE_CAPABILITY_MINOR": "compute capability, minor",
    "MULTIPROCESSOR_COUNT": "multiprocessors",
    "L2_CACHE_SIZE": "L2, bytes",
    "ASYNC_ENGINE_COUNT": "copy engines",
    "HOST_REGISTER_SUPPORTED": "pins host memory",
    "READ_ONLY_HOST_REGISTER_SUPPORTED": "pins mappings that are read-only: the row path without a shared arena",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": "kernels find pinned memory where the host does",
    "PAGEABLE_MEMORY_ACCESS": "reads memory that is not pinned",
    "CAN_USE_64_BIT_STREAM_MEM_OPS": "streams write 64-bit values",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": "virtual memory management",
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": "physical memory as descriptors",
    "IPC_EVENT_SUPPORTED": "events of other processes",
}
"""Of `CUdevice_attribute`, and what each is to us."""


def main() -> int:
    """Print them all; 1 where there is nothing to measure on."""
    missing = [name for name in MODULES if not _is_there(name)]
    if missing:
        print(f"scripts/device: {sys.executable} lacks {', '.join(missing)}: install them, or name another Python")
        return 1
    import torch  # noqa: PLC0415 - after it is known to be there

    if not torch.cuda.is_available():
        print(f"scripts/device: torch {torch.__version__} of {sys.executable} sees no CUDA device here")
        return 1
    for line in _lines():
        print(line)
    return 0


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a package around it is missing
        return False


def values() -> Iterator[tuple[str, int | None]]:
    """Each of `ATTRIBUTES`, as the driver names it, and its value; None where the driver does not know it."""
    from cuda.bindings import driver as cuda  # noqa: PLC0415

    cuda.cuInit(0)
    for name in ATTRIBUTES:
        attribute = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        error, value = cuda.cuDeviceGetAttribute(attribute, 0) if attribute is not None else (1, 0)
        yield name, None if int(error) else int(value)


def _lines() -> Iterator[str]:
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415
    from cuda.bindings import driver as cuda  # noqa: PLC0415

    yield f"Python {platform.python_version()}, torch {torch.__version__}, Triton {triton.__version__}"
    told = torch.cuda.get_device_properties(0)
    yield f"{told.name}, {told.total_memory / 2**30:.1f} GiB"
    cuda.cuInit(0)
    _, version = cuda.cuDriverGetVersion()
    yield f"driver for CUDA {version // 1000}.{version % 1000 // 10}"
    for name, value in values():
        yield f"  {name} = {'unknown' if value is None else value}: {ATTRIBUTES[name]}"


if __name__ == "__main__":
    sys.exit(main())
