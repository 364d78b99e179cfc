"""What of a file the kernel holds in memory."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path


def cached_pages(path: Path) -> int:
    """How many pages of a file the kernel holds."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as memory:
        pages = (ctypes.c_ubyte * (len(memory) // mmap.PAGESIZE))()
        view = ctypes.c_char.from_buffer(memory)
        assert ctypes.CDLL(None).mincore(ctypes.byref(view), ctypes.c_size_t(len(memory)), pages) == 0
        del view
        return sum(page & 1 for page in pages)
