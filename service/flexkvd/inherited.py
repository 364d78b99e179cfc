"""Listening sockets that the service manager made before the daemon was started: sd_listen_fds(3).

Owns which descriptor is which. A socket is taken by its name (`worker`, `admin`) or by the path it is bound to; it
stays the manager's, so its file is never removed here. Read once at start by `daemon`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from flexkv_py.errors import ErrorCode, FlexKVError

FIRST_DESCRIPTOR = 3
SOCKETS_MAX = 16


class Inherited:
    """Sockets handed in, by name. Those that nobody takes are closed by `close`."""

    def __init__(self, sockets: list[tuple[str, socket.socket]]) -> None:
        self._sockets = sockets

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Inherited:
        """Those of this process; the variables are removed, children have nothing to find by them.

        Raises FlexKVError(BAD_SOCKET_PATH) for a descriptor that is no listening stream socket.
        """
        count, pid = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
        names = environment.pop("LISTEN_FDNAMES", "").split(":")
        if pid != str(os.getpid()) or not count.isdecimal():
            return cls([])
        if int(count) > SOCKETS_MAX:
            raise _refused(f"{count} sockets were handed in: hand in at most {SOCKETS_MAX}")
        names += [""] * (int(count) - len(names))
        return cls([(names[at], _listening(FIRST_DESCRIPTOR + at)) for at in range(int(count))])

    def claim(self, name: str, path: str) -> socket.socket | None:
        """The socket of this name, or the one bound to `path`. None: there is none, make your own."""
        for at, (given, listener) in enumerate(self._sockets):
            if given == name or listener.getsockname() == path:
                del self._sockets[at]
                return listener
        return None

    def close(self) -> None:
        """Let go of those that nobody claimed."""
        while self._sockets:
            self._sockets.pop()[1].close()


def _listening(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    try:
        made = socket.socket(fileno=descriptor)
        if made.type is socket.SOCK_STREAM and made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            made.setblocking(False)
            return made
    except OSError as error:
        raise _refused(f"descriptor {descriptor} was handed in and is no socket ({error.strerror})") from error
    raise _refused(f"descriptor {descriptor} was handed in and is no listening stream socket: use ListenStream=")


def _refused(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_SOCKET_PATH, why)
