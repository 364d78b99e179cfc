"""A real daemon process under eviction pressure, and an operator who speaks to it over its admin socket."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.keys import BlockKey
from flexkvd.cli.admin import AdminClient

from .conftest import GEOMETRY, Worker
from .test_process import Process

TOKENS = GEOMETRY.tokens_per_block
PINNED, FLOOD, FLOODS = 8, 64, 20
"""Twenty times 64 blocks are a quarter more than 16 MiB of DRAM hold."""

TTL_S = 600.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


def save(client: Client, worker: Worker, first: int, count: int) -> list[BlockKey]:
    keys = client.keys(list(range(first * TOKENS, (first + count) * TOKENS)))
    ticket = client.save(keys, worker.pages(0, count), worker.memory, deadline_s=10)
    assert {str(outcome) for outcome in ticket.wait(timeout_s=20).outcomes} == {"stored"}
    return keys


def flood(client: Client, worker: Worker, first: int) -> None:
    for at in range(FLOODS):
        save(client, worker, first + at * 1_000, FLOOD)


def test_what_is_pinned_is_served_from_dram_under_pressure_and_leaves_after_its_time(
    process: Process, tmp_path: Path
) -> None:
    """Pinned blocks stay in DRAM and come back byte for byte while all else is pushed out; unpinned by time they go."""
    admin = AdminClient(str(tmp_path / "admin.sock"))
    with Client(process.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(3)
        keys, others = save(client, worker, 0, PINNED), save(client, worker, 500, PINNED)
        right = [worker.block_bytes(block) for block in range(PINNED)]
        end = time.monotonic() + 20
        while not admin.ready():
            assert time.monotonic() < end
            time.sleep(0.02)
        named = {"keys": [key.hex() for key in keys]}
        report = admin.call("POST", "/v1/pins", named | {"ttl_s": TTL_S})
        assert (report["pinned"], report["missing"]) == (PINNED, [])
        worker.fill(4)
        flood(client, worker, 10_000)
        assert [(run.tier, run.count) for run in client.match(keys).runs] == [("dram", PINNED)]
        assert all(run.tier != "dram" for run in client.match(others).runs)
        ticket = client.load(keys, worker.pages(0, PINNED), worker.memory, deadline_s=10)
        assert {str(outcome) for outcome in ticket.wait(timeout_s=20).outcomes} == {"loaded"}
        assert [worker.block_bytes(block) for block in range(PINNED)] == right

        admin.call("POST", "/v1/pins", named | {"ttl_s": 0.2})
        while admin.json("/v1/pins")["pins"]:
            assert time.monotonic() < end + 20
            time.sleep(0.02)
        flood(client, worker, 100_000)
        assert all(run.tier != "dram" for run in client.match(keys).runs)
    assert process.end(signal.SIGTERM) == 0
