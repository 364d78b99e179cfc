"""The REST API over its Unix socket: health, readiness, status, flush, metrics, tokens, errors."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import flexkv_py.core
from flexkv_py.client import Client
from flexkv_py.core.messages import Tier
from flexkvd.families import FAMILIES, PLANNER_COUNTERS
from flexkvd.readiness import Readiness

from .conftest import GEOMETRY, DaemonThread, Worker


def over(path: Path) -> httpx.Client:
    """A client of the API once its socket is there."""
    end = time.monotonic() + 15
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as probe:  # the file is there before anybody listens
            if probe.connect_ex(str(path)) == 0:
                break
        time.sleep(0.02)
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://localhost", timeout=15
    )


def ended(api: httpx.Client, started: httpx.Response) -> dict[str, Any]:
    """The job that an answer began, once it has ended."""
    assert started.status_code == 202, started.text
    job: dict[str, Any] = started.json()
    end = time.monotonic() + 15
    while job["state"] in ("queued", "running") and time.monotonic() < end:
        time.sleep(0.01)
        job = api.get(f"/v1/jobs/{job['id']}").json()
    return job


@pytest.fixture
def tiered(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    return start(ssd=ssd, api={"socket": str(tmp_path / "admin.sock")})


def test_health_readiness_status_flush_and_metrics(tiered: DaemonThread) -> None:
    """One walk over every route beside a worker that saves, with what was saved showing up everywhere."""
    with over(tiered.admin) as api, Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(128)))
        client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
        assert api.get("/healthz").json() == {"alive": True}
        ready = api.get("/readyz")
        while ready.status_code == 503:
            assert ready.json()["reasons"]
            ready = api.get("/readyz")
        assert ready.json() == {"ready": True, "reasons": {}, "degraded": {}}
        assert tiered.admin.stat().st_mode & 0o777 == 0o600
        assert ended(api, api.post("/v1/flush", json={"to_tier": "ssd", "deadline_s": 5}))["state"] == "done"
        status = api.get("/v1/status").json()
        assert status["planner"]["blocks"] == 8
        assert [(each["role"], each["memories"]) for each in status["sessions"]] == [("worker", 1)]
        assert status["tiers"]["ssd"]["records"] == 8
        text = api.get("/metrics").text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["flexkv_save_keys_total", "stored"] == 8
    assert samples["flexkv_link_bytes_total", "dram_ssd"] == 8 * GEOMETRY.block_bytes
    assert samples["flexkv_link_bytes_total", "worker_dram"] == 8 * GEOMETRY.block_bytes
    assert samples["flexkv_ticket_seconds_count", "save", "dram"] == 1
    assert samples["flexkv_tier_up", "ssd"] == 1


def test_a_daemon_without_its_s3_is_ready_and_says_why_it_is_missing(
    start: Callable[..., DaemonThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nobody at the endpoint /readyz is 200 and names tier, cause and setting; workers save and load."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    s3 = {"bucket": "b", "endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "retry_count_max": 0}
    daemon = start(s3=s3, api={"socket": str(tmp_path / "admin.sock")})
    with over(daemon.admin) as api, Client(daemon.socket, GEOMETRY) as client:
        answer = until_ready(api)
        assert answer["reasons"] == {}
        said, end = answer["degraded"]["s3"], time.monotonic() + 30
        while "not answered yet" in said and time.monotonic() < end:  # it tries for a while before it says why
            time.sleep(0.05)
            said = api.get("/readyz").json()["degraded"]["s3"]
        assert said.startswith("down: ")
        assert "127.0.0.1:1" in said
        assert "s3.endpoint_url" in said
        assert api.get("/v1/status").json()["degraded"] == {"s3": said}
        worker = Worker(client)
        keys = client.keys(list(range(16)))
        assert client.save(keys, worker.pages(0, 1), worker.memory).wait(timeout_s=5).length == 1
        assert client.load(keys, worker.pages(1, 1), worker.memory).wait(timeout_s=5).length == 1


def until_ready(api: httpx.Client) -> dict[str, Any]:
    """The answer of /readyz once it is 200; before that it says what is awaited."""
    end = time.monotonic() + 15
    while (answer := api.get("/readyz")).status_code == 503 and time.monotonic() < end:
        assert answer.json()["reasons"]
        time.sleep(0.02)
    assert answer.status_code == 200, answer.json()
    return dict(answer.json())


def test_readiness_awaits_a_step_until_it_is_told_to_go_on_without() -> None:
    """Awaited steps are reasons, others make it degraded; `on_ready` comes then, and once more when they end."""
    readiness, heard = Readiness(), []
    readiness.on_ready = lambda: heard.append(list(readiness.steps))
    readiness.begin("arena", lambda: "half")
    readiness.begin("s3", lambda: "connecting")
    readiness.go_on_without("s3")
    assert readiness.report() == {"ready": False, "reasons": {"arena": "half"}, "degraded": {"s3": "connecting"}}
    readiness.end("arena")
    assert readiness.report() == {"ready": True, "reasons": {}, "degraded": {"s3": "connecting"}}
    readiness.end("s3")
    readiness.go_on_without("s3")
    assert heard == [["s3"], []]


def test_a_block_tells_its_story(tiered: DaemonThread) -> None:
    """Saved, then demoted by a flush: both are told in order; a block nobody saved has no story."""
    with over(tiered.admin) as api, Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        [key] = client.keys(list(range(16)))
        client.save([key], worker.pages(0, 1), worker.memory).wait(timeout_s=5)
        ended(api, api.post("/v1/flush", json={"to_tier": "ssd", "deadline_s": 5}))
        told = api.get(f"/v1/blocks/{key.hex().upper()}/story").json()
        assert told["key"] == key.hex()
        assert [(each["what"], each["tier"]) for each in told["events"]] == [("save", "dram"), ("demote", "ssd")]
        assert all(0 <= each["age_s"] < 60 for each in told["events"])
        assert api.get(f"/v1/blocks/{bytes(16).hex()}/story").json()["events"] == []


def test_errors_have_a_code_and_a_message(tiered: DaemonThread) -> None:
    """Unknown routes, bad bodies and tiers that are not there are all answered in one form."""
    with over(tiered.admin) as api:
        answers = [
            api.get("/nowhere"),
            api.post("/v1/flush", json={"to_tier": "tape"}),
            api.post("/v1/flush", json={"to_tier": "ssd", "deadline_s": -1}),
            api.post("/v1/flush", content=b"{"),
            api.get("/v1/blocks/1234/story"),
            api.post("/v1/flush", json={"to_tier": "s3"}),
        ]
    assert [answer.status_code for answer in answers] == [404, 400, 400, 400, 400, 409]
    assert all(set(answer.json()) == {"code", "message"} for answer in answers)
    assert answers[-1].json()["code"] == "tier_unavailable"
    assert "without s3" in answers[-1].json()["message"]


def test_a_flush_while_the_daemon_drains_is_refused_at_once(
    tiered: DaemonThread, caplog: pytest.LogCaptureFixture
) -> None:
    """409 and `draining`, and nothing of it in the log as a failure."""
    with over(tiered.admin) as api:
        tiered.call(lambda: setattr(tiered.parts.readiness, "draining", True))
        began = time.monotonic()
        refused = api.post("/v1/flush", json={"to_tier": "ssd"})
        assert time.monotonic() - began < 2
    assert (refused.status_code, refused.json()["code"]) == (409, "draining")
    assert tiered.stop() == 0
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_flush_that_outlasts_the_drain_is_answered(
    start: Callable[..., DaemonThread], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain's time is over while a flush runs: it ends, and says how far it came."""
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon = start(daemon={"drain_s": 0.0}, ssd=ssd, planner={"clean_ahead": 0.0}, limits={"flush_in_flight_max": 1})
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client, 512)
        keys = client.keys(list(range(16 * 512)))
        assert client.save(keys, worker.pages(0, 512), worker.memory).wait(timeout_s=10).length == 512
    flush = daemon.call(lambda: asyncio.ensure_future(daemon.parts.operations.flush(Tier.SSD, 60.0)))
    assert daemon.stop() == 0
    answer = flush.result()
    assert answer.detail == "cancelled"
    assert answer.blocks < 512
    assert [record for record in caplog.records if record.exc_info] == []


def test_with_a_token_only_health_is_open(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """On a TCP port with a token, everything but /healthz asks for it."""
    (tmp_path / "token").write_text("sesame\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    daemon = start(api={"host": "127.0.0.1", "port": port, "token_file": str(tmp_path / "token")})
    while not daemon.call(lambda: daemon.daemon.operator.readiness()["ready"]):
        time.sleep(0.01)  # the port is bound before that
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=15) as api:
        assert api.get("/healthz").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            refused = api.get("/metrics", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert api.get("/metrics", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_every_family_is_documented_once(tiered: DaemonThread) -> None:
    """Each metric has a help text and its own name, and what is served is exactly what is listed."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.help.endswith(".") for family in FAMILIES)
    text = tiered.call(tiered.daemon.operator.metrics_text).decode()
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {family.name for family in FAMILIES} == served
    assert "_created" not in text


def test_every_counter_of_the_planner_is_served() -> None:
    """Whatever the core counts by name is among the families."""
    import re

    [folder] = flexkv_py.core.__path__
    sources = "".join(path.read_text() for path in Path(folder).glob("*.py"))
    counted = set(re.findall(r"""state\.count\(\s*"(\w+)\"""", sources))
    assert counted - {family.of for family in PLANNER_COUNTERS} == set()
    assert len(counted) > 5
