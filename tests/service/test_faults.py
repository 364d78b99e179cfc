"""What went wrong of late: in the log, and for those who ask."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.faults import QUIET_S, RECENT_MAX, FaultLog
from tests.tiers.small_disk import mounted

from .conftest import GEOMETRY, DaemonThread, Worker


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_per_link_and_fault_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """The first of a kind is written with its detail, the next line counts those in between."""
    clock = Clock()
    faults = FaultLog(clock)
    for second in range(14):
        clock.now_s = 100.0 + second
        faults.failed("dram_ssd", Fault.FULL, "no room")
    faults.failed("dram_ssd", Fault.LATE, "")
    faults.failed("dram_s3", Fault.FULL, "over quota")
    assert [record.getMessage() for record in caplog.records] == [
        "dram_ssd: full: no room",
        "dram_ssd: full: no room; 9 more since the last such line",
        "dram_ssd: late",
        "dram_s3: full: over quota",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_recent_faults_are_bounded_and_counted() -> None:
    """Faults of one kind within ten seconds are one entry with its newest detail; the oldest entries go first."""
    clock = Clock()
    faults = FaultLog(clock)
    for second in range(12):
        clock.now_s = float(second)
        faults.note("tier down", "s3", f"breaker, {second} s")
    faults.failed("ssd_dram", Fault.CORRUPT, "wrong checksum")
    faults.failed("worker_dram", Fault.MEMORY, "the worker died")
    faults.refused(FlexKVError(ErrorCode.BAD_KEY, "x" * 1000))
    clock.now_s = 20.0
    refused, memory, corrupt, later, first = faults.recent()
    assert (refused["what"], refused["tier"], len(refused["detail"])) == ("request: bad_key", "", 300)
    assert (memory["what"], memory["tier"]) == ("worker_dram: memory", "dram")
    assert corrupt == {"age_s": 9.0, "what": "ssd_dram: corrupt", "tier": "ssd", "detail": "wrong checksum", "count": 1}
    assert (later["detail"], later["count"], later["age_s"]) == ("breaker, 11 s", 2, 9.0)
    assert (first["detail"], first["count"], first["age_s"]) == ("breaker, 9 s", QUIET_S, 11.0)
    assert faults.recent(limit=1) == [refused]
    for number in range(2 * RECENT_MAX):
        faults.note(f"kind {number}")
    assert len(faults.recent()) == RECENT_MAX
    assert faults.total == 12 + 3 + 2 * RECENT_MAX


def test_a_daemon_remembers_what_it_refused(start: Callable[..., DaemonThread]) -> None:
    """A client that is refused with a code finds that, with the sentence it was told, among the recent faults."""
    daemon = start(limits={"keys_per_message_max": 4})
    with Client(daemon.socket, GEOMETRY) as client, pytest.raises(FlexKVError) as refused:
        client.match(client.keys(list(range(16 * 8))))
    faults = daemon.call(daemon.parts.faults.recent)
    assert f"request: {refused.value.code.value}" in {each["what"] for each in faults}
    assert refused.value.message in {each["detail"] for each in faults}


def test_a_full_disk_is_in_the_log(
    start: Callable[..., DaemonThread], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Saves that meet a full disk leave one line that names the disk and the cure, not one each."""
    place = tmp_path / "mount"
    place.mkdir()
    with mounted("tmpfs", "size=20m", place) as small:
        daemon = start(ssd={"directory": str(small), "bytes": "64MiB"})
        (small / "ballast").write_bytes(bytes(4 << 20))
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client, 512)
            for turn in range(4):
                keys = client.keys(list(range(100_000 * turn, 100_000 * turn + 16 * 512)))
                client.save(keys, worker.pages(0, 512), worker.memory, ack="ssd", deadline_s=0.5).wait(timeout_s=10)
        daemon.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == "flexkvd.faults"]
    full = [line for line in lines if line.startswith("dram_ssd: full: ")]
    assert len(full) == 1
    assert "free space there" in full[0]
    assert full[0].count(str(small)) == 1
