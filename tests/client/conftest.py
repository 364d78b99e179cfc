"""Real stand-in daemons as child processes, and a client of each kind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from flexkv_py.client import Client
from flexkv_py.geometry import Geometry, Plane
from tests.leaks import open_files, threads

GEOMETRY = Geometry(planes=(Plane("kv", tuple(range(8)), 64),), chunk_bytes_min=4096)
HELD = ("socket:", "/memfd:")  # what a client may hold open


class Daemon:
    """A child process that listens at `path`."""

    def __init__(self, path: Path, script: str = "echo_daemon.py") -> None:
        self.path = path
        self._command = [sys.executable, str(Path(__file__).with_name(script)), str(path)]
        self.start()

    def start(self) -> None:
        """Start the process; returns when it listens."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

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
        self.start()


@pytest.fixture(scope="module")
def module_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("run") / "worker.sock") as daemon:
        yield daemon


@pytest.fixture
def daemon(module_daemon: Daemon) -> Daemon:
    """A living daemon, though an earlier test of the module may have killed it."""
    if module_daemon.process.poll() is not None:
        module_daemon.restart()
    return module_daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A connected client that leaves neither a thread nor a descriptor behind."""
    older = threads(), open_files(*HELD)
    with Client(daemon.path, GEOMETRY, timeout_s=2.0) as client:
        yield client
    end = time.monotonic() + 5  # the watcher of a connection lost before the last one ends by itself
    while (threads() - older[0] or open_files(*HELD) - older[1]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads() - older[0]
    assert not open_files(*HELD) - older[1]
