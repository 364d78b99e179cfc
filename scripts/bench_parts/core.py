"""The planner alone: match, eviction, a realistic mix of events, and what its index weighs.

Copies finish at once, so the figures are the planner's own time. The index is frozen for the garbage
collector after it is built, as the daemon does it.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    BlocksFound,
    FoundBlock,
    Instruction,
    LoadAsked,
    MatchAsked,
    NamespaceSpec,
    RecoveryFinished,
    SaveAsked,
    SaveHints,
    SessionOpened,
    StartCopies,
    StartMove,
    Tier,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.planner import Planner
from flexkv_py.keys import KEY_BYTES, ROOT, BlockKey, KeyRun, namespace_digest
from flexkvd.facts import facts_of
from flexkvd.recorder.ring import Recorder
from flexkvd.startup import GC_THRESHOLDS
from scripts.bench_parts.row import percentile, row

NAMESPACE = namespace_digest(b"bench", "bench", 0)
CHUNKS = 8
SPEC = NamespaceSpec(NAMESPACE, (4096,) * CHUNKS)
CHAIN = 512
MILLION = 1 << 20
KEYS_PER_EVENT = 32
MIX_EVENTS = 20_000
RECORDED_BLOCKS = 25_600
MANY_TENANTS = 1_000
COST_US_MIN = 0.5  # below this a difference of two medians says nothing


def rows() -> list[dict[str, Any]]:
    """The rows of design §9 for the core, measured now."""
    return [*_match_in_a_million(), *_memory_with_frames(), *_eviction(), *_mix(), *_recorder()]


class Bench:
    """A planner of one session per tenant, whose copies finish as soon as they start."""

    def __init__(self, dram_blocks: int, *tiers: Tier, tenants: int = 1) -> None:
        pages = dram_blocks * CHUNKS
        self.planner = Planner(
            PlannerConfig(
                tiers=(Tier.DRAM, *tiers),
                segment_bytes=4096 * min(pages, 1 << 16),
                dram_segments=-(-pages // (1 << 16)),
                ssd_bytes=1 << 50,
                story_events_max=4096,
            )
        )
        self._ids = iter(range(1, 1 << 40))
        for session in range(1, tenants + 1):
            spec = (
                SPEC if session == 1 else NamespaceSpec(namespace_digest(b"bench", f"{session}", 0), SPEC.chunk_bytes)
            )
            self.planner.handle(SessionOpened(session, spec, 0, 0, tenant=f"{session}"))
        self._tenants, self._saves = tenants, 0

    def save(self, keys: list[BlockKey], ack: Tier = Tier.DRAM) -> None:
        """Tenants take turns."""
        self._saves += 1
        self._ask(SaveAsked(1 + self._saves % self._tenants, next(self._ids), keys, ROOT, 0, ack, SaveHints(), 0))

    def load(self, keys: list[BlockKey]) -> None:
        self._ask(LoadAsked(1, next(self._ids), keys, 0, 0))

    def match(self, keys: Sequence[BlockKey]) -> list[Instruction]:
        return self.planner.handle(MatchAsked(1, next(self._ids), keys, (), 0, 0))

    def _ask(self, event: SaveAsked | LoadAsked) -> None:
        self.finish(self.planner.handle(event))
        while self.planner.next_deadline_ns() == 0:  # it takes large requests in slices
            self.finish(self.planner.handle(TimePassed(0)))

    def finish(self, instructions: list[Instruction]) -> None:
        todo = deque(instructions)
        while todo:
            one = todo.popleft()
            if isinstance(one, StartCopies):
                results = [TransferResult(block.transfer, chunks=one.chunks) for block in one.blocks]
            elif isinstance(one, StartMove):
                results = [TransferResult(one.transfer, location=one.transfer)]
            else:
                continue
            todo.extend(self.planner.handle(TransfersFinished(results, 0)))


def _fresh_keys(seed: int) -> Iterator[BlockKey]:
    chance = random.Random(seed)
    while True:
        yield BlockKey(chance.randbytes(KEY_BYTES))


def _chains(seed: int, blocks: int, length: int) -> Iterator[list[BlockKey]]:
    keys = _fresh_keys(seed)
    for _ in range(blocks // length):
        yield list(islice(keys, length))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _match_in_a_million() -> list[dict[str, Any]]:
    gc.collect()
    before = _resident_bytes()
    bench = Bench(1024, Tier.SSD)
    chains = []
    recovery_s = 0.0
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    for number, keys in enumerate(_chains(1, MILLION, CHAIN)):
        blocks = [
            FoundBlock(key, parent, number * CHAIN + at)
            for at, (parent, key) in enumerate(zip([ROOT, *keys[:-1]], keys, strict=True))
        ]
        event = BlocksFound(Tier.SSD, NAMESPACE, 0, 4096 * (CHUNKS + 1), blocks, 0, SPEC.chunk_bytes)
        started_s = time.process_time()
        bench.planner.handle(event)
        recovery_s += time.process_time() - started_s
        if number % 16 == 0:
            chains.append(keys)
    bench.planner.handle(RecoveryFinished(Tier.SSD, 0))
    gc.collect()
    weight = (_resident_bytes() - before) / MILLION
    gc.freeze()
    times = []
    for _ in range(20):
        for keys in chains:
            started = time.perf_counter_ns()
            [answer] = bench.match(keys)
            times.append((time.perf_counter_ns() - started) / 1000)
            assert answer.length == CHAIN
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return [
        row("core: recovery of 1 M blocks", recovery_s, "CPU-s", most=2.5),
        row("core: full-hit match of 512 blocks in 1 M, p50", percentile(times, 50), "µs", most=10),
        row("core: full-hit match of 512 blocks in 1 M, p99", percentile(times, 99), "µs"),
        row("core: memory of one block on SSD", weight, "bytes", most=400),
    ]


def _memory_with_frames() -> list[dict[str, Any]]:
    """Every block both on SSD and in DRAM."""
    gc.collect()
    before = _resident_bytes()
    count = MILLION // 4
    bench = Bench(count, Tier.SSD)
    for keys in _chains(8, count, CHAIN):
        bench.save(keys, Tier.SSD)
    gc.collect()
    weight = (_resident_bytes() - before) / count
    assert facts_of(bench.planner.state)["tiers"]["dram"]["evictable_blocks"] == count
    return [row("core: memory of one block on SSD and in DRAM", weight, "bytes", most=600)]


def _full(dram_blocks: int, tenants: int = 1) -> Bench:
    """A planner whose DRAM is full of READY blocks, all of them candidates for eviction."""
    bench = Bench(dram_blocks, tenants=tenants)
    for keys in _chains(2, dram_blocks, CHAIN):
        bench.save(keys)
    return bench


def _eviction() -> list[dict[str, Any]]:
    """Time of a save that has to evict, less the time of the same save into free room."""
    costs = {candidates: _eviction_us(candidates) for candidates in (25_600, 256_000, 1_024_000)}
    of_many = _eviction_us(256_000, MANY_TENANTS)
    flat = costs[1_024_000] / costs[25_600]
    return [
        *(
            row(f"core: evict one block, {count:,} candidates", cost, "µs", most=20 if count == 256_000 else None)
            for count, cost in costs.items()
        ),
        row("core: evicting from 1 M against 25 k", flat, "×", most=2),
        row(f"core: evict one block, 256,000 candidates of {MANY_TENANTS:,} tenants", of_many, "µs", most=20),
    ]


def _eviction_us(candidates: int, tenants: int = 1) -> float:
    bench = _full(candidates, tenants)
    gc.collect()
    gc.freeze()
    evicting = _save_us(bench, seed=3)
    gc.unfreeze()
    return max(COST_US_MIN, evicting - _save_us(Bench(65_536, tenants=tenants), seed=4))


def _save_us(bench: Bench, seed: int) -> float:
    """Median time per block of saving chains of 32 new blocks."""
    times = []
    for keys in _chains(seed, 500 * KEYS_PER_EVENT, KEYS_PER_EVENT):
        started = time.perf_counter_ns()
        bench.save(keys)
        times.append((time.perf_counter_ns() - started) / 1000 / KEYS_PER_EVENT)
    return percentile(times, 50)


def _mix() -> list[dict[str, Any]]:
    """Of the blocks 70 % are matched, 15 % loaded to the end, 15 % saved to the end with eviction."""
    bench = _full(256_000)
    chance = random.Random(5)
    recent = deque(_chains(6, 2048 * KEYS_PER_EVENT, KEYS_PER_EVENT), maxlen=2048)
    for keys in recent:
        bench.save(keys)
    fresh = list(_chains(7, MIX_EVENTS * 15 // 100 * KEYS_PER_EVENT, KEYS_PER_EVENT))
    kinds = ["save"] * len(fresh) + ["load"] * len(fresh) + ["match"] * (MIX_EVENTS - 2 * len(fresh))
    chance.shuffle(kinds)
    targets = [chance.randrange(2048) for _ in kinds]
    gc.collect()
    gc.freeze()
    started = time.process_time()
    for kind, target in zip(kinds, targets, strict=True):
        if kind == "match":
            bench.match(recent[target])
        elif kind == "load":
            bench.load(recent[target])
        else:
            keys = fresh.pop()
            bench.save(keys)
            recent.append(keys)
    seconds = time.process_time() - started
    gc.unfreeze()
    return [
        row("core: block operations, realistic mix", MIX_EVENTS * KEYS_PER_EVENT / seconds / 1000, "k/s", least=300)
    ]


def _recorder() -> list[dict[str, Any]]:
    """What it costs to note the events of such a mix, beside what a planner needs to handle the same ones."""
    bench, chance = _full(RECORDED_BLOCKS), random.Random(9)
    chains, events = list(_chains(2, RECORDED_BLOCKS, CHAIN)), []
    handle = bench.planner.handle
    bench.planner.handle = lambda event: events.append(event) or handle(event)  # type: ignore[method-assign]
    for keys in _chains(10, 600 * KEYS_PER_EVENT, KEYS_PER_EVENT):
        bench.save(keys)
        bench.load(keys)
        for _ in range(5):
            bench.match(KeyRun(b"".join(chance.choice(chains))))  # as the daemon gets them
    again = _full(RECORDED_BLOCKS).planner
    recorder = Recorder(again, 1 << 30)
    noted_s, handled_s = _cpu_s(recorder.note, events), _cpu_s(again.handle, events)
    recorder.close()
    kept_bytes = len(recorder.dump()) / len(events)
    return [
        row("core: recorder, one event", noted_s / len(events) * 1e6, "µs"),
        row("core: recorder, of the planner's own time", 100 * noted_s / handled_s, "%"),
        row("core: recorder, one event in a dump", kept_bytes, "bytes"),
    ]


def _cpu_s(take: Callable[[Any], object], events: Sequence[Any]) -> float:
    gc.collect()
    started_s = time.thread_time()
    for event in events:
        take(event)
    return time.thread_time() - started_s
