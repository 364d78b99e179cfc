"""Descriptors of a client: opening its socket, closing its memories, and letting go of both in forked children.

Both clients open their connection here and enlist here to be told of a fork.
"""

from __future__ import annotations

import os
import socket
import weakref
from array import array
from collections.abc import Iterable
from typing import Protocol

from flexkv_py.client.calls import Registration
from flexkv_py.client.session import Session
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import SEGMENTS_PER_REPLY_MAX

DESCRIPTOR_BYTES = array("i").itemsize
ANCILLARY_BYTES = socket.CMSG_SPACE(SEGMENTS_PER_REPLY_MAX * DESCRIPTOR_BYTES)
"""Room for the descriptors of one reply."""
RECEIVE_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT


def connect_socket(path: str, timeout_s: float) -> socket.socket:
    """A socket connected to the daemon at `path`. Raises DAEMON_LOST or UNAUTHENTICATED."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise _refusal(error, path) from error
    return connection


def _refusal(error: OSError, path: str) -> FlexKVError:
    match error:
        case FileNotFoundError():
            why = f"no socket at {path}: start the daemon with `flexkvd`, or give the path it is configured with"
        case ConnectionRefusedError():
            why = f"nobody listens at {path}, the daemon that made it is gone: start it again with `flexkvd`"
        case PermissionError():
            return FlexKVError(
                ErrorCode.UNAUTHENTICATED,
                f"this user may not open {path}: join the group that owns it, or change its owner in the daemon's "
                "configuration",
            )
        case BlockingIOError() | TimeoutError():
            why = f"the daemon at {path} accepts no connection in time: look whether it hangs or is overloaded"
        case _:
            why = f"cannot connect to {path} ({error.strerror or error}): give the path of the daemon's worker socket"
    return FlexKVError(ErrorCode.DAEMON_LOST, why)


def descriptors_of(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message; they are the caller's."""
    found: list[int] = []
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += array("i", packed[: len(packed) // DESCRIPTOR_BYTES * DESCRIPTOR_BYTES])
    return found


def close_descriptors(registration: Registration) -> None:
    """Close a client's own duplicates of one memory."""
    for descriptor in registration.descriptors:
        os.close(descriptor)


def forget_memories(session: Session) -> None:
    """Close a client's duplicates of all its memories: it will register none of them again."""
    for registration in session.registrations:
        close_descriptors(registration)
    session.registrations.clear()


class HasFork(Protocol):
    """A client that must let go of its connection in a forked child."""

    def after_fork(self) -> None: ...


_clients: weakref.WeakSet[HasFork] = weakref.WeakSet()


def enlist(client: HasFork) -> None:
    """Tell `client` when it finds itself in a forked child."""
    _clients.add(client)


def forked() -> FlexKVError:
    """The error of every call in a forked child."""
    return FlexKVError(
        ErrorCode.UNSUPPORTED,
        "this client was made before a fork and belongs to the parent process: make a new one in the child",
    )


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
