"""Routes that change something: pins, evictions, demotions, prefetches, drain and resume, each over the real API."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexkv_py.client import Client
from flexkv_py.errors import ErrorCode, FlexKVError

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_api import ended, over

BLOCKS = 8
TOKENS = GEOMETRY.tokens_per_block


@pytest.fixture
def tiered(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    return start(ssd=ssd, api={"socket": str(tmp_path / "admin.sock")}, planner={"clean_ahead": 0.0})


@pytest.fixture
def api(tiered: DaemonThread) -> Iterator[httpx.Client]:
    with over(tiered.admin) as client:
        yield client


@pytest.fixture
def saved(tiered: DaemonThread) -> Iterator[list[str]]:
    """Keys of eight blocks in DRAM, of a client that stays connected."""
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(TOKENS * BLOCKS)))
        assert client.save(keys, worker.pages(0, BLOCKS), worker.memory).wait(timeout_s=5).length == BLOCKS
        yield [key.hex() for key in keys]


def tiers_of(api: httpx.Client, key: str) -> list[str]:
    [copy] = api.get(f"/v1/blocks/{key}").json()["copies"]
    return list(copy["tiers"])


def done(api: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The result of a job that must go well."""
    job = ended(api, api.post(path, json=body))
    assert job["state"] == "done", job
    return dict(job["result"])


def test_blocks_go_down_and_come_back_as_told(api: httpx.Client, saved: list[str]) -> None:
    """Demoted, evicted from DRAM, prefetched: each job says how many, and the blocks are where it says."""
    assert done(api, "/v1/demote", {"to_tier": "ssd", "keys": saved[:4]})["blocks"] == 4
    assert [tiers_of(api, key) for key in saved[:5]] == [["dram", "ssd"]] * 4 + [["dram"]]
    evicted = done(api, "/v1/evict", {"tier": "dram", "keys": saved})
    assert (evicted["blocks"], evicted["kept"]) == (8, 0)
    assert [tiers_of(api, key) for key in saved] == [["ssd"]] * 8
    assert done(api, "/v1/prefetch", {"keys": saved[:2]})["blocks"] == 2
    assert [tiers_of(api, key) for key in saved[:3]] == [["dram", "ssd"]] * 2 + [["ssd"]]
    explained = api.get(f"/v1/blocks/{saved[0]}/story").json()
    assert explained["explanation"].startswith("a hit")
    assert [event["what"] for event in explained["events"]][:2] == ["save", "demote"]


def test_a_pinned_block_stays_until_it_is_let_go(api: httpx.Client, saved: list[str]) -> None:
    """An eviction of everything keeps what is pinned and says so; unpinned it goes like the others."""
    pinned = api.post("/v1/pins", json={"keys": [*saved[:2], "00" * 16], "ttl_s": 60}).json()
    assert (pinned["pinned"], pinned["missing"], pinned["expires_in_s"]) == (2, ["00" * 16], 60)
    assert pinned["bytes"] > 0
    listed = api.get("/v1/pins").json()
    assert [(each["key"], each["tiers"], 0 < each["expires_in_s"] <= 60) for each in listed["pins"]] == [
        (key, ["dram"], True) for key in saved[:2]
    ]
    assert api.get(f"/v1/blocks/{saved[0]}").json()["copies"][0]["pinned"] is True
    evicted = done(api, "/v1/evict", {"tier": "dram"})
    assert (evicted["blocks"], evicted["kept"]) == (6, 2)
    assert "pin" in evicted["detail"]
    assert api.post("/v1/unpin", json={"keys": saved}).json() == {"unpinned": 2}
    assert done(api, "/v1/evict", {"tier": "dram", "prefix": saved[0][:6].upper()})["blocks"] == 1
    assert tiers_of(api, saved[0]) == ["ssd"]
    assert tiers_of(api, saved[1]) == ["dram"]


def test_blocks_are_listed_page_by_page(api: httpx.Client, saved: list[str]) -> None:
    """Three pages of three keys hold each block once, in order; a prefix narrows them down."""
    listed: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page = api.get("/v1/blocks", params={"limit": 3, "after": after}).json()
        listed += [each["key"] for each in page["blocks"]]
        after, pages = page["next"], pages + 1
    assert (listed, pages) == (sorted(saved), 3)
    [alone] = api.get("/v1/blocks", params={"prefix": saved[3][:10]}).json()["blocks"]
    assert alone["key"] == saved[3]
    assert (alone["parent"], alone["tiers"], alone["matchable"]) == (saved[2], ["dram"], True)
    unknown = api.get(f"/v1/blocks/{'00' * 16}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert "never seen" in api.get(f"/v1/blocks/{'00' * 16}/story").json()["explanation"]


def test_a_drained_daemon_admits_nothing_until_it_is_resumed(
    tiered: DaemonThread, api: httpx.Client, saved: list[str]
) -> None:
    """Drained: saves are refused with `draining`, /readyz is 503; resumed, all is as before."""
    assert done(api, "/v1/drain", {"deadline_s": 5}) == {"running": 0}
    assert api.get("/v1/status").json()["state"] == "draining"
    assert api.get("/readyz").status_code == 503
    assert [api.post(f"/v1/{path}", json=body).json()["code"] for path, body in REFUSED] == ["draining"] * 2
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(1000, 1000 + TOKENS)))
        with pytest.raises(FlexKVError) as refused:
            client.save(keys, worker.pages(0, 1), worker.memory).wait(timeout_s=5)
        assert refused.value.code is ErrorCode.DRAINING
        assert api.post("/v1/resume").json() == {"state": "ready"}
        assert api.get("/readyz").status_code == 200
        assert client.save(keys, worker.pages(0, 1), worker.memory).wait(timeout_s=5).length == 1


REFUSED = [("flush", {"to_tier": "ssd"}), ("prefetch", {"keys": ["ab" * 16]})]


def test_jobs_are_cancelled_kept_and_counted(tiered: DaemonThread, api: httpx.Client) -> None:
    """A drain that waits for a ticket is cancelled; a second cancel is a conflict; only the last hundred are kept."""
    with Client(tiered.socket, GEOMETRY) as client:
        keys = client.keys(list(range(TOKENS)))
        number = tiered.call(lambda: tiered.parts.sessions.own_ticket(lambda _end: None))
        waiting = api.post("/v1/drain", json={"deadline_s": 60}).json()
        assert waiting["state"] == "running"
        assert api.get(f"/v1/jobs/{waiting['id']}").json()["state"] == "running"
        cancelled = api.delete(f"/v1/jobs/{waiting['id']}").json()
        assert (cancelled["state"], cancelled["error"]) == ("cancelled", None)
        again = api.delete(f"/v1/jobs/{waiting['id']}")
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        tiered.call(lambda: tiered.parts.sessions._own.pop(number))
        assert api.post("/v1/resume").json()["state"] == "ready"
        assert client.match(keys).length == 0
    for _ in range(101):
        last = api.post("/v1/evict", json={"tier": "dram"}).json()
    end = time.monotonic() + 10
    while api.get(f"/v1/jobs/{last['id']}").json()["state"] != "done" and time.monotonic() < end:
        time.sleep(0.02)
    kept = [job["id"] for job in api.get("/v1/jobs").json()["jobs"]]
    assert kept == list(range(last["id"], last["id"] - 100, -1))
    assert api.get(f"/v1/jobs/{waiting['id']}").status_code == 404
