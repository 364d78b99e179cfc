"""What the kernels become for GPUs that are not here: no spills, loads of 16 bytes, all of a tile before a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexkv_py.geometry import Geometry, Plane
from flexkv_tiers.hbm.gather import COPY_TILE, COPY_WARPS, copy_constants
from flexkv_tiers.hbm.shape import GroupShape, TableLimits, group_shape

ROOT = Path(__file__).parents[2]


def compiled(folder: Path, *arguments: str) -> list[dict]:
    """The report of a process of its own, for in this one Triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(("tiers", ".")), "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "flexkv_tiers.hbm.compiled", *arguments]
    told = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in told.stdout.splitlines()]


def wide_loads(row_bytes: int, rows_per_id: int) -> int:
    """16-byte loads a thread issues for one tile of rows, if every load of a row is that wide."""
    geometry = Geometry((Plane("kv", (0,), row_bytes),), tokens_per_block=max(64, rows_per_id))
    shape: GroupShape = group_shape(
        geometry, 0, ["kv"], TableLimits(1, 1, 1), slots=16, selected=16, tokens_per_id=rows_per_id, partial_ids=True
    )
    constants = copy_constants(shape, 0)
    assert constants["TILE"] == COPY_TILE
    return COPY_TILE * (constants["HEAD"] + constants["TAIL"]) * 8 // (16 * 32 * COPY_WARPS)


def check(report: list[dict]) -> None:
    for kernel in report:
        sys.stdout.write(f"{kernel}\n")  # registers: pytest shows them with -s, scripts/bench in its table
        assert kernel["spill_bytes"] == 0, kernel
        assert kernel["registers"] <= 128, kernel  # with 16 warps a plan program has 65,536 / 512 for each thread
        if kernel["name"].startswith("copy"):
            row_bytes, _, rows_per_id = kernel["name"].removeprefix("copy ").replace(" B", "").partition(" × ")
            assert kernel["loads"][".v2.b64"] == wide_loads(int(row_bytes), int(rows_per_id or 1)), kernel
            assert kernel["loads_in_flight"] == kernel["loads"], kernel  # of a tile: both halves of every row


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_kernels_compile_without_spills_and_with_wide_loads(arch, tmp_path):
    """For each generation of GPU nothing spills; every load of a row is of 16 bytes, and all come before a store."""
    report = compiled(tmp_path, "--arch", str(arch))
    assert {kernel["name"].split()[0] for kernel in report} == {"plan", "copy", "commit"}
    check(report)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_size_compiles_without_spills(tmp_path):
    """The same over all sizes of K, H and Q, and rows of blocks."""
    check(compiled(tmp_path, "--arch", "80", "--arch", "90", "--arch", "100", "--wide"))
