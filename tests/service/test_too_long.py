"""A daemon whose SSD has segments too short for one model's blocks: nobody else pays for that."""

import time
from collections.abc import Callable
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.geometry import Geometry, Plane
from flexkvd.facts import facts_of

from .conftest import GEOMETRY, DaemonThread, Worker

LONG = Geometry(
    planes=(Plane("kv", tuple(range(4)), 64 << 10),),
    tokens_per_block=16,
    chunk_bytes_min=1 << 20,
    chunk_count_max=4,
)
"""Blocks of 4 MiB, where the others' make segments of 1 MiB."""
COUNT = 240
DEADLINE_S = 20.0


def test_blocks_longer_than_a_segment_cost_no_other_block(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """All of one model's durable blocks stay, and another's that can never fit are refused at once, with the cure."""
    (tmp_path / "ssd").mkdir()
    daemon = start(ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}, dram={"bytes": "64MiB"})

    def tier() -> dict[str, object]:
        facts: dict[str, object] = daemon.call(lambda: facts_of(daemon.parts.planner.state))["tiers"]["ssd"]
        return facts

    with Client(daemon.socket, GEOMETRY) as first, Client(daemon.socket, LONG) as second:
        worker, other = Worker(first, COUNT), Worker(second, 4, LONG)
        ours = first.keys(list(range(16 * COUNT)))
        saved = first.save(ours, worker.pages(0, COUNT), worker.memory, ack="ssd").wait(timeout_s=DEADLINE_S)
        assert {outcome.name for outcome in saved.outcomes} == {"STORED"}
        before = tier()
        for turn in range(8):
            theirs = second.keys(list(range(1000 * turn, 1000 * turn + 16)))
            ack = "ssd" if turn % 2 else "dram"
            begun_s = time.monotonic()
            ended = second.save(theirs, other.pages(0, 1), other.memory, ack=ack, deadline_s=DEADLINE_S).wait(
                timeout_s=2 * DEADLINE_S
            )
            assert {outcome.name for outcome in ended.outcomes} == ({"REFUSED"} if turn % 2 else {"STORED"})
            if turn % 2:
                assert time.monotonic() - begun_s < DEADLINE_S / 2, "refused at once, not at its deadline"
                assert "empty all its directories and, in [ssd], set segment_bytes to" in ended.detail
        after = tier()
        assert (after["used_bytes"], after["capacity_bytes"]) == (before["used_bytes"], before["capacity_bytes"])
        assert first.match(ours).length == COUNT
