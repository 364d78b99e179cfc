"""Pins the arena behind everything else, and lets it go when the daemon drains: a segment at a time, on a thread.

Owns which of the two is wanted, how far that is, and the step that `/readyz` shows meanwhile. Nobody waits for it but
the end of a drain: copies from what is not pinned are right, only slower. Un-pinning hundreds of gigabytes takes longer
than a process has once it ends, so it begins with the drain; a segment is let go while no copy touches it. Made by
`parts`, started by `daemon`, told of drains by it and by `operations`.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from flexkv_py.errors import FlexKVError
from flexkv_tiers.cuda import CudaFailure
from flexkv_tiers.lanes.guard import SegmentGuard
from flexkv_tiers.memory import Arena
from flexkv_tiers.memory.cuda import PinnedArena
from flexkvd.readiness import Readiness

log = logging.getLogger(__name__)

STEP = "pinning"


class Pinning:
    """All methods belong to the loop. Without a device (`pinned` is None) they do nothing."""

    def __init__(
        self,
        pinned: PinnedArena | None,
        arena: Arena,
        guard: SegmentGuard,
        readiness: Readiness,
        loop: asyncio.AbstractEventLoop,
        *,
        populates: bool,
    ) -> None:
        """`populates`: somebody populates the arena and calls `go_on` as that advances; the rest is not pinned yet."""
        self._pinned = pinned
        self._arena = arena
        self._guard = guard
        self._readiness = readiness
        self._loop = loop
        self._populates = populates
        self._wanted = False  # pinned; else let go
        self._failure = ""  # why no more is pinned
        self._at_work = False  # the thread has a segment
        self._closed = False
        self._settled = asyncio.Event()
        self._settled.set()
        self._thread = ThreadPoolExecutor(1, "pin-arena") if pinned else None

    @property
    def pinned_bytes(self) -> int:
        return self._pinned.pinned_bytes if self._pinned else 0

    def begin(self) -> None:
        """From now on all of it is to be pinned."""
        self._change(wanted=True)

    def let_go(self) -> None:
        """From now on none of it is."""
        self._change(wanted=False)

    def go_on(self) -> None:
        """A segment more is populated, or a copy has ended: there may be something to do now."""
        if self._pinned is None or self._at_work or self._closed or self._settled.is_set():
            return
        segment = self._next(self._pinned)
        if segment is not None:
            self._start(self._pinned, segment)
        elif self._is_done(self._pinned):
            self._settled.set()
            self._guard.on_ended = lambda: None
            self._readiness.end(STEP)
            log.info("the arena is %s", "pinned" if self._wanted else "let go of")

    async def settled(self) -> None:
        """Return once all of it is as is wanted."""
        await self._settled.wait()

    def close(self) -> None:
        """Leave what is still pinned to the kernel; blocks for the segment the thread is at."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._guard.let_through()
        if self.pinned_bytes:
            log.warning(
                "%d of %d bytes of the arena are still pinned: the kernel lets go of them, which may delay the end of "
                "this process. Raise [daemon] drain_s",
                self.pinned_bytes, self._arena.room_bytes,
            )  # fmt: skip

    def _change(self, *, wanted: bool) -> None:
        if self._pinned is None or self._closed or (self._wanted == wanted and not self._failure):
            return
        self._wanted, self._failure = wanted, ""
        self._guard.on_ended = (lambda: None) if wanted else self.go_on
        if self._settled.is_set():
            self._settled.clear()
            self._readiness.begin(STEP, self._progress, awaited=False)
        self.go_on()

    def _next(self, pinned: PinnedArena) -> int | None:
        if not self._wanted:
            return pinned.next_to_let_go(self._guard.used())
        room = self._arena.populated_bytes if self._populates else self._arena.room_bytes
        return None if self._failure else pinned.next_to_pin(room)

    def _is_done(self, pinned: PinnedArena) -> bool:
        return pinned.pinned_bytes == (self._arena.room_bytes if self._wanted else 0)

    def _start(self, pinned: PinnedArena, segment: int) -> None:
        assert self._thread is not None
        self._at_work = True
        if not self._wanted:
            self._guard.hold(segment)
        work = pinned.pin if self._wanted else pinned.unpin
        self._loop.run_in_executor(self._thread, work, segment).add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[None]) -> None:
        self._at_work = False
        self._guard.let_through()
        error = None if work.cancelled() else work.exception()
        if isinstance(error, FlexKVError):
            self._failure = error.message
            log.error("the arena is not pinned: %s", error.message)
        elif isinstance(error, CudaFailure):
            log.warning("a segment of the arena was not un-pinned: %s", error.detail)
        elif error is not None:
            raise error
        self.go_on()

    def _progress(self) -> str:
        so_far = f"{self.pinned_bytes} of {self._arena.room_bytes} bytes"
        if not self._wanted:
            return f"{so_far} still pinned"
        return f"{so_far} pinned, copies to devices are slower until all are" + (
            f": {self._failure}" if self._failure else ""
        )
