"""A daemon process on a machine whose CUDA driver is `tests/tiers/host_libcuda.c`: nothing of ours is replaced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.wire.messages import Done, Load, Registered, Save, UnregisterMemory
from tests.tiers.host_driver import HostDriver
from tests.tiers.library import made_in, why_none

from .conftest import GEOMETRY
from .on_device import TOKENS
from .test_device_memory import PACKED, Virtual
from .test_process import Process
from .test_protocol import Stranger


def test_a_daemon_finds_the_driver_pins_copies_and_lets_go(tmp_path: Path) -> None:
    """Pinned behind its socket; blocks of another process's physical memory are saved, and loaded where it woke up."""
    if why := why_none():
        pytest.skip(why)
    (tmp_path / "lib").mkdir()
    process = Process(tmp_path, made_in(tmp_path / "lib"))
    try:
        process.wait_logged("the arena is pinned")
        with Client(process.socket, GEOMETRY, role="scheduler") as client:
            keys = b"".join(client.keys(TOKENS))
        worker = Virtual(Stranger(process.socket).greet(), HostDriver())  # its descriptors are memfds
        worker.register(2)
        assert worker.stranger.hear() == Registered(2, 1)
        saved = worker.fill()
        assert worker.ends(Save(3, keys, PACKED, 1, deadline_ms=5000)).length == 8
        worker.stranger.say(UnregisterMemory(4, 1))
        assert worker.stranger.hear() == Done(4)
        worker.move()
        worker.register(5)
        assert worker.stranger.hear() == Registered(5, 2)
        assert worker.ends(Load(6, keys, PACKED, 2, deadline_ms=5000)).length == 8
        assert worker.holds(saved)
        worker.stranger.socket.close()
        assert process.end(signal.SIGTERM) == 0
    finally:
        process.process.kill()
        process.process.wait(20)
    log = process.log.read_text()
    assert "the arena is let go of" in log
    assert "still pinned" not in log
