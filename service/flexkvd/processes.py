"""Ends of clients' processes: told by the kernel through a pidfd, never guessed from a socket.

A worker of the row path reads frames without asking anybody, so a closed socket says nothing of its reads: only
the end of its process does. Owns the pidfds; `row_path` says whose end matters, and what it means.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.connection import Connection


class PeerProcess:
    """The process at the other end of a connection. `on_gone` is called once, on the loop, when it has ended."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, on_gone: Callable[[], None]) -> None:
        """Raises UNSUPPORTED where the system tells nothing of this process."""
        self.pid = connection.peer.pid
        self._loop = loop
        self._on_gone = on_gone
        try:
            self._pidfd = connection.open_peer_process()
        except OSError as error:
            raise FlexKVError(
                ErrorCode.UNSUPPORTED,
                f"the end of this process cannot be watched ({error.strerror}), so it may read no rows of the arena: "
                "use Linux 6.5 or later, or let worker and daemon share a process namespace; else load whole blocks",
            ) from error
        loop.add_reader(self._pidfd, self._gone)

    @property
    def alive(self) -> bool:
        """Whether it still runs. After `close` nothing is known any more: False."""
        if self._pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Watch no more."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _gone(self) -> None:
        self.close()
        self._on_gone()
