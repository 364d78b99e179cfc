"""CPU seconds of a process and its children, from the kernel's own accounts; and who owns a socket."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_USER_FIELD = 11  # of the fields after the command's name: utime, stime, cutime, cstime


def cpu_seconds(pid: int) -> float:
    """User and system time of `pid`, its living children and those it has waited for; 0 if it is gone."""
    own, children = cpu_by_part(pid)
    return own + children


def cpu_by_part(pid: int) -> tuple[float, float]:
    """User and system time of `pid` itself, and of all its children; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0, 0.0
    fields = [int(field) for field in text.rpartition(")")[2].split()[_USER_FIELD : _USER_FIELD + 4]]
    return sum(fields[:2]) * _TICK_S, sum(fields[2:]) * _TICK_S + sum(cpu_seconds(int(child)) for child in children)


def owner_of(socket_path: str) -> int:
    """Process id of whoever listens on a Unix socket. Raises FlexKVError (`daemon_lost`) if nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(socket_path)
        except OSError as error:
            raise FlexKVError(
                ErrorCode.DAEMON_LOST,
                f"nobody listens on {socket_path} ({error.strerror or error}): start flexkvd, or name its socket",
            ) from error
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
