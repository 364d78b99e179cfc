"""A daemon's S3 tier that is not its alone: what another daemon wrote, and a reset of all of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome, Tier
from tests.tiers.s3_backing import shared_server
from tests.trials.fleet import until

from .conftest import GEOMETRY, DaemonThread, Worker

BLOCKS = 12


@pytest.fixture
def nodes(tmp_path: Path, start: Callable[..., DaemonThread]) -> list[DaemonThread]:
    """Two daemons on one prefix; the second does not own it."""
    return [start(tmp_path / str(number), s3=s3_table(tmp_path, owner=number == 0)) for number in range(2)]


def s3_table(tmp_path: Path, **more: object) -> dict[str, object]:
    """What daemons on one prefix have in common, and more."""
    return {
        "bucket": "flexkv",
        "prefix": tmp_path.name,
        "endpoint_url": shared_server().endpoint_url,
        "sign_payload": "never",
        "refresh_s": 0.2,
        **more,
    }


@pytest.fixture
def start() -> Callable[..., DaemonThread]:
    daemons: list[DaemonThread] = []

    def start(folder: Path, **tables: dict[str, object]) -> DaemonThread:
        folder.mkdir(exist_ok=True)
        daemons.append(DaemonThread(folder, **tables))
        return daemons[-1]

    yield start
    for daemon in daemons:
        assert daemon.stop() == 0


def test_one_daemon_serves_what_another_saved_until_it_is_reset(nodes: list[DaemonThread]) -> None:
    """Saved and acknowledged at s3 by one, loaded by the other; a reset there deletes it."""
    with Client(nodes[0].socket, GEOMETRY) as first, Client(nodes[1].socket, GEOMETRY) as second:
        writer, reader = Worker(first, BLOCKS), Worker(second, BLOCKS)
        writer.fill(1)
        keys = first.keys(list(range(16 * BLOCKS)))
        saved = first.save(keys, writer.pages(0, BLOCKS), writer.memory, ack="s3", deadline_s=30).wait()
        assert set(saved.outcomes) == {Outcome.STORED}
        until(lambda: second.match(keys).length == BLOCKS, "the other daemon finds it")
        assert second.load(keys, reader.pages(0, BLOCKS), reader.memory, deadline_s=30).wait().length == BLOCKS
        assert [reader.block_bytes(at) for at in range(BLOCKS)] == [writer.block_bytes(at) for at in range(BLOCKS)]
        second.reset(0)
        assert second.match(keys).length == 0
        client = shared_server().client()
        listed = client.list_objects_v2(Bucket="flexkv", Prefix=f"{nodes[0].config.s3.prefix}/")
        client.close()
        assert listed["KeyCount"] == 0
        store, _ = nodes[0].parts.stores[Tier.S3]
        until(lambda: nodes[0].call(store.status)["objects"] == 0, "the first daemon hears of it")


LIMIT_BYTES, OVER = 1 << 19, 4
"""Room in S3, and how many times as much is written."""

POLL_S = 0.1


def write(daemon: DaemonThread) -> None:
    """Save more blocks than S3 has room for, until each is acknowledged there."""
    count = OVER * LIMIT_BYTES // GEOMETRY.block_bytes
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client, count)
        worker.fill(1)
        keys = client.keys(list(range(GEOMETRY.tokens_per_block * count)))
        saved = client.save(keys, worker.pages(0, count), worker.memory, ack="s3", deadline_s=60).wait()
        assert set(saved.outcomes) == {Outcome.STORED}


def bucket_bytes(prefix: str) -> int:
    """What all objects of a prefix take."""
    client = shared_server().client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="flexkv", Prefix=f"{prefix}/")
    total = sum(entry["Size"] for page in pages for entry in page.get("Contents", []))
    client.close()
    return total


@pytest.mark.parametrize("pack_bytes", [0, 1 << 20])
def test_an_idle_owner_keeps_the_bucket_within_its_bytes(
    tmp_path: Path, start: Callable[..., DaemonThread], pack_bytes: int
) -> None:
    """Another daemon writes four times what the owner allows, and nobody asks the owner for anything."""
    table = s3_table(tmp_path, codec="none", pack_bytes=pack_bytes)
    start(tmp_path / "owner", s3={**table, "bytes": LIMIT_BYTES})
    write(start(tmp_path / "other", s3={**table, "owner": False}))
    until(lambda: bucket_bytes(tmp_path.name) <= 1.25 * LIMIT_BYTES, "the owner has cleaned up", pause_s=POLL_S)


def test_a_restart_with_less_bytes_lets_go_of_the_rest(tmp_path: Path, start: Callable[..., DaemonThread]) -> None:
    """Blocks that are objects of their own, four times what may be there in the next life, which nobody uses."""
    table = s3_table(tmp_path, codec="none", pack_bytes=0)
    daemon = start(tmp_path / "one", s3=table)
    write(daemon)
    assert daemon.stop() == 0
    assert bucket_bytes(tmp_path.name) > 1.25 * LIMIT_BYTES
    start(tmp_path / "one", s3={**table, "bytes": LIMIT_BYTES})
    until(lambda: bucket_bytes(tmp_path.name) <= 1.25 * LIMIT_BYTES, "what is too much has gone", pause_s=POLL_S)
