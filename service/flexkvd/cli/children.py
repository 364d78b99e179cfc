"""Child processes that do not outlive whoever started them, however that one ends."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: the child must not load anything


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills this process when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
