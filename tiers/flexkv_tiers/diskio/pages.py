"""Small aligned memory for headers and footers, lent and taken back.

Fresh anonymous memory costs a page fault per 4 KiB and its return costs a call; a header's page is
needed with every record, so a few are kept. Used by every engine, from any thread.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from flexkv_py.geometry import ALIGN_BYTES

KEPT_COUNT_MAX = 64
"""Areas of one size that are kept; more may be lent at a time."""
KEPT_PAGES_MAX = 256
"""Larger areas are not kept."""


class PagePool:
    """Areas of aligned memory, by their size in pages."""

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}

    @contextmanager
    def lend(self, count: int) -> Iterator[memoryview]:
        """Borrow `count` pages. Their content is left over from the last use."""
        assert count > 0
        free = self._free.setdefault(count, [])
        try:
            area = free.pop()
        except IndexError:
            area = memoryview(mmap.mmap(-1, count * ALIGN_BYTES))  # never closed by hand: a traceback may hold a view
        try:
            yield area
        finally:
            if count <= KEPT_PAGES_MAX and len(free) < KEPT_COUNT_MAX:
                free.append(area)
