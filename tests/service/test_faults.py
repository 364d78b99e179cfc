"""What the log says of failed transfers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flexkvd.fault_log import FaultLog

from flexkv_py.client import Client
from flexkv_py.core.messages import Fault
from tests.tiers.small_disk import mounted

from .conftest import GEOMETRY, DaemonThread, Worker


def test_a_line_per_link_and_fault_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """The first of a kind is written with its detail, the next line counts those in between."""
    faults = FaultLog()
    for second in range(14):
        faults.failed("dram_ssd", Fault.FULL, "no room", 100.0 + second)
    faults.failed("dram_ssd", Fault.LATE, "", 101.0)
    faults.failed("dram_s3", Fault.FULL, "over quota", 101.0)
    assert [record.getMessage() for record in caplog.records] == [
        "dram_ssd: full: no room",
        "dram_ssd: full: no room; 9 more since the last such line",
        "dram_ssd: late",
        "dram_s3: full: over quota",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


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
    lines = [record.getMessage() for record in caplog.records if record.name == "flexkvd.fault_log"]
    full = [line for line in lines if line.startswith("dram_ssd: full: ")]
    assert len(full) == 1
    assert "free space there" in full[0]
    assert full[0].count(str(small)) == 1
