"""The row path between processes that die: a worker with acks outstanding, and the daemon under an attached worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode
from flexkv_py.wire.messages import MapArena
from flexkvd import connection
from flexkvd.control.sessions import SessionFacts
from tests.leaks import open_files

from .conftest import GEOMETRY, DaemonThread, Worker
from .rows import CHUNKS, SMALL, SMALL_BLOCKS, attach, chunk_of, follow, readers, refused, save, tokens, until
from .test_process import ENVIRONMENT, Process, spawn  # noqa: F401 - a fixture
from .test_protocol import Stranger

ROW_WORKER = Path(__file__).with_name("row_worker.py")
WORKER_BLOCKS = SMALL_BLOCKS - 4


class Pressed:
    """A daemon with a small DRAM over an SSD, nearly all of which a worker process may read."""

    def __init__(self, daemon: DaemonThread) -> None:
        self.daemon = daemon
        self.client = Client(daemon.socket, GEOMETRY)
        self.worker = Worker(self.client)
        self.worker.fill(1)
        save(self.worker, 1, WORKER_BLOCKS, ack="ssd")
        chain = tokens(1, WORKER_BLOCKS)
        geometry = msgspec.msgpack.encode(GEOMETRY).hex()
        command = [sys.executable, str(ROW_WORKER), str(daemon.socket), geometry, str(chain[0]), str(WORKER_BLOCKS)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True)
        self.hears("attached")

    def hears(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def close_socket(self) -> None:
        """The worker's process lives on, and maps the arena as before."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.hears("closed")

    def press(self, seed: int) -> None:
        """Save a quarter of DRAM anew; what finds no room in time is told so."""
        keys = self.client.keys(tokens(seed, SMALL_BLOCKS // 4))
        self.client.save(keys, self.worker.pages(0, len(keys)), self.worker.memory, deadline_s=0.5).wait()

    def held(self) -> dict[tuple[int, int], bytes]:
        """What lies in each frame that the worker's request holds, by block and chunk."""

        def look() -> dict[tuple[int, int], bytes]:
            arena, found = self.daemon.parts.arena, {}
            for request in self.daemon.parts.planner.state.rows.by_id.values():
                for block, copy in enumerate(request.copies):
                    for chunk in range(CHUNKS):
                        if copy is not None and request.held(block) >> chunk & 1:
                            length = GEOMETRY.chunk_bytes[chunk]
                            found[block, chunk] = bytes(arena.view(copy.frames[chunk], length))
            return found

        return self.daemon.call(look)

    def sessions(self) -> list[dict[str, Any]]:
        """What an operator is told."""
        return self.daemon.call(lambda: SessionFacts(self.daemon.parts).all())

    def revoked(self) -> int:
        return self.daemon.call(lambda: self.daemon.parts.row_path.traffic.pages["revoked"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.client.close()


@pytest.fixture
def pressed(start: Callable[..., DaemonThread], tmp_path: Path) -> Iterator[Pressed]:
    (tmp_path / "ssd").mkdir()
    scene = Pressed(start(dram=SMALL, ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}))
    yield scene
    scene.end()


def test_frames_of_a_killed_worker_come_back_when_it_is_dead(pressed: Pressed) -> None:
    """Acks outstanding, the socket closed, the process alive: nothing is reused. Killed: everything is.

    Whoever asks why DRAM is full is told meanwhile whose process holds it.
    """
    pressed.press(2)
    until(lambda: pressed.revoked() > 0)
    before = pressed.held()
    assert len(before) == WORKER_BLOCKS * CHUNKS
    pressed.close_socket()
    for seed in range(3, 6):
        pressed.press(seed)
    assert pressed.held() == before
    assert all(content == chunk_of(pressed.worker, *spot) for spot, content in before.items())
    assert readers(pressed.daemon) == 1
    [who] = [each for each in pressed.sessions() if each["closed"]]
    assert (who["pid"], who["attached"]) == (pressed.process.pid, 1)
    pressed.process.kill()
    until(lambda: readers(pressed.daemon) == 0)
    assert pressed.held() == {}
    assert not any(each["closed"] for each in pressed.sessions())
    keys = pressed.client.keys(tokens(9, SMALL_BLOCKS))
    outcomes = pressed.client.save(keys, pressed.worker.pages(0, SMALL_BLOCKS), pressed.worker.memory).wait().outcomes
    assert {outcome.value for outcome in outcomes} == {"stored"}


def test_a_worker_killed_with_its_socket_open_is_gone_at_once(pressed: Pressed) -> None:
    """SIGKILL closes the socket and ends the process; the daemon needs both, in whatever order it hears of them."""
    pressed.press(2)
    pressed.process.send_signal(signal.SIGKILL)
    until(lambda: readers(pressed.daemon) == 0)
    assert pressed.held() == {}


def test_a_worker_is_watched_on_older_kernels_too(
    daemon: DaemonThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without SO_PEERPIDFD the process is found by its number; one that cannot be found reads no rows."""
    monkeypatch.setattr(connection, "_SO_PEERPIDFD", 9999)
    with Client(daemon.socket, GEOMETRY) as client:
        client.map_arena()
        assert daemon.call(lambda: [reader.process.alive for reader in daemon.parts.row_path.readers.values()]) == [
            True
        ]
    monkeypatch.setattr(os, "pidfd_open", pidfd_of_nobody)
    with Client(daemon.socket, GEOMETRY) as client:
        refusal = refused(ErrorCode.UNSUPPORTED, client.map_arena)
        assert "process namespace" in refusal.message
        client.ping()


def pidfd_of_nobody(_pid: int) -> int:
    raise ProcessLookupError(3, "No such process")


def test_descriptors_that_nobody_takes_are_closed(daemon: DaemonThread) -> None:
    """A client that asks for the arena and goes without reading the answer leaves no descriptor behind."""
    before = open_files("/memfd:flexkv-arena")
    stranger = Stranger(daemon.socket).greet()
    stranger.say(MapArena(5))
    until(lambda: readers(daemon) == 1)
    stranger.socket.close()
    until(lambda: readers(daemon) == 0)
    assert open_files("/memfd:flexkv-arena") == before


def test_one_that_died_without_a_request_leaves_nothing(daemon: DaemonThread) -> None:
    """A worker that mapped the arena and attached nothing is forgotten with its socket: nothing is held for it."""
    client = Client(daemon.socket, GEOMETRY)
    client.map_arena()
    assert readers(daemon) == 1
    client.close()
    until(lambda: readers(daemon) == 0)


@pytest.mark.timing
def test_a_killed_daemon_is_told_in_a_second_and_its_rows_stay(spawn: Callable[[], Process]) -> None:  # noqa: F811
    """SIGKILL while a worker waits for pages: a coded error, the old mapping still readable, then a new life."""
    process = spawn()
    with Client(process.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(4)
        keys = save(worker, 4, 8, ack="ssd")
        request, table = attach(client, 7, keys)
        follow(client, request, table, lambda: len(table.frames) == 8 * CHUNKS)
        killed_s: list[float] = []

        def kill() -> None:
            killed_s.append(time.monotonic())
            process.process.kill()

        threading.Timer(0.1, kill).start()
        refused(ErrorCode.DAEMON_LOST, follow, client, request, table, lambda: False)
        assert time.monotonic() - killed_s[0] < 1
        process.process.wait()
        for call in (request.pages, lambda: request.ack(table.version), client.page_changes):
            refused(ErrorCode.DAEMON_LOST, call)
        assert all(table.read(*spot) == chunk_of(worker, *spot) for spot in table.frames)
        os.unlink(process.socket)
        spawn()
        request.detach()
        client.connect()
        until(lambda: client.match(keys).length == len(keys))
        client.prefetch(keys).wait()
        again, new = attach(client, 7, keys)
        follow(client, again, new, lambda: len(new.frames) == 8 * CHUNKS)
        assert new.arena is not table.arena
        for spot in new.frames:
            assert new.read(*spot) == table.read(*spot) == chunk_of(worker, *spot)
        again.detach()
