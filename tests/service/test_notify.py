"""What the service manager hears, over real datagrams, and sockets it hands in."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.inherited import Inherited
from flexkvd.notify import BEAT_S, PROGRESS_S_MAX, ServiceManager, Supervision

from .conftest import GEOMETRY, Worker
from .virtual_loop import VirtualLoop

WATCHDOG_USEC = 300_000
SILENCE_S = 4 * WATCHDOG_USEC / 1e6


class Manager:
    """The end that listens: every datagram as its lines."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.settimeout(20)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def until(self, line: str) -> list[str]:
        """The first datagram with this line."""
        while line not in (lines := self.next()):
            pass
        return lines

    def all(self) -> list[list[str]]:
        """Those that have come so far."""
        self._socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self.next())
        except BlockingIOError:
            return found
        finally:
            self._socket.settimeout(20)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    manager = Manager(path if request.param == "path" else f"@flexkv-{secrets.token_hex(8)}")
    yield manager
    manager.close()


def start(folder: Path, *, shell: str = 'exec "$@"', keep: tuple[int, ...] = (), **environment: str):
    """A real daemon with an SSD tier, started by a line of bash."""
    config = folder / "flexkvd.toml"
    config.write_text(
        f'[daemon]\nsocket = "{folder}/worker.sock"\ndrain_s = 5\n[api]\nsocket = "{folder}/admin.sock"\n'
        f'[dram]\nbytes = "16MiB"\nsegment_bytes = "4MiB"\n[ssd]\ndirectory = "{folder}/ssd"\nbytes = "64MiB"\n'
    )
    (folder / "ssd").mkdir(exist_ok=True)
    return subprocess.Popen(
        ["bash", "-c", shell, "bash", sys.executable, "-m", "flexkvd.main", "--config", str(config)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        pass_fds=keep,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_daemon_tells_its_manager_how_it_is(manager: Manager, tmp_path: Path) -> None:
    """Ready after the read-in, alive while its loop turns and not a moment longer, reloading, stopping."""
    process = start(tmp_path, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=str(WATCHDOG_USEC))
    try:
        first = manager.next()
        assert first[0] == "WATCHDOG=1"
        assert first[1].startswith("STATUS=starting: start: background work begins")
        assert first[2] == f"EXTEND_TIMEOUT_USEC={round(PROGRESS_S_MAX * 1e6)}"
        assert manager.until("READY=1")[1].startswith("STATUS=serving: dram 0.00 of 0.02 GiB, ssd 0.00 of")
        process.send_signal(signal.SIGHUP)
        since_usec = manager.until("RELOADING=1")[1].removeprefix("MONOTONIC_USEC=")
        assert 0 <= time.monotonic() - int(since_usec) / 1e6 < 20
        assert manager.until("READY=1") == ["READY=1"]
        manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGSTOP)
        time.sleep(WATCHDOG_USEC / 1e6)
        manager.all()
        time.sleep(SILENCE_S)
        assert manager.all() == []  # a loop that does not turn feeds nobody
        process.send_signal(signal.SIGCONT)
        manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        assert manager.until("STOPPING=1")[1:] == [
            "EXTEND_TIMEOUT_USEC=30000000",
            "STATUS=draining: 0 tickets, 0 transfers to end",
        ]
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_stuck_daemon_that_is_aborted_says_where_it_stood(tmp_path: Path) -> None:
    """SIGABRT, the watchdog's signal, leaves the stack of every thread in the log."""
    process = start(tmp_path)
    try:
        assert process.stderr is not None
        while "ready" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGABRT)
        log = process.communicate(timeout=20)[1]
        assert process.returncode == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in log
        assert "in _run" in log
    finally:
        process.kill()
        process.wait()


def test_sockets_handed_in_are_used_and_outlive_the_daemon(tmp_path: Path) -> None:
    """A client connects before the daemon runs and is served by it; the sockets' files stay when it has ended."""
    listeners = {name: socket.socket(socket.AF_UNIX) for name in ("worker", "admin")}
    for name, listener in listeners.items():
        listener.bind(str(tmp_path / f"{name}.sock"))
        listener.listen()
    worker, admin = (listener.fileno() for listener in listeners.values())
    early = socket.socket(socket.AF_UNIX)
    early.connect(str(tmp_path / "worker.sock"))
    shell = f'export LISTEN_PID=$$; exec 8<&{worker} 9<&{admin} 3<&9 4<&8; exec "$@" 8<&- 9<&-'
    names = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "admin:worker"}
    for _ in range(2):
        process = start(tmp_path, shell=shell, keep=(worker, admin), **names)
        try:
            with Client(tmp_path / "worker.sock", GEOMETRY) as client:
                assert Worker(client).memory is not None
            with socket.socket(socket.AF_UNIX) as http:
                http.connect(str(tmp_path / "admin.sock"))
                http.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert http.recv(15) == b"HTTP/1.1 200 OK"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.communicate()
    assert all((tmp_path / f"{name}.sock").is_socket() for name in listeners)
    early.close()
    for listener in listeners.values():
        listener.close()


def test_variables_meant_for_another_process_are_not_ours() -> None:
    """Another pid's watchdog and sockets are ignored, a strange address too, and children see none of them."""
    theirs = {"WATCHDOG_PID": "1", "WATCHDOG_USEC": "1000000", "NOTIFY_SOCKET": "vsock:2:9"}
    assert Supervision.take(theirs) == Supervision("", 0.0)
    ours = {"WATCHDOG_PID": str(os.getpid()), "WATCHDOG_USEC": "1500000", "NOTIFY_SOCKET": "@a"}
    assert Supervision.take(ours) == Supervision("@a", 1.5)
    sockets = {"LISTEN_PID": "1", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c"}
    assert Inherited.take(sockets).claim("a", "") is None
    assert not theirs | ours | sockets


def test_too_many_sockets_are_refused() -> None:
    """A manager that hands in more than there is use for is told so."""
    with pytest.raises(FlexKVError) as caught:
        Inherited.take({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1000"})
    assert caught.value.code is ErrorCode.BAD_SOCKET_PATH


def test_a_start_without_progress_gets_no_more_time(manager: Manager) -> None:
    """The manager's patience is extended by each change of the line, and by nothing else."""
    loop = VirtualLoop()
    words = iter(["1 block", "2 blocks", "2 blocks", "2 blocks", "3 blocks"])
    told = ServiceManager(Supervision(manager.address), loop)

    async def run() -> None:
        told.watch(lambda: next(words))
        await asyncio.sleep(4.5 * BEAT_S)
        told.close()

    loop.run_until_complete(run())
    loop.close()
    more = f"EXTEND_TIMEOUT_USEC={round(PROGRESS_S_MAX * 1e6)}"
    assert manager.all() == [[f"STATUS={each}", more] for each in ("1 block", "2 blocks", "3 blocks")]


def test_a_manager_that_reads_slowly_holds_nobody_up(manager: Manager) -> None:
    """What has no room in its queue is kept, the newest of it, and sent with what comes next."""
    loop = VirtualLoop()
    lines = [f"line {number}" for number in range(1000)]
    words = iter(lines)
    told = ServiceManager(Supervision(manager.address), loop)

    async def run() -> None:
        told.watch(lambda: next(words))
        await asyncio.sleep(700.5 * BEAT_S)
        read = manager.all()
        told.ready()
        told.close()
        assert len(read) < 700
        assert manager.all()[-1] == [
            "READY=1",
            "STATUS=line 701",
        ]

    loop.run_until_complete(run())
    loop.close()
