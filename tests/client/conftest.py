"""Real stand-in daemons as child processes, and a client of each kind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from flexkv_py.client import Client
from flexkv_py.geometry import Geometry, Plane

GEOMETRY = Geometry(planes=(Plane("kv", tuple(range(8)), 64),), chunk_bytes_min=4096)


class Daemon:
    """A child process that listens at `path`."""

    def __init__(self, path: Path, script: str = "echo_daemon.py") -> None:
        self.path = path
        self._command = [sys.executable, str(Path(__file__).with_name(script)), str(path)]
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()

    def restart(self) -> None:
        self.kill()
        self.process = self._spawn()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "worker.sock") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A connected client that leaves neither a thread nor a descriptor behind."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with Client(daemon.path, GEOMETRY, timeout_s=2.0) as client:
        yield client
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
