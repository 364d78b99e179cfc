"""How late the event loop comes to what is ready: measured by a timer of the kernel, ten times a second.

A timer of the loop itself would tell milliseconds only, because the loop keeps its own idea of the time. A
timerfd becomes readable at a known moment, like a socket does; when its callback runs, the difference is what
a worker's message would have waited. It holds waiting for a core, which `core_times` tells apart.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from pathlib import Path

from flexkvd.durations import Durations

PERIOD_NS = 100_000_000
_SECOND_NS = 1_000_000_000
_TFD_TIMER_ABSTIME = 1
_EXPIRATIONS_BYTES = 8


class _Times(ctypes.Structure):
    """struct itimerspec: seconds and nanoseconds of the period (0: once) and of the first expiry."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("period_s", "period_ns", "first_s", "first_ns"))


def core_times(pid: int, thread: int) -> tuple[int, int]:
    """Nanoseconds a thread ran on a core, and those it was ready to run and had none (proc(5), schedstat)."""
    running, queued, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
    return int(running), int(queued)


class LagProbe:
    """Measures from its making until `close`. Made on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag = Durations()
        self._loop = loop
        self._thread = threading.get_native_id()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due_ns = 0
        self._arm()
        loop.add_reader(self._timer, self._expired)

    def core_times(self) -> tuple[int, int]:
        """`core_times` of the loop's thread."""
        return core_times(os.getpid(), self._thread)

    def close(self) -> None:
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _arm(self) -> None:
        self._due_ns = time.monotonic_ns() + PERIOD_NS
        times = _Times(0, 0, *divmod(self._due_ns, _SECOND_NS))
        if self._libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(times), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _expired(self) -> None:
        self.lag.add((time.monotonic_ns() - self._due_ns) / _SECOND_NS)
        os.read(self._timer, _EXPIRATIONS_BYTES)
        self._arm()
