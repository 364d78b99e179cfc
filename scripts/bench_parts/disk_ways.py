"""Ways to move bytes between a disk and memory, measured alike: fio, the engines, the SSD tier.

A turn moves `TURN_BYTES` in transfers of one size, `DEPTH` at a time, and gives a `Turn`. CPU is that of
the whole process, threads of the kernel that work for it included.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, TypeVar

from flexkv_py.core.messages import BlockName
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, NamespaceDigest, key_of_hash
from flexkv_tiers.base import FrameSpan, TierStore
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.diskio import DiskFile, DiskIo, nothing
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import SsdStore
from scripts.bench_parts.row import percentile

T = TypeVar("T")
Direction = Literal["write", "read"]
DEPTH = 8
TURN_BYTES = 256 << 20
CHUNK_BYTES = 256 << 10
FLOOD_READS, FLOOD_WRITERS, FLOOD_BYTES = 400, 32, 2560 << 10
NAMESPACE = NamespaceDigest(bytes(32))
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took."""

    gb_per_s: float
    cpu_s_per_gib: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Clock:
    """Latencies of transfers in seconds; around them wall and CPU time of the process."""

    latencies: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall_s, self.cpu_s = time.perf_counter() - wall, time.process_time() - cpu

    async def time(self, transfer: Awaitable[object]) -> None:
        started = time.perf_counter()
        await transfer
        self.latencies.append(time.perf_counter() - started)

    def turn(self, moved_bytes: int) -> Turn:
        return Turn(
            moved_bytes / self.wall_s / 1e9,
            self.cpu_s / (moved_bytes / GIB),
            1e3 * percentile(self.latencies, 50),
            1e3 * percentile(self.latencies, 99),
        )


def fio(program: str, file: Path, direction: Direction, size: int, engine: str) -> Turn:
    """One turn of fio on the same file: same size, same depth, direct."""
    command = [program, "--name=bench", f"--filename={file}", f"--rw={direction}", f"--bs={size}", "--direct=1"]
    command += [f"--size={TURN_BYTES // size * size}", f"--iodepth={DEPTH}", f"--ioengine={engine}"]
    ran = subprocess.run([*command, "--output-format=json"], capture_output=True, text=True, check=True, timeout=120)
    job = json.loads(ran.stdout)["jobs"][0]
    side, gib = job[direction], TURN_BYTES / GIB
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    times = side["clat_ns"]["percentile"]
    return Turn(side["bw_bytes"] / 1e9, cpu_s / gib, times["50.000000"] / 1e6, times["99.000000"] / 1e6)


async def engine(io: DiskIo, file: DiskFile, arena: Arena, direction: Direction, size: int) -> Turn:
    """One turn of an engine, from and into frames: no header, no checksum."""
    clock, places = Clock(), iter(range(TURN_BYTES // size))

    async def worker(slot: int) -> None:
        view = arena.view(slot * size // ALIGN_BYTES, size)
        for place in places:
            if direction == "write":
                await clock.time(io.write(file, [view], place * size))
            else:
                await clock.time(io.read(file, [view], place * size, nothing))

    with clock.running():
        await asyncio.gather(*map(worker, range(DEPTH)))
    return clock.turn(TURN_BYTES // size * size)


@dataclass(frozen=True, slots=True)
class Flood:
    """What a load's reads take alone, and beside as many writes as anyone likes; and one write alone. Medians."""

    read_ms: float
    read_in_flood_ms: float
    write_ms: float


async def flood(io: DiskIo, file: DiskFile, arena: Arena) -> Flood:
    """Reads of CHUNK_BYTES one after the other, alone, then while `FLOOD_WRITERS` write `FLOOD_BYTES` each."""
    chunk = arena.view(0, CHUNK_BYTES)
    large = arena.view(CHUNK_BYTES // ALIGN_BYTES, FLOOD_BYTES)

    async def reads() -> float:
        clock = Clock()
        for at in range(FLOOD_READS):
            await clock.time(io.read(file, [chunk], at * 7 % (TURN_BYTES // CHUNK_BYTES) * CHUNK_BYTES, nothing))
        return 1e3 * percentile(clock.latencies, 50)

    async def write_on() -> None:
        for at in count():
            if flooding.done():
                return
            await io.write(file, [large], at % (TURN_BYTES // FLOOD_BYTES) * FLOOD_BYTES)

    flooding: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alone, clock = await reads(), Clock()
    for at in range(FLOOD_READS // 4):
        await clock.time(io.write(file, [large], at % (TURN_BYTES // FLOOD_BYTES) * FLOOD_BYTES))
    writers = [asyncio.create_task(write_on()) for _ in range(FLOOD_WRITERS)]
    beside = await reads()
    flooding.set_result(None)
    await asyncio.gather(*writers)
    return Flood(alone, beside, 1e3 * percentile(clock.latencies, 50))


def make_store(directory: Path, arena: Arena) -> TierStore:
    """The SSD tier as the daemon has it, with room for all turns of one size."""
    return SsdStore(directory, 4 * TURN_BYTES, arena)


class Tier:
    """Turns of the SSD tier, header and checksums included: a write brings new blocks, a read what was written last.

    Every slot of the arena holds the same bytes, so a block's checksums are the same in all of them.
    """

    def __init__(self, store: TierStore, arena: Arena, size: int) -> None:
        self._store = store
        self._arena = arena
        lengths = [min(CHUNK_BYTES, size - at) for at in range(0, size, CHUNK_BYTES)]
        self._spans = [
            [FrameSpan((slot * size + at * CHUNK_BYTES) // ALIGN_BYTES, length) for at, length in enumerate(lengths)]
            for slot in range(DEPTH)
        ]
        self._count = TURN_BYTES // size
        self._bytes = self._count * size
        self._written: dict[BlockName, int] = {}
        self._made = 0

    async def turn(self, direction: Direction) -> Turn:
        return await (self._write() if direction == "write" else self._read())

    async def _write(self) -> Turn:
        for block, location in self._written.items():
            await self._store.drop(block, location)
        self._written.clear()
        return await self._measure([(block, self._checksums(block)) for block in self._new_blocks()], self._keep)

    async def _read(self) -> Turn:
        return await self._measure(list(self._written.items()), self._bring)

    async def _measure(self, work: list[T], move: Callable[[T, list[FrameSpan]], Awaitable[None]]) -> Turn:
        clock, todo = Clock(), iter(work)

        async def worker(slot: int) -> None:
            for each in todo:
                await clock.time(move(each, self._spans[slot]))

        with clock.running():
            await asyncio.gather(*map(worker, range(DEPTH)))
        return clock.turn(self._bytes)

    async def _keep(self, work: tuple[BlockName, list[bytes]], spans: list[FrameSpan]) -> None:
        block, checksums = work
        for span, checksum in zip(spans, checksums, strict=True):
            self._arena.set_checksum(span.frame, checksum)
        self._written[block] = await self._store.write(block, spans)

    async def _bring(self, work: tuple[BlockName, int], spans: list[FrameSpan]) -> None:
        block, location = work
        async for _ in self._store.read(block, location, spans):
            pass

    def _new_blocks(self) -> list[BlockName]:
        made = range(self._made, self._made + self._count)
        self._made = made.stop
        return [BlockName(NAMESPACE, 0, key_of_hash(NAMESPACE, ROOT, b"%d" % number), ROOT) for number in made]

    def _checksums(self, block: BlockName) -> list[bytes]:
        views = [self._arena.view(span.frame, span.length) for span in self._spans[0]]
        return [chunk_checksum(block.key, number, view) for number, view in enumerate(views)]
