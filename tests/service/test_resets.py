"""Resets that outlive the daemon: written down first, gone on with by the next life, forgotten only when done."""

import asyncio
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
        s3 = {
            "bucket": "flexkv",
            "prefix": tmp_path.name,
            "endpoint_url": proxy.endpoint_url,
            "sign_payload": "never",
            "retry_count_max": 0,
        }
        tables = {"s3": s3, "daemon": {"state_directory": str(tmp_path / "state"), "drain_s": 0.0}}
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
        log = ResetLog(tmp_path)
        assert log.left_over == []
        await asyncio.gather(log.begin(ONE), log.begin(TWO), log.begin(ONE))
        assert ResetLog(tmp_path).left_over == [ONE, TWO]
        await log.end(ONE)
        await log.end(TWO)
        assert ResetLog(tmp_path).left_over == [ONE]
        await log.end(ONE)

    asyncio.run(scene())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """Half a file beside it, as a power cut leaves it, is nothing; the next write goes over it."""

    async def scene() -> None:
        await ResetLog(tmp_path).begin(ONE)
        (tmp_path / f"{FILE_NAME}.partial").write_bytes(b'{"format": "fle')
        log = ResetLog(tmp_path)
        assert log.left_over == [ONE]
        await log.begin(TWO)
        assert ResetLog(tmp_path).left_over == [ONE, TWO]

    asyncio.run(scene())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":"flexkv-resets","version":1,"namespaces":["00"]}'])
def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    """Going on without it could serve what was reset: the error names the file and both cures."""
    (tmp_path / FILE_NAME).write_bytes(content)

    async def scene() -> None:
        ResetLog(tmp_path)

    with pytest.raises(FlexKVError, match=r"flexkv\.resets .* remove it and repeat") as caught:
        asyncio.run(scene())
    assert caught.value.code is ErrorCode.DIRECTORY_FOREIGN
