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
    server, daemons = shared_server(), []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = {
            "bucket": "flexkv",
            "prefix": tmp_path.name,
            "endpoint_url": server.endpoint_url,
            "sign_payload": "never",
            "refresh_s": 0.2,
            "owner": number == 0,
        }
        daemons.append(start(folder, s3=table))
    return daemons


@pytest.fixture
def start() -> Callable[..., DaemonThread]:
    daemons: list[DaemonThread] = []

    def start(folder: Path, **tables: dict[str, object]) -> DaemonThread:
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
