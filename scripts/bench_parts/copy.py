"""Benchmark of the copy lanes: load and save of DeepSeek-V3.2 blocks against bare copies in the same run.

The worker's memory is layer-first and paged, as engines have it: a block is 122 pieces. A bare copy
moves the same pieces of as many blocks by memmove on one thread, every address worked out beforehand.
All take turns on blocks drawn at random, and medians are compared, so that a noisy machine disturbs
them alike.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop

from flexkv_py.core.messages import Priority
from flexkv_py.geometry import ALIGN_BYTES, Geometry, Plane
from flexkv_py.wire.messages import LayerLayout, RegisterMemory
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.lanes import CopyTask, CpuLanes, Direction
from flexkv_tiers.memory import Arena, HostMemory, sealed_memfd

LAYERS = tuple(range(61))
GEOMETRY = Geometry((Plane("kv", LAYERS, 656), Plane("index", LAYERS, 132)), tokens_per_block=64)
FRAME_PAGES = GEOMETRY.frame_bytes // ALIGN_BYTES
BLOCKS = 128  # 390 MB on either side: no cache holds them
BLOCKS_PER_TURN = 32  # a prefix of 2,048 tokens
TURNS = 12
CPU_RATIO_LOAD_MAX, CPU_RATIO_SAVE_MAX, SPEED_RATIO_MIN = 1.25, 1.5, 0.8
CHECKSUM_GB_PER_S_MIN = 10


@dataclass(slots=True)
class Meter:
    """What one way of copying took, turn by turn, in seconds per GB of rows."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @contextmanager
    def turn(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        gigabytes = BLOCKS_PER_TURN * GEOMETRY.block_payload_bytes / 1e9
        self.cpu.append((time.process_time() - cpu) / gigabytes)
        self.wall.append((time.perf_counter() - wall) / gigabytes)

    @property
    def cpu_s_per_gb(self) -> float:
        return statistics.median(self.cpu)

    @property
    def gb_per_s(self) -> float:
        return 1 / statistics.median(self.wall)


class Bench:
    """An arena, one worker's memory, and both ways to copy between them."""

    def __init__(self) -> None:
        message = layer_first(GEOMETRY, BLOCKS)
        descriptor = sealed_memfd("bench-worker", message.bytes)
        self.memory = HostMemory(descriptor, message, GEOMETRY)
        self.worker = np.frombuffer(mmap.mmap(descriptor, message.bytes), np.uint8)
        os.close(descriptor)
        self.worker[:] = 1  # also brings the pages in
        self.arena = Arena(BLOCKS * GEOMETRY.chunk_count * GEOMETRY.frame_bytes, 1)
        np.frombuffer(self.arena.view(0, self.arena.room_bytes), np.uint8)[:] = 1
        self.pieces = [list(self._pieces(block, message)) for block in range(BLOCKS)]

    async def measure(self) -> dict[str, Meter]:
        """Let all four ways take turns; one lane, so that it compares with one thread."""
        lanes = CpuLanes(self.arena, threads=1)
        meters = {name: Meter() for name in ("bare load", "bare save", "load", "save")}
        random = np.random.default_rng(1)
        await self._copy(lanes, list(range(BLOCKS)), Direction.INTO_WORKER)  # maps every page of the worker
        for _ in range(TURNS):
            for name, meter in meters.items():
                blocks = random.choice(BLOCKS, BLOCKS_PER_TURN, replace=False).tolist()
                with meter.turn():
                    await self._ways(lanes)[name](blocks)
        lanes.close()
        return meters

    def checksum_gb_per_s(self) -> float:
        """Speed of checksums over frames that no cache holds, per second of CPU."""
        started = time.thread_time()
        for block in range(BLOCKS):
            for chunk, length in enumerate(GEOMETRY.chunk_bytes):
                chunk_checksum(bytes(16), chunk, self.arena.view(_frame(block, chunk), length))
        return BLOCKS * GEOMETRY.block_bytes / (time.thread_time() - started) / 1e9

    def _ways(self, lanes: CpuLanes) -> dict[str, Callable[[list[int]], Awaitable[None]]]:
        return {
            "bare load": self._bare_load,
            "bare save": self._bare_save,
            "load": lambda blocks: self._copy(lanes, blocks, Direction.INTO_WORKER),
            "save": lambda blocks: self._copy(lanes, blocks, Direction.OUT_OF_WORKER),
        }

    async def _bare_load(self, blocks: list[int]) -> None:
        for block in blocks:
            for inside, outside, length in self.pieces[block]:
                ctypes.memmove(outside, inside, length)

    async def _bare_save(self, blocks: list[int]) -> None:
        for block in blocks:
            for inside, outside, length in self.pieces[block]:
                ctypes.memmove(inside, outside, length)

    async def _copy(self, lanes: CpuLanes, blocks: list[int], direction: Direction) -> None:
        """All chunks of some blocks, submitted chunk by chunk as the executor does."""
        pages: npt.NDArray[np.uint32] = np.array(blocks, np.uint32).reshape(-1, 1)
        keys = [block.to_bytes(16, "little") for block in blocks]
        chunks = range(GEOMETRY.chunk_count)
        frames = [tuple(_frame(block, chunk) for chunk in chunks) for block in blocks]
        tasks = (CopyTask(direction, self.memory, [chunk], keys, frames, pages) for chunk in chunks)
        for faults in await asyncio.gather(*(lanes.copy(task, Priority.LOAD) for task in tasks)):
            assert not any(faults)

    def _pieces(self, block: int, message: RegisterMemory) -> Iterator[tuple[int, int, int]]:
        """Address in the arena, address in the worker, length of every piece of a block."""
        base, places = self.worker.ctypes.data, {(entry.plane, entry.layer): entry for entry in message.layout}
        for chunk, chunk_pieces in enumerate(GEOMETRY.chunk_pieces):
            frame = self.arena.address(_frame(block, chunk))
            for piece in chunk_pieces:
                place = places[piece.plane, piece.layer]
                yield frame + piece.offset, base + place.offset + block * place.page_stride, piece.length


def rows() -> list[dict[str, Any]]:
    """The rows of the copy lanes and the checksum: each figure beside its bar."""
    bench = Bench()
    meters = uvloop.run(bench.measure())
    result = [row("copy: checksum", bench.checksum_gb_per_s(), "GB/s", least=CHECKSUM_GB_PER_S_MIN)]
    for name, cpu_ratio_max in (("load", CPU_RATIO_LOAD_MAX), ("save", CPU_RATIO_SAVE_MAX)):
        bare, lane = meters[f"bare {name}"], meters[name]
        result += [
            row(f"copy: {name}, bare memmove, CPU", bare.cpu_s_per_gb, "s/GB"),
            row(f"copy: {name}, CPU", lane.cpu_s_per_gb, "s/GB"),
            row(f"copy: {name}, CPU against bare", lane.cpu_s_per_gb / bare.cpu_s_per_gb, "×", most=cpu_ratio_max),
            row(f"copy: {name}, bare memmove", bare.gb_per_s, "GB/s"),
            row(f"copy: {name}, one lane", lane.gb_per_s, "GB/s"),
            row(f"copy: {name}, speed against bare", lane.gb_per_s / bare.gb_per_s, "×", least=SPEED_RATIO_MIN),
        ]
    return result


def row(name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """One figure, and whether it meets its bar."""
    bar = f"≤ {most}" if most is not None else f"≥ {least}" if least is not None else ""
    ok = (most is None or value <= most) and (least is None or value >= least)
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": ok}


def _frame(block: int, chunk: int) -> int:
    return (block * GEOMETRY.chunk_count + chunk) * FRAME_PAGES


def layer_first(geometry: Geometry, page_count: int) -> RegisterMemory:
    """One tensor [pages, rows, row bytes] per plane and layer, one after the other; a page is a block."""
    layout, offset = [], 0
    for index, plane in enumerate(geometry.planes):
        page_bytes = geometry.piece_bytes(index)
        for layer in plane.layers:
            layout.append(LayerLayout(index, layer, offset, page_bytes, page_bytes))
            offset += page_count * page_bytes
    return RegisterMemory(0, offset, page_count, geometry.tokens_per_block, layout)
