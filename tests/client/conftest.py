"""Real stand-in daemons as child processes, and a client of each kind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.geometry import Geometry, Plane

GEOMETRY = Geometry(planes=(Plane("kv", tuple(range(8)), 64),), chunk_bytes_min=4096)
SCRIPT = Path(__file__).with_name("echo_daemon.py")


class Daemon:
    """A child process that listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(SCRIPT), str(self.path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.process = self._spawn()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "worker.sock")
    yield daemon
    daemon.kill()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A connected client that leaves neither a thread nor a descriptor behind."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with Client(daemon.path, GEOMETRY, timeout_s=2.0) as client:
        yield client
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
