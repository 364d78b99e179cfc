"""Every route under a fuzzer that knows the description, beside a replay against the same daemon, which is unharmed."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexkvd.cli.s3server import S3Server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": ":".join(str(ROOT / each) for each in (".", "tiers", "service"))}
TOKEN = "fuzzer-may-do-all"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ENDLESS = "/v1/events"
"""A stream that does not end by itself: `test_api_looking` listens to it."""
RESUME_S = 0.3
CONFIG = """
[daemon]
socket = "{folder}/worker.sock"
[api]
host = "127.0.0.1"
port = {port}
token_file = "{folder}/tokens"
requests_per_s_max = 100000
[dram]
bytes = "32MiB"
segment_bytes = "8MiB"
[ssd]
directory = "{folder}/ssd"
bytes = "128MiB"
"""
S3_CONFIG = """
[s3]
bucket = "{bucket}"
prefix = "fuzz"
endpoint_url = "{url}"
"""


@contextmanager
def daemon(folder: Path, s3: S3Server | None) -> Iterator[str]:
    """A real daemon with its API on loopback; the API's address. It must live to the end, and stop when it is told."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "ssd").mkdir()
    (folder / "tokens").write_text(f"admin {TOKEN}\n")
    text = CONFIG.format(folder=folder, port=port)
    text += S3_CONFIG.format(bucket="fuzzed", url=s3.endpoint_url) if s3 else ""
    (folder / "flexkvd.toml").write_text(text)
    command = [sys.executable, "-m", "flexkvd.main", "--config", str(folder / "flexkvd.toml")]
    environment = ENVIRONMENT | (s3.environment if s3 else {})
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stderr=log, cwd=folder) as process,
    ):
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 30
        while time.monotonic() < end and not is_ready(url):
            time.sleep(0.05)
        try:
            yield url
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
        finally:
            process.terminate()
        assert process.wait(30) == 0
    said = (folder / "log").read_text()
    assert "Traceback" not in said, said[-3000:]
    assert TOKEN not in said


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def replaying(folder: Path) -> Iterator[dict[str, Any]]:
    """A replay beside; what it saw, once it has ended. Whatever was drained meanwhile is resumed soon."""
    command = [sys.executable, "-m", "tests.fuzz.replaying", str(folder / "worker.sock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        seen: dict[str, Any] = {}
        yield seen
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    seen |= json.loads(said)


@contextmanager
def resuming(url: str) -> Iterator[None]:
    """The fuzzer drains the daemon: nobody would get anything any more, if it were not resumed again and again."""
    over = threading.Event()

    def resume() -> None:
        with httpx.Client(base_url=url, headers=HEADERS, timeout=20) as api:
            while not over.wait(RESUME_S):
                api.post("/v1/resume")

    thread = threading.Thread(target=resume)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def fuzz(url: str, folder: Path, examples_max: int, seed: int, time_s_max: int) -> None:
    """All phases and all checks of schemathesis over all routes."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("-H", f"Authorization: Bearer {TOKEN}", "--exclude-path", ENDLESS, "--checks", "all"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(examples_max)),
        *("--seed", str(seed), "--request-timeout", "20", "--continue-on-failure", "--no-color"),
    ]
    environment = ENVIRONMENT | {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"}
    with (folder / "fuzzer").open("w+") as said:
        done = subprocess.run(
            command, env=environment, cwd=folder, stdout=said, stderr=said, timeout=time_s_max, check=False
        )
        said.seek(0)
        assert done.returncode == 0, said.read()[-8000:]


def check(tmp_path: Path, examples_max: int, seed: int, *, s3: bool, time_s_max: int) -> None:
    with ExitStack() as stack:
        (tmp_path / "s3").mkdir()
        server = stack.enter_context(S3Server(tmp_path / "s3", buckets=("fuzzed",))) if s3 else None
        url = stack.enter_context(daemon(tmp_path, server))
        with replaying(tmp_path) as seen, resuming(url):
            fuzz(url, tmp_path, examples_max, seed, time_s_max)
        assert seen["wrong"] == []
        assert seen["requests"] > 50
        assert seen["matched"] > 0


def test_no_route_breaks_or_says_what_it_should_not(tmp_path: Path) -> None:
    """No 5xx, no answer of another shape, nothing wrong accepted or right refused; the replay sees right bytes."""
    check(tmp_path, 2, 1, s3=False, time_s_max=100)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_the_same_for_long_with_every_tier(tmp_path: Path, seed: int) -> None:
    """Many more examples, with S3 below: about five minutes each."""
    check(tmp_path, 60, seed, s3=True, time_s_max=800)
