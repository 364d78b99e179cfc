"""Which engine serves a directory: what the configuration says, or the best that works here.

io_uring is the first choice because it measures best: `scripts/bench --only ssd` sets the engines side
by side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.diskio.base import DiskIo
from flexkv_tiers.diskio.files import IoChoice, IoPath, choose_io_path
from flexkv_tiers.diskio.portable import AiofilesIo
from flexkv_tiers.diskio.threads import ThreadsIo
from flexkv_tiers.diskio.uring import UringIo

EngineName = Literal["auto", "io_uring", "threads", "aiofiles"]

PROBE_NAME = "flexkv.probe"
"""Made and removed in the directory to find out what its file system takes."""


def open_disk_io(directory: Path, engine: EngineName, depth: int, direct: bool) -> DiskIo:
    """An engine with at most `depth` transfers under way, on the running loop. Blocks for a moment.

    `direct` False keeps to buffered I/O. Raises OSError when the directory cannot be written, and
    FlexKVError(BAD_CONFIG) when io_uring is asked for by name and the kernel does not let us.
    """
    choice = choose_io_path(directory / PROBE_NAME, direct)
    configured = "the configuration says so"
    if engine == "threads":
        return ThreadsIo(choice, depth, configured)
    if engine == "aiofiles":
        return AiofilesIo(choice, depth, configured)
    try:
        return UringIo(choice, depth, configured if engine == "io_uring" else "the fastest, and it works here")
    except OSError as error:
        if engine == "io_uring":
            raise FlexKVError(
                ErrorCode.BAD_CONFIG,
                f'[ssd] io = "io_uring" cannot be had: {error.strerror}. Allow it, or set io = "auto"',
            ) from error
        return ThreadsIo(choice, depth, f"io_uring cannot be had: {error.strerror}")


def open_disk_to_read(depth: int) -> DiskIo:
    """An engine that only reads, and tries nothing out: it works on a read-only file system too."""
    choice = IoChoice(IoPath.FADVISE, "nothing may be written to find out more", read_only=True)
    return ThreadsIo(choice, depth, "only reads are asked for")
