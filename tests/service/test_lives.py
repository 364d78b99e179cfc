"""How lives end: a killed worker, a drain with work under way, a bug, a start with S3 alone."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import DrainStarted, Event, Instruction, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.messages import GoingAway
from flexkvd.cli.s3server import S3Server
from flexkvd.facts import facts_of

from .conftest import GEOMETRY, DaemonThread, Worker

TOKENS = list(range(16 * 8))
LIFE_S_MAX = 15.0

WORKER = """
import sys, time
from flexkv_py.client import Client
from tests.service.conftest import GEOMETRY, Worker
client = Client(sys.argv[1], GEOMETRY)
worker = Worker(client)
keys = client.keys(list(range(128)))
client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
lease = client.match(keys, hold_s=600).lease
ticket = client.save(client.keys(list(range(1000, 1512))), worker.pages(8, 32), worker.memory, ack="ssd")
print("ready", flush=True)
time.sleep(60)
"""


def until(reached: Callable[[], bool], limit_s: float = LIFE_S_MAX) -> float:
    """Wait until `reached` says so; the seconds it took."""
    begun = time.monotonic()
    while not reached():
        assert time.monotonic() - begun < limit_s
        time.sleep(0.005)
    return time.monotonic() - begun


def test_a_killed_worker_leaves_nothing_behind(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """SIGKILL of a worker with lease, ticket and memory: all of it is gone in a moment, its memory unmapped."""
    (tmp_path / "ssd").mkdir()
    daemon = start(ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"})
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(daemon.socket)], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert daemon.call(lambda: facts_of(daemon.parts.planner.state))["leases"] == 1
    [mapping] = daemon.mappings()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    def gone() -> bool:
        facts = daemon.call(lambda: facts_of(daemon.parts.planner.state))
        return (facts["sessions"], facts["leases"], facts["tickets"]) == (0, 0, 0)

    until(gone, 1.0)
    until(lambda: mapping.closed, 5.0)


def test_a_drain_lets_tickets_end_and_tells_the_clients(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """A save acknowledged below that is under way when the drain begins is there in the next life."""
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon = start(ssd=ssd, daemon={"drain_s": 10.0})
    client = Client(daemon.socket, GEOMETRY)
    worker = Worker(client)
    keys = client.keys(TOKENS)
    client.save(keys, worker.pages(0, 8), worker.memory, ack="ssd")
    assert daemon.stop() == 0
    told: list[object] = []
    until(lambda: bool(told.extend(client.poll()) or told), 1.0)  # its watcher may be reading it just now
    assert [type(message) for message in told] == [GoingAway]
    client.close()
    daemon = start(ssd=ssd)
    with Client(daemon.socket, GEOMETRY) as client:
        until(lambda: client.match(keys).length == 8)


def test_a_drain_waits_for_the_operators_flush(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """A flush that was asked for over the API before the signal is finished and answered."""
    (tmp_path / "ssd").mkdir()
    daemon = start(ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}, planner={"clean_ahead": 0.0})
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        client.save(client.keys(TOKENS), worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    flush = daemon.call(lambda: asyncio.ensure_future(daemon.parts.operations.flush(Tier.SSD, 5.0)))
    assert daemon.stop() == 0
    assert (flush.result().blocks, flush.result().detail) == (8, "")


def test_a_draining_daemon_admits_nothing_new(start: Callable[..., DaemonThread]) -> None:
    """During a drain, saves and greetings are refused as draining; the drain ends by its time."""
    daemon = start(daemon={"drain_s": 1.0})
    client = Client(daemon.socket, GEOMETRY)
    worker = Worker(client)
    keys = client.keys(TOKENS)
    daemon.call(lambda: daemon.parts.server.going_away("test", 1000))
    daemon.call(lambda: daemon.parts.engine.post(DrainStarted(daemon.parts.engine.now_ns())))
    with pytest.raises(FlexKVError) as caught:
        client.save(keys, worker.pages(0, 8), worker.memory)
    assert caught.value.code is ErrorCode.DRAINING
    with pytest.raises(FlexKVError) as caught:
        Client(daemon.socket, GEOMETRY).connect()
    assert caught.value.code is ErrorCode.DRAINING
    [told] = client.poll()
    assert isinstance(told, GoingAway)
    client.close()


def test_a_bug_in_the_planner_stops_the_daemon(tmp_path: Path) -> None:
    """After a failed assertion nothing is served any more: the request is answered, the status is 1."""
    daemon = DaemonThread(tmp_path)
    client = Client(daemon.socket, GEOMETRY)
    client.ping()

    def broken(_event: Event) -> list[Instruction]:
        raise AssertionError("planted")

    daemon.call(lambda: setattr(daemon.parts.planner, "handle", broken))
    with pytest.raises(FlexKVError) as caught:
        client.match(client.keys(TOKENS))
    assert caught.value.code in (ErrorCode.INTERNAL, ErrorCode.DAEMON_LOST)
    client.close()
    daemon.join()
    assert daemon.status == 1


def test_a_bug_in_a_background_task_stops_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The SSD cleaner dies by an assertion: the daemon says so and ends with status 1, and does not wait for a stop."""
    (tmp_path / "ssd").mkdir()
    daemon = DaemonThread(tmp_path, ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"})

    async def broken() -> bool:
        raise AssertionError("planted")

    def plant() -> None:
        [cleaner] = daemon.parts.stores[Tier.SSD][0]._cleaners
        cleaner._step = broken
        cleaner.wake()

    daemon.call(plant)
    daemon.join()
    assert daemon.status == 1
    assert "a bug in the SSD tier" in caplog.text


def test_a_bug_in_a_callback_stops_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The end of a move meets an assertion in a callback of the loop: the same."""
    (tmp_path / "ssd").mkdir()
    daemon = DaemonThread(tmp_path, ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"})

    def broken(*_: object) -> None:
        raise AssertionError("planted")

    for link in daemon.parts.executor.links.values():
        link._tell_ended = broken
    client = Client(daemon.socket, GEOMETRY)
    worker = Worker(client)
    client.save(client.keys(TOKENS), worker.pages(0, 8), worker.memory, ack="ssd")
    daemon.join()
    client.close()
    assert daemon.status == 1
    assert "planted" in caplog.text


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def test_blocks_come_back_from_s3_alone(
    start: Callable[..., DaemonThread], tmp_path: Path, credentials: S3Server
) -> None:
    """With the SSD directory deleted, what was acknowledged at `s3` is listed and loaded with its bytes."""
    tables: dict[str, dict[str, object]] = {
        "ssd": {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"},
        "s3": {"bucket": "flexkv", "endpoint_url": credentials.endpoint_url, "region": "us-east-1"},
    }
    (tmp_path / "ssd").mkdir()
    daemon = start(**tables)
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(6)
        expected = worker.block_bytes(7)
        keys = client.keys(TOKENS)
        saved = client.save(keys, worker.pages(0, 8), worker.memory, ack="s3", deadline_s=20).wait(timeout_s=20)
        assert saved.length == 8
    assert daemon.stop() == 0
    shutil.rmtree(tmp_path / "ssd")
    (tmp_path / "ssd").mkdir()
    daemon = start(**tables)
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        until(lambda: client.match(keys).length == 8)
        assert {run.tier for run in client.match(keys).runs} == {"s3"}
        loaded = client.load(keys, worker.pages(8, 8), worker.memory, deadline_s=20).wait(timeout_s=20)
        assert loaded.length == 8
        assert worker.block_bytes(15) == expected


def s3_tables(server: S3Server, tmp_path: Path, drain_s: float) -> dict[str, dict[str, object]]:
    return {
        "daemon": {"drain_s": drain_s},
        "api": {"socket": str(tmp_path / "admin.sock")},
        "s3": {"bucket": "flexkv", "endpoint_url": server.endpoint_url, "region": "us-east-1"},
    }


@pytest.mark.timing
def test_an_idle_daemon_ends_at_once(start: Callable[..., DaemonThread], tmp_path: Path, credentials: S3Server) -> None:
    """With API and S3 and nothing to do, neither uvicorn nor a byte worker makes anybody wait."""
    daemon = start(**s3_tables(credentials, tmp_path, drain_s=20.0))
    until(lambda: bool(daemon.call(daemon.daemon.operator.readiness)["ready"]))
    begun = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - begun < 1.0


@pytest.mark.timing
@pytest.mark.parametrize("saves", [0, 8])
def test_a_server_that_hangs_does_not_hold_up_the_end(
    start: Callable[..., DaemonThread], tmp_path: Path, credentials: S3Server, saves: int
) -> None:
    """A listing or an upload that gets no answer is cut off when the drain is over: at once if nobody waits for it."""
    drain_s = 0.5
    daemon = start(**s3_tables(credentials, tmp_path, drain_s))
    if saves:
        until(lambda: bool(daemon.call(daemon.daemon.operator.readiness)["ready"]))
    credentials.suspend()
    try:
        client = Client(daemon.socket, GEOMETRY)
        worker = Worker(client)
        if saves:
            client.save(client.keys(TOKENS), worker.pages(0, saves), worker.memory, ack="s3")
        begun = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - begun < drain_s + 1.0
        client.close()
    finally:
        credentials.resume()


def test_a_missing_bucket_ends_the_daemon(tmp_path: Path, credentials: S3Server) -> None:
    """Waiting does not cure a bucket that does not exist: the daemon stops with the coded error."""
    s3: dict[str, object] = {"bucket": "nowhere", "endpoint_url": credentials.endpoint_url, "region": "us-east-1"}
    daemon = DaemonThread(tmp_path, s3=s3)
    daemon.join()
    assert isinstance(daemon.failure, FlexKVError)
    assert daemon.failure.code is ErrorCode.S3_BUCKET_MISSING
    named = ("s3://nowhere/flexkv", "s3.bucket", "s3.region", "s3.endpoint_url")
    assert [word for word in named if word not in daemon.failure.message] == []
