"""A whole daemon and its operator: what it pins, evicts, demotes and brings back, seen by a worker over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkv_py.core.messages import Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkv_py.operating.messages import Rules
from flexkvd.operations import Operations, Selection

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_lives import until

TOKENS = GEOMETRY.tokens_per_block
SMALL = {"bytes": "1MiB", "segment_bytes": "1MiB"}
"""Room for 64 blocks."""

FLOOD = 48


class Bench:
    """A daemon, its operator, and a worker."""

    def __init__(self, daemon: DaemonThread, client: Client) -> None:
        self.daemon, self.client, self.worker = daemon, client, Worker(client)
        self.operations: Operations = daemon.parts.operations
        self._floods = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the daemon's loop; its result."""
        loop = self.daemon.call(asyncio.get_running_loop)
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    def keys(self, first: int, count: int) -> list[BlockKey]:
        return self.client.keys(list(range(first * TOKENS, (first + count) * TOKENS)))

    def save(self, first: int, count: int, ack: str = "dram") -> list[BlockKey]:
        keys = self.keys(first, count)
        ticket = self.client.save(keys, self.worker.pages(0, count), self.worker.memory, ack=ack, deadline_s=5)
        outcomes = {str(outcome) for outcome in ticket.wait(timeout_s=10).outcomes}
        assert outcomes <= {"stored", "present"}, outcomes
        return keys

    def flood(self) -> None:
        """Far more than DRAM holds."""
        for _ in range(4):
            self._floods += 1
            self.save(10_000 * self._floods, FLOOD)

    def matched(self, keys: list[BlockKey]) -> int:
        return self.client.match(keys).length


@contextmanager
def bench_on(daemon: DaemonThread) -> Iterator[Bench]:
    with Client(daemon.socket, GEOMETRY) as client:
        yield Bench(daemon, client)


def test_pinned_blocks_are_served_from_dram_whatever_comes_and_go_after_their_time(
    start: Callable[..., DaemonThread],
) -> None:
    """Four times DRAM is saved beside eight pinned blocks: they are loaded with their bytes; later they are gone."""
    with bench_on(start(dram=SMALL)) as bench:
        content = bench.worker.fill(1)
        keys = bench.save(0, 8)
        report = bench.run(bench.operations.pin(keys, 600))
        assert (report.pinned, report.missing) == (8, [])
        assert len(bench.operations.pins()) == 8
        bench.worker.fill(2)
        bench.flood()
        assert bench.matched(keys) == 8
        ticket = bench.client.load(keys, bench.worker.pages(0, 8), bench.worker.memory, deadline_s=5)
        assert {str(outcome) for outcome in ticket.wait(timeout_s=10).outcomes} == {"loaded"}
        loaded = [bench.worker.block_bytes(block) for block in range(8)]
        bench.worker.bytes[:] = content
        assert loaded == [bench.worker.block_bytes(block) for block in range(8)]

        bench.run(bench.operations.pin(keys, 0.2))  # pinned anew: that is the time that counts
        until(lambda: not bench.operations.pins())
        bench.flood()
        assert bench.matched(keys) == 0


def test_an_eviction_frees_dram_and_a_prefetch_brings_back(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """What is evicted from DRAM was written to SSD before; progress is told, and the operator can have it back."""
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    with bench_on(start(ssd=ssd, planner={"clean_ahead": 0.0})) as bench:
        keys, told = bench.save(0, 40), list[tuple[int, int]]()
        report = bench.run(
            bench.operations.evict(Selection(), Tier.DRAM, lambda done, total: told.append((done, total)))
        )
        assert (report.blocks, report.kept) == (40, 0)
        assert told
        assert told[-1][1] == 40
        assert bench.daemon.parts.planner.state.frames.used_pages == 0
        assert [run.tier for run in bench.client.match(keys).runs] == ["ssd"]
        report = bench.run(bench.operations.prefetch(keys[:5], 10))
        assert (report.blocks, report.kept) == (5, 0)
        assert bench.run(bench.operations.demote(Selection(keys=keys[:5]), Tier.SSD, 10)).blocks == 0
        assert bench.run(bench.operations.flush(Tier.SSD, 10)).blocks == 0


def test_blocks_are_listed_and_explained(start: Callable[..., DaemonThread]) -> None:
    """Pages of all keys in order, one block's facts, and why it is a hit, or is not any more."""
    with bench_on(start(dram=SMALL)) as bench:
        keys = bench.save(0, 9)
        first = bench.run(bench.operations.blocks(limit=5))
        second = bench.run(bench.operations.blocks(after=first[-1].key, limit=5))
        assert [facts.key for facts in [*first, *second]] == sorted(keys)
        [facts] = bench.operations.block(keys[0])
        assert (facts.tiers, facts.matchable, facts.uses) == ((Tier.DRAM,), True, 1)
        assert bench.operations.explain(keys[8]).startswith("a hit: whole in dram")
        bench.run(bench.operations.evict(Selection(keys=keys[:1]), Tier.DRAM))
        assert f"ancestor, {keys[0].hex()[:12]}…" in bench.operations.explain(keys[8])
        with pytest.raises(FlexKVError) as refused:
            bench.run(bench.operations.blocks("xyz"))
        assert refused.value.code is ErrorCode.BAD_ARGUMENT


def test_a_drain_admits_nothing_until_it_is_resumed(start: Callable[..., DaemonThread]) -> None:
    """A save is refused while it drains, a match is answered; after that saves go on."""
    with bench_on(start(dram=SMALL)) as bench:
        keys = bench.save(0, 4)
        assert bench.run(bench.operations.drain(5)) == 0
        assert not bench.daemon.parts.readiness.ready
        with pytest.raises(FlexKVError) as refused:
            bench.save(100, 4)
        assert refused.value.code is ErrorCode.DRAINING
        assert bench.matched(keys) == 4
        bench.run(bench.operations.resume())
        assert bench.daemon.parts.readiness.ready
        bench.save(100, 4)


def test_rules_change_while_workers_save(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Another policy and gate between saves: nothing is written below with two uses asked for, nothing is lost."""
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    with bench_on(start(dram=SMALL, ssd=ssd, planner={"policy": "lru"})) as bench:
        bench.save(0, 8)
        rules = Rules(policy="s3fifo", row_policy="sparse", ssd_hits_min=2, dram_clean_ahead=0.5)
        bench.daemon.call(lambda: bench.operations.change(rules))
        bench.flood()
        state = bench.daemon.parts.planner.state
        assert {type(shelf.policy).__name__ for shelf in state.dram.shelves} == {"SmallMainFifo"}
        written = state.counters.get(("demotions", "ssd"), 0)
        bench.flood()
        assert state.counters.get(("demotions", "ssd"), 0) == written
        for wrong in (Rules(policy="best"), Rules(row_policy=""), Rules(ssd_clean_ahead=1.0), Rules(s3_hits_min=-1)):
            with pytest.raises(FlexKVError, match="choose"):
                bench.daemon.call(partial(bench.operations.change, wrong))
        bench.daemon.call(lambda: bench.operations.change(replace(rules, ssd_hits_min=1)))
        bench.flood()
        until(lambda: state.counters.get(("demotions", "ssd"), 0) > written)


def test_a_cancelled_operation_leaves_nothing_running(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Whoever waits for an eviction is cancelled at once: the planner runs none any more, and nothing is held."""
    (tmp_path / "ssd").mkdir()
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    with bench_on(start(ssd=ssd, planner={"clean_ahead": 0.0})) as bench:
        bench.save(0, 60)

        async def cancel() -> None:
            task = asyncio.ensure_future(bench.operations.evict(Selection(), Tier.DRAM))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        bench.run(cancel())
        blocks = [
            block for index in bench.daemon.parts.planner.state.indexes.values() for block in index.blocks.values()
        ]
        until(lambda: not any(block.holds for block in blocks))
        assert bench.run(bench.operations.evict(Selection(), Tier.DRAM)).kept == 0
