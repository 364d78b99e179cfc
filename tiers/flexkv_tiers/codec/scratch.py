"""The memory that compressed bytes lie in between a frame and the disk, shared with the child processes.

One memfd of whole pages, cut as asked for and given back in any order; who finds no room waits in line.
Pages that were never used are never allocated. `pool` is the only caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import TierFault
from flexkv_tiers.memory import Arena


class Runs:
    """Which pages are free: pure bookkeeping. Takes the first run that is long enough."""

    def __init__(self, pages: int) -> None:
        self._free = [(0, pages)]  # (start, count), ascending, no two touching

    def take(self, count: int) -> int | None:
        """The first page of a run now taken, or None."""
        for at, (start, free) in enumerate(self._free):
            if free >= count:
                self._free[at : at + 1] = [(start + count, free - count)] if free > count else []
                return start
        return None

    def give(self, start: int, count: int) -> None:
        """A run is free again; it joins its neighbours."""
        at = sum(each < start for each, _ in self._free)
        if at < len(self._free) and self._free[at][0] == start + count:
            count += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            at -= 1
            start, before = self._free.pop(at)
            count += before
        self._free.insert(at, (start, count))


class Scratch:
    """`room_bytes` of memory, in a segment as long as the arena's so that children can map both as one."""

    def __init__(self, segment_bytes: int, room_bytes: int) -> None:
        assert 0 < room_bytes <= segment_bytes
        self.room_bytes = room_bytes
        self.waiting_max = 0
        self._arena = Arena(segment_bytes, 1, huge_pages=False)
        self._runs = Runs(room_bytes // ALIGN_BYTES)
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()  # bounded by the moves in flight

    @property
    def segment_fds(self) -> list[int]:
        return self._arena.segment_fds

    def view(self, frame: int, length: int) -> memoryview:
        return self._arena.view(frame, length)

    @asynccontextmanager
    async def taken(self, length: int, timeout_s: float) -> AsyncIterator[int]:
        """A frame of `length` bytes (whole pages) until the block ends. Raises TierFault(LATE)."""
        assert length <= self.room_bytes
        count = length // ALIGN_BYTES
        frame = None if self._waiting else self._runs.take(count)
        if frame is None:
            frame = await self._wait(count, timeout_s)
        try:
            yield frame
        finally:
            self._give(frame, count)

    def close(self) -> None:
        self._arena.close()

    async def _wait(self, count: int, timeout_s: float) -> int:
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiter = count, granted
        self._waiting.append(waiter)
        self.waiting_max = max(self.waiting_max, len(self._waiting))
        try:
            await asyncio.wait([granted], timeout=timeout_s)
        except asyncio.CancelledError:
            if granted.done():
                self._give(granted.result(), count)
            raise
        finally:
            if not granted.done():
                self._waiting.remove(waiter)
                self._serve()  # whoever stood behind may fit
        if not granted.done():
            raise TierFault(Fault.LATE, f"no room to compress in within {timeout_s:g} s")
        return granted.result()

    def _give(self, frame: int, count: int) -> None:
        self._runs.give(frame, count)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (frame := self._runs.take(self._waiting[0][0])) is not None:
            self._waiting.popleft()[1].set_result(frame)
