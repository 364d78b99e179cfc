"""The routes that look: every answer has the shape it is described with, beside a worker that saves and loads."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from flexkv_py.client import Client
from flexkv_py.errors import FlexKVError
from flexkvd.api import shapes

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_api import ended, over


@pytest.fixture
def tiered(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    return start(ssd=ssd, api={"socket": str(tmp_path / "admin.sock")})


def test_what_a_worker_did_is_seen_in_tiers_sessions_policy_and_samples(tiered: DaemonThread) -> None:
    """Eight blocks saved, flushed and loaded: tiers, links, the session and the history all tell the same numbers."""
    with over(tiered.admin) as api, Client(tiered.socket, GEOMETRY, tenant="blue") as client:
        worker = Worker(client)
        keys = client.keys(list(range(128)))
        assert client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5).length == 8
        assert ended(api, api.post("/v1/flush", json={"to_tier": "ssd"}))["result"] == {"stored": 8, "detail": ""}
        assert client.load(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5).length == 8
        held = client.match(keys, hold_s=30)
        tiers = {each["tier"]: each for each in api.get("/v1/tiers").json()["tiers"]}
        assert list(tiers) == ["hbm", "dram", "ssd"]
        assert api.get("/v1/tiers/ssd").json()["blocks"] == tiers["dram"]["blocks"] == 8
        assert tiers["dram"]["hits"] == 8
        assert tiers["ssd"]["demotions"] == 8
        links = {link["link"]: link["bytes"] for tier in tiers.values() for link in tier["links"]}
        assert links["dram_ssd"] == links["worker_dram"] == links["dram_worker"] == 8 * GEOMETRY.block_bytes
        [session] = api.get("/v1/sessions").json()["sessions"]
        assert (session["tenant"], session["memories"], session["leases"]) == ("blue", 1, 1)
        detail = api.get(f"/v1/sessions/{session['session']}").json()
        assert [(lease["keys"], 0 < lease["expires_s"] <= 30) for lease in detail["leases"]] == [(8, True)]
        assert [memory["bytes"] > 0 for memory in detail["memories"]] == [True]
        assert held.length == 8
        policies = {each["tier"]: each["lists"] for each in api.get("/v1/policy").json()["tiers"]}
        assert sum(policies["dram"].values()) == 8
        tiered.call(tiered.daemon.operator.sampler.take)
        last = shapes.Samples.model_validate_json(api.get("/v1/samples?last_s=60").content).samples[-1]
        assert last.tiers["ssd"].blocks == 8
        assert last.links["dram_ssd"].bytes == 8 * GEOMETRY.block_bytes
        assert last.save_keys == {"stored": 8}
        assert last.matched.hit == 8
        assert api.get("/v1/status").json()["state"] == "ready"


def test_events_tell_samples_and_jobs(tiered: DaemonThread) -> None:
    """A listener hears a sample each second, and of a flush from its beginning to its end."""
    with over(tiered.admin) as api, api.stream("GET", "/v1/events") as stream, over(tiered.admin) as other:
        assert stream.headers["content-type"].startswith("text/event-stream")
        job = ended(other, other.post("/v1/flush", json={"to_tier": "ssd"}))
        heard: list[tuple[str, dict[str, object]]] = []
        end, event = time.monotonic() + 10, ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                heard.append((event, json.loads(value)))
            if {kind for kind, _ in heard} == {"sample", "job"} and heard[-1][1].get("state") != "running":
                break
            assert time.monotonic() < end
    jobs = [data for kind, data in heard if kind == "job"]
    assert [(each["id"], each["state"]) for each in jobs] == [(job["id"], "running"), (job["id"], "done")]
    assert shapes.Sample.model_validate(next(data for kind, data in heard if kind == "sample"))


def test_a_listener_too_many_is_told_to_wait(tiered: DaemonThread) -> None:
    """The seventeenth is answered 429 with the seconds to wait, and a place is free again when one leaves."""
    with over(tiered.admin) as api:
        with ExitStack() as listening:
            for _ in range(16):
                listening.enter_context(api.stream("GET", "/v1/events"))
            refused = api.get("/v1/events")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "throttled", "5")
        end = time.monotonic() + 5
        while (status := listen_once(api)) == 429 and time.monotonic() < end:
            time.sleep(0.02)
        assert status == 200


def listen_once(api: httpx.Client) -> int:
    with api.stream("GET", "/v1/events") as stream:
        return stream.status_code


def test_what_is_not_there_is_not_found(tiered: DaemonThread) -> None:
    """A tier this daemon has not, a session and a job that never were: 404 and what to do instead."""
    with over(tiered.admin) as api:
        for path in ("/v1/tiers/s3", "/v1/sessions/99", "/v1/jobs/99"):
            refused = api.get(path)
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), path
        assert api.get("/v1/tiers/tape").status_code == 400
        assert api.delete("/v1/jobs/99").status_code == 404


def test_faults_and_the_recorder_are_answered(tiered: DaemonThread) -> None:
    """A refused request is among the faults; a dump is a file, and the recorder says that it was taken."""
    with over(tiered.admin) as api, Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        with pytest.raises(FlexKVError):
            client.load([b"\0" * 16], [4096, 4097], worker.memory)
        [fault] = api.get("/v1/faults?limit=5").json()["faults"]
        assert (fault["what"], fault["count"], fault["age_s"] >= 0) == ("request: page_out_of_range", 1, True)
        before = api.get("/v1/recorder").json()
        assert before["events"] > 0
        assert (before["complete"], before["dumps"]) == (True, 0)
        dump = api.post("/v1/recorder/dump")
        assert dump.headers["content-type"] == "application/octet-stream"
        assert len(dump.content) > 100
        assert api.get("/v1/recorder").json()["dumps"] == 1
