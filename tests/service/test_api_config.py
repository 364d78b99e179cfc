"""The running configuration over REST: what is in force, where it came from, and what changes without a restart."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexkv_py.client import Client

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_api import over


@pytest.fixture
def daemon(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    return start(ssd=ssd, api={"socket": str(tmp_path / "admin.sock")})


@pytest.fixture
def api(daemon: DaemonThread) -> Iterator[httpx.Client]:
    with over(daemon.admin) as client:
        yield client


def test_every_value_says_where_it_came_from(api: httpx.Client) -> None:
    """The file's, the defaults' and live ones are told apart; a key given back to the file is the file's again."""
    tables = api.get("/v1/config").json()["tables"]
    assert tables["dram"]["bytes"]["origin"] == "file"
    assert tables["daemon"]["drain_s"] | {"doc": ""} == {
        "value": 2.0,
        "default": 20.0,
        "origin": "file",
        "live": True,
        "doc": "",
    }
    assert tables["limits"]["retry_after_s"]["origin"] == "default"
    assert "s3" not in tables
    changed = api.patch("/v1/config", json={"daemon": {"drain_s": 7}, "limits": {"retry_after_s": 0.5}}).json()
    assert sorted(changed["changed"]) == ["daemon.drain_s", "limits.retry_after_s"]
    drain = changed["config"]["tables"]["daemon"]["drain_s"]
    assert (drain["value"], drain["origin"]) == (7.0, "live")
    assert api.patch("/v1/config", json={"daemon": {"drain_s": None}}).json()["changed"] == ["daemon.drain_s"]
    drain = api.get("/v1/config").json()["tables"]["daemon"]["drain_s"]
    assert (drain["value"], drain["origin"]) == (2.0, "file")


def test_a_change_is_all_or_nothing(api: httpx.Client) -> None:
    """One key that is not accepted, or changes only with a restart, and none of the others has changed."""
    for wrong in (
        {"daemon": {"drain_s": 5, "socket": "/elsewhere"}},
        {"daemon": {"drain_s": -1}},
        {"daemon": {"drain_s": "5"}},
        {"daemon": {"drain_s": 5}, "tape": {"bytes": 1}},
        {"daemon": 5},
        [],
    ):
        refused = api.patch("/v1/config", json=wrong)
        assert (refused.status_code, set(refused.json())) == (400, {"code", "message"}), wrong
    assert api.get("/v1/config").json()["tables"]["daemon"]["drain_s"]["value"] == 2.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dram": {"bytes": "1GiB"}}, "dram.bytes changes only with a restart"),
        ({"daemon": {"drain_ss": 5}}, r"\[daemon\] has no key 'drain_ss'.*drain_s"),
        ({"plannner": {"policy": "lru"}}, r"no table \[plannner\].*planner"),
        ({"tape": 5}, "tape is no table"),
        ({"s3": {"prefix": "x"}}, r"\[s3\] is not configured"),
        ({"tenants": {"ann": {"dram_bytes": 1}}}, "PUT /v1/tenants/NAME/quota"),
        ({"daemon": {"x" * 9000: 1}}, "has no key 'x{40}'"),
    ],
)
def test_what_may_not_change_is_said_in_words(api: httpx.Client, wrong: Any, said: str) -> None:
    """A misprint, a key that waits for a restart, one of another route: each with its cure, not its schema."""
    refused = api.patch("/v1/config", json=wrong)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_config")
    assert re.search(said, refused.json()["message"])
    assert len(refused.json()["message"]) < 1000


def test_rules_and_limits_change_while_a_worker_saves(daemon: DaemonThread, api: httpx.Client) -> None:
    """Another eviction order, gate and rate are in force at once, and nothing of the cache is lost by it."""
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(128)))
        assert client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5).length == 8
        assert {each["policy"] for each in api.get("/v1/policy").json()["tiers"]} == {"adaptive"}
        wanted = {"planner": {"policy": "s3fifo", "ssd_hits_min": 3}, "api": {"requests_per_s_max": 1}}
        assert len(api.patch("/v1/config", json=wanted).json()["changed"]) == 3
        assert client.match(keys).length == 8  # one event more, in which copies move
        policy = api.get("/v1/policy").json()
        assert {each["policy"] for each in policy["tiers"]} == {"s3fifo"}
        assert policy["admission"] == {"ssd": 3}
        assert sum(policy["tiers"][0]["lists"].values()) == 8
        assert [api.get("/v1/policy").status_code for _ in range(3)][-1] == 429
