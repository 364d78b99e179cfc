"""A daemon whose SSD fails whole: it says so, saves stay above, and the tier comes back when the disk does."""

from collections.abc import Callable
from pathlib import Path

from flexkv_py.client import Client
from flexkv_tiers.ssd.directory import MARKER_NAME
from flexkvd.facts import facts_of

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_lives import until


def test_an_ssd_that_fails_whole_is_down_and_comes_back(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """All files deleted underneath: status says down and why, DRAM takes saves, and SSD again once it is mended."""
    directory = tmp_path / "ssd"
    directory.mkdir()
    daemon = start(ssd={"directory": str(directory), "bytes": "64MiB"}, planner={"clean_ahead": 0.0})

    def ssd() -> dict[str, object]:
        facts: dict[str, object] = daemon.call(lambda: facts_of(daemon.parts.planner.state))["tiers"]["ssd"]
        return facts

    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)

        def save(first: int, ack: str) -> tuple[set[str], str]:
            keys = client.keys(list(range(first, first + 16 * 8)))
            done = client.save(keys, worker.pages(0, 8), worker.memory, ack=ack, deadline_s=2.0).wait(timeout_s=5)
            return {outcome.name for outcome in done.outcomes}, done.detail

        assert save(0, "ssd")[0] == {"STORED"}
        marker = (directory / MARKER_NAME).read_bytes()
        for file in directory.iterdir():
            file.unlink()
        number = 1

        def told_down() -> bool:
            nonlocal number
            number += 1
            assert "STORED" not in save(1000 * number, "ssd")[0]
            return not ssd()["up"]

        until(told_down)
        assert "emptied underneath" in str(ssd()["down_reason"])
        outcomes, detail = save(900_000, "ssd")
        assert "STORED" not in outcomes
        assert "the tier is down" in detail
        assert save(910_000, "dram")[0] == {"STORED"}
        (directory / MARKER_NAME).write_bytes(marker)
        until(lambda: bool(ssd()["up"]))
        assert save(920_000, "ssd")[0] == {"STORED"}
