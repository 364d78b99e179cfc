"""The socket's file: made, guarded against a second daemon, removed.

Owns the path of the worker and admin sockets; knows nothing of what is said on them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.open_files import is_out_of_files, out_of_files

PATH_BYTES_MAX = 107
"""What `sockaddr_un` has room for, without its final zero byte."""
BACKLOG = 512


@dataclass(frozen=True)
class Listener:
    """A listening, non-blocking socket and its file; `inode` is None where the file is not ours to remove."""

    socket: socket.socket
    path: str
    inode: int | None

    def close(self) -> None:
        """Stop listening and remove the file, unless another daemon's stands there by now. Idempotent."""
        self.socket.close()
        if self.inode is None:
            return
        with contextlib.suppress(OSError):
            if os.stat(self.path, follow_symlinks=False).st_ino == self.inode:
                os.unlink(self.path)


def listen(path: str, mode: int, given: socket.socket | None = None) -> Listener:
    """Bind and listen on `path`, with that file mode; or use the socket `given`, whose file is its maker's.

    A file left behind by a dead daemon is replaced. Raises FlexKVError: ALREADY_RUNNING when somebody
    listens there, BAD_SOCKET_PATH when no socket can be made there.
    """
    if given is not None:
        return Listener(given, path, None)
    check_path(path, "the socket")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        umask = os.umask(0o777 & ~mode)  # never open to more than `mode`, not even before the chmod
        try:
            listener.bind(path)
        finally:
            os.umask(umask)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return Listener(listener, path, os.stat(path).st_ino)
    except OSError as error:
        listener.close()
        if is_out_of_files(error):
            raise out_of_files(f"no socket can be made at {path}", error) from error
        raise _bad_path(f"no socket can be made at {path} ({error.strerror}): check the directory's owner") from error


def check_path(path: str, key_name: str) -> None:
    """Find out without a change whether a socket can be made there. Raises FlexKVError(BAD_SOCKET_PATH)."""
    if not 1 <= len(os.fsencode(path)) <= PATH_BYTES_MAX:
        size = len(os.fsencode(path))
        raise _bad_path(f"{key_name}: the path {path!r} has {size} bytes: use 1 to {PATH_BYTES_MAX}")
    parent = Path(path).parent
    if not parent.is_dir():
        raise _bad_path(f"{key_name}: {parent} is no directory: create it, or name a socket in one that exists")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _bad_path(f"{key_name}: {parent} cannot be written: correct its owner and mode, or name another folder")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            raise _bad_path(f"{key_name}: {path} exists and is no socket: remove it, or name another path")


def _remove_stale(path: str) -> None:
    if not os.path.lexists(path):
        return
    pid = _listening_pid(path)
    if pid is not None:
        raise FlexKVError(
            ErrorCode.ALREADY_RUNNING,
            f"process {pid} listens on {path} already: stop it, or give this daemon a socket of its own",
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _listening_pid(path: str) -> int | None:
    """Pid of whoever listens on the socket file; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
            packed = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0  # it refuses us, or its backlog is full: somebody is there
        return int.from_bytes(packed[:4], "little")


def _bad_path(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_SOCKET_PATH, why)
