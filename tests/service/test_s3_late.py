"""A daemon whose S3 answers late, or answers with what may mend itself: it serves on, and S3 comes in when it can."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd import startup
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.s3_backing import shared_server
from tests.trials.fleet import until

from .conftest import GEOMETRY, DaemonThread, Worker

LATE_ANSWERS = {
    "denied": Faults(status=403, code="AccessDenied"),
    "refused": Faults(status=400, code="Odd"),
    "bucket missing": Faults(status=404, code="NoSuchBucket"),
}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(shared_server().endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def table(proxy: FaultProxy, tmp_path: Path) -> dict[str, object]:
    """[s3] of a bucket behind the proxy, with no limit that a busy machine would meet."""
    return {
        "bucket": "flexkv",
        "prefix": tmp_path.name,
        "endpoint_url": proxy.endpoint_url,
        "addressing_style": "path",
        "silence_s": 30.0,
        "read_timeout_s": 30.0,
        "codec": "none",
    }


def readiness(daemon: DaemonThread) -> dict[str, object]:
    return daemon.call(daemon.daemon.operator.readiness)


def assert_served_by_s3(daemon: DaemonThread) -> None:
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client, 1)
        keys = client.keys(list(range(16)))
        saved = client.save(keys, worker.pages(0, 1), worker.memory, ack="s3", deadline_s=30).wait()
        assert saved.outcomes == [Outcome.STORED]


@pytest.mark.parametrize("faults", LATE_ANSWERS.values(), ids=LATE_ANSWERS)
def test_a_late_first_refusal_degrades_a_daemon_that_serves(
    start: Callable[..., DaemonThread],
    proxy: FaultProxy,
    table: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    faults: Faults,
) -> None:
    """Ready without S3, then refused: it says so and serves on, and S3 comes in when the server takes it."""
    monkeypatch.setattr(startup, "REACH_S_MAX", 0.1)
    proxy.set(faults)
    proxy.suspend()
    try:
        daemon = start(s3=table)
        until(lambda: readiness(daemon)["ready"], "it goes on without S3")
    finally:
        proxy.resume()
    until(lambda: faults.code in str(readiness(daemon)["degraded"]), "the refusal is told")
    assert readiness(daemon)["ready"]
    proxy.set(Faults())
    until(lambda: not readiness(daemon)["degraded"], "S3 is read in")
    assert_served_by_s3(daemon)


def test_what_mends_itself_ends_no_start(
    start: Callable[..., DaemonThread], proxy: FaultProxy, table: dict[str, object]
) -> None:
    """A token that is over, as the very first answer, in time: the daemon is ready, and S3 follows."""
    proxy.set(Faults(status=400, code="ExpiredToken"))
    daemon = start(s3=table)
    until(lambda: readiness(daemon)["ready"], "it goes on without S3")
    assert "ExpiredToken" in str(readiness(daemon)["degraded"])
    proxy.set(Faults())
    until(lambda: not readiness(daemon)["degraded"], "S3 is read in")


def test_what_somebody_has_to_change_still_ends_a_start(
    tmp_path: Path, proxy: FaultProxy, table: dict[str, object]
) -> None:
    """Refused before anybody is served: the daemon ends with the code, as documented."""
    proxy.set(LATE_ANSWERS["denied"])
    daemon = DaemonThread(tmp_path, s3=table)
    daemon.join()
    assert isinstance(daemon.failure, FlexKVError)
    assert daemon.failure.code is ErrorCode.S3_DENIED
