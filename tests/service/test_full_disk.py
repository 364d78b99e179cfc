"""A daemon whose SSD disk others fill: the tier is as small as the disk while that lasts, and no longer."""

from collections.abc import Callable
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.room import SHRUNK_NS
from flexkvd.facts import facts_of
from tests.tiers.small_disk import mounted

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_lives import until

MIB = 1 << 20
COUNT = 32
PATIENCE_S = SHRUNK_NS / 2e9


def test_a_tier_is_large_again_when_its_disk_is(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Once somebody else's file is gone, saves bring the counted room back long before it is tried by the clock."""
    (tmp_path / "small").mkdir()
    with mounted("tmpfs", "size=48m", tmp_path / "small") as small:
        (small / "ballast").write_bytes(bytes(40 * MIB))
        daemon = start(ssd={"directory": str(small / "ssd"), "bytes": "32MiB"}, planner={"clean_ahead": 0.0})

        def capacity_bytes() -> int:
            facts = daemon.call(lambda: facts_of(daemon.parts.planner.state))["tiers"]["ssd"]
            return int(facts["capacity_bytes"])

        counted_bytes = capacity_bytes()
        with Client(daemon.socket, GEOMETRY) as client:
            worker = Worker(client, COUNT)
            saves = iter(range(1_000_000))

            def save() -> None:
                first = 16 * COUNT * next(saves)
                keys = client.keys(list(range(first, first + 16 * COUNT)))
                client.save(keys, worker.pages(0, COUNT), worker.memory, ack="ssd", deadline_s=2.0).wait(timeout_s=5)

            def shrunk() -> bool:
                save()
                return capacity_bytes() < counted_bytes

            until(shrunk, limit_s=PATIENCE_S)
            (small / "ballast").unlink()
            until(lambda: not shrunk(), limit_s=PATIENCE_S)
        daemon.stop()
