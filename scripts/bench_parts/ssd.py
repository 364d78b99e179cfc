"""Benchmark of disk I/O: the engines beside fio on the same file, and the SSD tier above them.

All take turns in a mixed order, because a disk that allows bursts favours whoever comes after a pause. Figures
are medians over rounds; ratios compare means, for on a shared disk single rounds differ by a third. The disk is
the one that temporary files lie on (`TMPDIR`).
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvloop

from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.diskio import DiskFile, DiskIo, EngineName, open_disk_io
from flexkv_tiers.memory import Arena
from scripts.bench_parts.disk_ways import (
    CHUNK_BYTES,
    DEPTH,
    TURN_BYTES,
    Direction,
    Flood,
    Tier,
    Turn,
    engine,
    fio,
    flood,
    make_store,
)
from scripts.bench_parts.row import row

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"256 KiB": 256 * KIB, "1 MiB": MIB, "2.5 MiB": 2560 * KIB, "8 MiB": 8 * MIB}
DIRECTIONS: tuple[Direction, ...] = ("write", "read")
OTHER_ENGINES: tuple[EngineName, ...] = ("threads", "aiofiles")
ROUNDS = 16
ROUNDS_OF_OTHERS = 4
ROUNDS_OF_TIER = 2
SPEED_RATIO_MIN = 0.9
FLOOD_DELAY_MAX = 1.0
CPU_S_PER_GIB_MAX, CPU_BAR_AT = 0.12, "2.5 MiB"

Turns = dict[str, list[Turn]]
"""What each way took, round by round; "fio", the names of engines, and "tier"."""


def rows() -> list[dict[str, Any]]:
    """The rows of disk I/O: each figure, beside its bar where it has one."""
    with tempfile.TemporaryDirectory(prefix="flexkv-bench-") as folder:
        arena = Arena(DEPTH * max(SIZES.values()), 1)
        _fill(arena)
        return uvloop.run(_measure(Path(folder), arena))


def _fill(arena: Arena) -> None:
    """The same bytes into every slot, whatever the size: reads of what fio wrote have left others."""
    content = os.urandom(CHUNK_BYTES)
    for at in range(0, arena.room_bytes, CHUNK_BYTES):
        arena.view(at // ALIGN_BYTES, CHUNK_BYTES)[:] = content


async def _measure(folder: Path, arena: Arena) -> list[dict[str, Any]]:
    engines = [open_disk_io(folder, "auto", DEPTH, True)]
    engines += [open_disk_io(folder, name, DEPTH, True) for name in OTHER_ENGINES if name != engines[0].name]
    path = folder / "file"
    files = [engines[0].open(path, create_bytes=TURN_BYTES), *(io.open(path) for io in engines[1:])]
    await engine(engines[0], files[0], arena, "write", MIB)  # from here on everybody overwrites
    found = []
    for name, size in SIZES.items():
        turns: dict[Direction, Turns] = {direction: defaultdict(list) for direction in DIRECTIONS}
        for at in range(ROUNDS):
            for direction in DIRECTIONS:
                await _round(turns[direction], engines, files, arena, direction, size, at)
        await _measure_tier(turns, folder / f"tier-{size}", arena, size)
        for direction in DIRECTIONS:
            found += _rows(f"ssd: {name} {direction}", turns[direction], engines[0].name, name == CPU_BAR_AT)
    found += _flood_rows(engines[0].name, await flood(engines[0], files[0], arena))
    for io, file in zip(engines, files, strict=True):
        file.close()
        await io.stop()
    return found


async def _round(
    turns: Turns, engines: list[DiskIo], files: list[DiskFile], arena: Arena, direction: Direction, size: int, at: int
) -> None:
    """Every way once, in an order of this round's own.

    fio uses the kernel's interface that our first engine uses, or the next best.
    """
    program = shutil.which("fio")
    ways: list[tuple[DiskIo, DiskFile] | None] = [None] if program else []
    ways += list(zip(engines, files, strict=True))[: None if at < ROUNDS_OF_OTHERS else 1]
    random.Random(at).shuffle(ways)
    for way in ways:
        if way is not None:
            turns[way[0].name].append(await engine(*way, arena, direction, size))
        elif program is not None:
            their_engine = "io_uring" if engines[0].name == "io_uring" else "libaio"
            turns["fio"].append(fio(program, files[0].path, direction, size, their_engine))


async def _measure_tier(turns: dict[Direction, Turns], directory: Path, arena: Arena, size: int) -> None:
    _fill(arena)
    store = make_store(directory, arena)
    await store.start()
    assert [batch async for batch in store.found()] == []
    tier = Tier(store, arena, size)
    for _ in range(ROUNDS_OF_TIER):
        for direction in DIRECTIONS:
            turns[direction]["tier"].append(await tier.turn(direction))
    await store.close()
    shutil.rmtree(directory)


def _rows(what: str, turns: Turns, first: str, has_cpu_bar: bool) -> list[dict[str, Any]]:
    found = []
    for way, taken in turns.items():
        cpu_most = CPU_S_PER_GIB_MAX if way == first and has_cpu_bar else None
        found += [
            row(f"{what}, {way}", _median(taken, "gb_per_s"), "GB/s"),
            row(f"{what}, {way}, CPU", _median(taken, "cpu_s_per_gib"), "s/GiB", most=cpu_most),
        ]
        if way in ("fio", first, "tier"):
            found.append(row(f"{what}, {way}, p50", _median(taken, "p50_ms"), "ms"))
            found.append(row(f"{what}, {way}, p99", _median(taken, "p99_ms"), "ms"))
    if "fio" not in turns:
        return [*found, row(f"{what}, against fio: not installed (Debian: fio)", 0, "×")]
    ratio = _mean_speed(turns[first]) / _mean_speed(turns["fio"])
    return [*found, row(f"{what}, {first} against fio", ratio, "×", least=SPEED_RATIO_MIN)]


def _flood_rows(name: str, taken: Flood) -> list[dict[str, Any]]:
    delay_ms = taken.read_in_flood_ms - taken.read_ms
    return [
        row(f"ssd: lone read of 256 KiB, {name}, p50", taken.read_ms, "ms"),
        row("ssd: the same beside a flood of writes of 2.5 MiB", taken.read_in_flood_ms, "ms"),
        row("ssd: lone write of 2.5 MiB, p50", taken.write_ms, "ms"),
        row("ssd: delay of the read, in such writes", delay_ms / taken.write_ms, "×", most=FLOOD_DELAY_MAX),
    ]


def _median(taken: list[Turn], figure: str) -> float:
    return float(statistics.median(getattr(turn, figure) for turn in taken))


def _mean_speed(taken: list[Turn]) -> float:
    return statistics.fmean(turn.gb_per_s for turn in taken)
