"""An event loop whose clock jumps: hours pass in milliseconds, over real sockets.

Time moves only when nothing is ready. Work on threads would be jumped over, so while `busy` says that
some is running the loop waits for it and the clock stands still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

THREAD_WAIT_S_MAX = 5.0


class _Jump(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0 and self.loop.busy():  # 0: handlers are ready, whatever the sockets say
            ready = super().select(THREAD_WAIT_S_MAX)
            assert ready, "work on a thread never ended"
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        if not ready and timeout is not None:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Give it to `asyncio.Runner` as loop factory."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy: Callable[[], bool] = lambda: False
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def now_ns(self) -> int:
        """The same clock for the engine."""
        return int(self.now_s * 1e9)
