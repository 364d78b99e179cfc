"""Verification of a running tier: damage is found before anyone asks for the block, and becomes a miss."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexkv_py.client import Client
from flexkv_py.keys import BlockKey

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_api import ended, over

BLOCKS = 8


@pytest.fixture
def tiered(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    return start(ssd=ssd, api={"socket": str(tmp_path / "admin.sock")}, planner={"clean_ahead": 0.0})


@pytest.fixture
def api(tiered: DaemonThread) -> Iterator[httpx.Client]:
    with over(tiered.admin) as client:
        yield client


def verified(api: httpx.Client, tier: str) -> dict[str, Any]:
    job = ended(api, api.post("/v1/verify", json={"tier": tier}))
    assert (job["state"], job["unit"], job["done"]) == ("done", "blocks", job["total"]), job
    return dict(job["result"])


def flip_on_disk(directory: Path, wanted: bytes) -> None:
    """Change one byte of the first place in a segment where these bytes lie."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and (at := (raw := path.read_bytes()).find(wanted)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([raw[at] ^ 1]))
            return
    raise AssertionError("no segment holds these bytes")


def test_damage_on_disk_becomes_a_miss(tiered: DaemonThread, api: httpx.Client, tmp_path: Path) -> None:
    """One flipped byte of a record that lies on SSD only: counted, told, dropped, and the prefix ends before it."""
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(1)
        keys = client.keys(list(range(GEOMETRY.tokens_per_block * BLOCKS)))
        assert client.save(keys, worker.pages(0, BLOCKS), worker.memory).wait(timeout_s=5).length == BLOCKS
        assert ended(api, api.post("/v1/evict", json={"tier": "dram"}))["result"]["blocks"] == BLOCKS
        assert verified(api, "ssd") == {
            "checked": BLOCKS,
            "damaged": 0,
            "unreadable": 0,
            "bytes": api.get("/v1/tiers/ssd").json()["used_bytes"],
        }
        assert verified(api, "dram") == {"checked": 0, "damaged": 0, "unreadable": 0, "bytes": 0}
        flip_on_disk(tmp_path / "ssd", worker.block_bytes(5)[:64])
        found = verified(api, "ssd")
        assert (found["checked"], found["damaged"]) == (BLOCKS, 1)
        assert client.match(keys).length == 5
        assert verified(api, "ssd")["checked"] == BLOCKS - 1
        story = api.get(f"/v1/blocks/{keys[5].hex()}/story").json()
        assert "found by verify" in next(event["detail"] for event in story["events"] if event["what"] == "fault")
        assert [(each["what"], each["tier"]) for each in api.get("/v1/faults").json()["faults"]] == [("corrupt", "ssd")]
        assert api.get("/v1/tiers/ssd").json()["faults"] == 1


def test_damage_in_dram_is_served_from_below(tiered: DaemonThread, api: httpx.Client) -> None:
    """A byte that changed in the arena: the copy goes, and the block is loaded right from SSD, where it is whole."""
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        worker.fill(2)
        before = [worker.block_bytes(block) for block in range(2)]
        keys = client.keys(list(range(GEOMETRY.tokens_per_block * 2)))
        assert client.save(keys, worker.pages(0, 2), worker.memory).wait(timeout_s=5).length == 2
        ended(api, api.post("/v1/flush", json={"to_tier": "ssd"}))
        tiered.call(lambda: spoil_in_dram(tiered, keys[1]))
        found = verified(api, "dram")
        assert (found["checked"], found["damaged"]) == (2, 1)
        [copy] = api.get(f"/v1/blocks/{keys[1].hex()}").json()["copies"]
        assert copy["tiers"] == ["ssd"]
        assert client.load(keys, worker.pages(2, 2), worker.memory).wait(timeout_s=5).length == 2
        assert [worker.block_bytes(block) for block in (2, 3)] == before


def spoil_in_dram(daemon: DaemonThread, key: BlockKey) -> None:
    [block] = [index.blocks[key] for index in daemon.parts.planner.state.indexes.values()]
    assert block.dram is not None
    view = daemon.parts.arena.view(block.dram.frames[0], 64)
    view[0] ^= 1
