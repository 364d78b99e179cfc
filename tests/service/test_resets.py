"""Resets that outlive the daemon: written down first, gone on with by the next life, forgotten only when done."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NamespaceDigest
from flexkvd.reset_log import FILE_NAME, ResetLog
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.s3_backing import shared_server
from tests.trials.fleet import until

from .conftest import GEOMETRY, DaemonThread, Worker

BLOCKS = 4
ONE, TWO = NamespaceDigest(bytes(32)), NamespaceDigest(bytes([1]) * 32)


def test_a_reset_while_s3_is_down_is_carried_out_by_the_next_life(
    start: Callable[..., DaemonThread], tmp_path: Path
) -> None:
    """Saved at s3, S3 gone, reset, restart, S3 back: nothing is matched or left in the bucket, new saves are kept."""
    with FaultProxy(shared_server().endpoint_url) as proxy:
        tables = {
            "s3": s3_through(proxy, tmp_path.name),
            "daemon": {"state_directory": str(tmp_path / "state"), "drain_s": 0.0},
        }
        daemon = start(**tables)
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client, BLOCKS)
            keys = client.keys(list(range(16 * BLOCKS)))
            save = client.save(keys, worker.pages(0, BLOCKS), worker.memory, ack="s3", deadline_s=30)
            assert save.wait(timeout_s=30).length == BLOCKS
        proxy.set(Faults(refuse=True))
        asking = threading.Thread(target=reset_unanswered, args=(daemon.socket,))
        asking.start()
        until((tmp_path / "state" / FILE_NAME).exists, "the reset is written down")
        assert daemon.stop() == 0
        asking.join(30)
        daemon = start(**tables)
        proxy.set(Faults())
        until(lambda: ready_without_degradation(daemon), "S3 is listed")
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client, BLOCKS)
            assert client.match(keys).length == 0
            until(lambda: not (tmp_path / "state" / FILE_NAME).exists(), "the reset is carried out")
            assert object_count(tmp_path.name) == 0
            save = client.save(keys, worker.pages(0, BLOCKS), worker.memory, ack="s3", deadline_s=30)
            assert save.wait(timeout_s=30).length == BLOCKS
        assert daemon.stop() == 0
        daemon = start(**tables)
        with Client(daemon.socket, GEOMETRY) as client:
            until(lambda: client.match(keys).length == BLOCKS, "what was saved since is there")


def s3_through(proxy: FaultProxy, prefix: str) -> dict[str, object]:
    return {
        "bucket": "flexkv",
        "prefix": prefix,
        "endpoint_url": proxy.endpoint_url,
        "sign_payload": "never",
        "retry_count_max": 0,
    }


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_reset_that_waits_for_s3_is_seen(
    start: Callable[..., DaemonThread], tmp_path: Path, caplog: pytest.LogCaptureFixture, is_logged: bool
) -> None:
    """Status, readiness, the log and the client's error say so while S3 is away, and none of them afterwards."""
    caplog.set_level(logging.INFO, "flexkvd.resets")
    with FaultProxy(shared_server().endpoint_url) as proxy:
        state = {"state_directory": str(tmp_path / "state")} if is_logged else {}
        daemon = start(s3=s3_through(proxy, tmp_path.name), daemon=state)
        until(lambda: ready_without_degradation(daemon), "S3 is listed")
        proxy.set(Faults(refuse=True))
        with Client(daemon.socket, GEOMETRY, timeout_s=0.5) as client, pytest.raises(FlexKVError) as caught:
            client.reset(0)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        assert "goes on until all tiers are cleared" in str(caught.value)
        said = daemon.call(daemon.daemon.operator.status)
        waiting = {"outstanding": 1, "waits_for": {"s3": 1}, "outlive_restart": int(is_logged)}
        assert {name: said["resets"][name] for name in waiting} == waiting
        assert said["resets"]["oldest_s"] >= 0.5
        assert said["degraded"]["resets"] == "1 not carried out yet, waiting for s3"
        [line] = [record.getMessage() for record in caplog.records if "waits for" in record.getMessage()]
        assert ("a restart goes on with it" if is_logged else "a restart forgets it") in line
        proxy.set(Faults())
        until(lambda: ready_without_degradation(daemon), "the reset is carried out", pause_s=0.05)
        assert daemon.call(daemon.daemon.operator.status)["resets"]["outstanding"] == 0
        assert caplog.records[-1].getMessage().endswith("is carried out")


def reset_unanswered(path: Path) -> None:
    with Client(path, GEOMETRY, timeout_s=30) as client, pytest.raises(FlexKVError):
        client.reset(0)


def ready_without_degradation(daemon: DaemonThread) -> bool:
    said = daemon.call(daemon.daemon.operator.readiness)
    return bool(said["ready"]) and not said["degraded"]


def object_count(prefix: str) -> int:
    client = shared_server().client()
    try:
        return client.list_objects_v2(Bucket="flexkv", Prefix=f"{prefix}/")["KeyCount"]
    finally:
        client.close()


def test_the_log_holds_what_is_outstanding_and_nothing_else(tmp_path: Path) -> None:
    """Two resets of one namespace and one of another, ended in turn: each life reads what is left; then no file."""

    async def scene() -> None:
        log = ResetLog([tmp_path])
        assert log.left_over == []
        await asyncio.gather(log.begin(ONE), log.begin(TWO), log.begin(ONE))
        assert ResetLog([tmp_path]).left_over == [ONE, TWO]
        await log.end(ONE)
        await log.end(TWO)
        assert ResetLog([tmp_path]).left_over == [ONE]
        await log.end(ONE)

    asyncio.run(scene())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """Half a file beside it, as a power cut leaves it, is nothing; the next write goes over it."""

    async def scene() -> None:
        await ResetLog([tmp_path]).begin(ONE)
        (tmp_path / f"{FILE_NAME}.partial").write_bytes(b'{"format": "fle')
        log = ResetLog([tmp_path])
        assert log.left_over == [ONE]
        await log.begin(TWO)
        assert ResetLog([tmp_path]).left_over == [ONE, TWO]

    asyncio.run(scene())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":"flexkv-resets","version":1,"namespaces":["00"]}'])
def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    """Going on without it could serve what was reset: the error names the file and both cures."""
    (tmp_path / FILE_NAME).write_bytes(content)

    async def scene() -> None:
        ResetLog([tmp_path])

    with pytest.raises(FlexKVError, match=r"flexkv\.resets .* remove it and repeat") as caught:
        asyncio.run(scene())
    assert caught.value.code is ErrorCode.DIRECTORY_FOREIGN


def test_any_directory_of_several_is_enough(tmp_path: Path) -> None:
    """One of two is emptied between lives, the other still tells; when it is ended, neither has a file."""
    places = [tmp_path / "one", tmp_path / "two"]
    asyncio.run(ResetLog(places).begin(ONE))
    (places[0] / FILE_NAME).unlink()
    log = ResetLog(places[::-1])
    assert log.left_over == [ONE]
    asyncio.run(log.end(ONE))
    assert [list(place.iterdir()) for place in places] == [[], []]
