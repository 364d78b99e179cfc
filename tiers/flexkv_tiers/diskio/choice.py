"""Which engine serves a directory: what the configuration says, or the best that works here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from flexkv_tiers.diskio.base import DiskIo
from flexkv_tiers.diskio.files import choose_io_path
from flexkv_tiers.diskio.threads import ThreadsIo

EngineName = Literal["auto", "io_uring", "threads", "aiofiles"]

PROBE_NAME = "flexkv.probe"
"""Made and removed in the directory to find out what its file system takes."""


def open_disk_io(directory: Path, engine: EngineName, depth: int, direct: bool) -> DiskIo:
    """An engine with at most `depth` transfers under way, on the running loop. Blocks for a moment.

    `direct` False keeps to buffered I/O. Raises OSError when the directory cannot be written.
    """
    choice = choose_io_path(directory / PROBE_NAME, direct)
    return ThreadsIo(choice, depth, f'configured: "{engine}"')
