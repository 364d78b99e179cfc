"""What the kernels become on a device, found out without one: registers, spills, width of loads.

Triton brings its own ptxas and cuobjdump. Called by tests and `scripts/bench --only hot`, in a process of its own:
`python -m flexkv_tiers.hbm.compiled --arch 90 …` prints one JSON line per kernel (Triton decides at import
whether kernels are compiled or interpreted, and a test process interprets them).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flexkv_py.geometry import Geometry, Plane
from flexkv_tiers.hbm.copying import commit_kernel, copy_kernel
from flexkv_tiers.hbm.gather import COPY_WARPS, PLAN_WARPS, copy_constants, plan_constants
from flexkv_tiers.hbm.planning import plan_kernel
from flexkv_tiers.hbm.shape import GroupShape, TableLimits, group_shape

_WORD_TENSORS = {"cells", "bases", "rows"}
"""int64 arguments; all other tensors are int32, but for the order of slots."""

_ACCESS = re.compile(r"\b(ld|st)\.global\S*?((?:\.v\d)?\.b\d+)\b")


@dataclass(frozen=True)
class Compiled:
    """One kernel for one architecture. `loads` counts global loads in its PTX by width (`.v2.b64` is 16 bytes).

    `loads_in_flight` are those that come before its first store.
    """

    name: str
    arch: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    loads: dict[str, int]
    loads_in_flight: dict[str, int]


def shape_for(row_bytes: int, *, slots: int, selected: int, queries: int = 1, rows_per_id: int = 1) -> GroupShape:
    """A group of one layer with one moving plane of such rows, ids of `rows_per_id` rows."""
    geometry = Geometry((Plane("kv", (0,), row_bytes),), tokens_per_block=max(64, rows_per_id))
    limits = TableLimits(requests_max=64, batch_max=64, blocks_max=2048, queries=queries)
    return group_shape(
        geometry,
        0,
        ["kv"],
        limits,
        slots=slots,
        selected=selected,
        newest=queries,
        tokens_per_id=rows_per_id,
        partial_ids=rows_per_id > 1,
    )


def compile_plan(shape: GroupShape, arch: int) -> Compiled:
    """*plan* for this shape and compute capability (90 is sm_90)."""
    name = f"plan K={shape.selected} H={shape.slots} Q={shape.limits.queries}"
    return _compile(name, plan_kernel, plan_constants(shape, shape.picks), arch, PLAN_WARPS)


def compile_copy(shape: GroupShape, arch: int) -> Compiled:
    """*copy* of the shape's first plane."""
    plane = shape.planes[0]
    name = f"copy {plane.row_bytes} B" + (f" × {plane.rows_per_id}" if plane.rows_per_id > 1 else "")
    return _compile(name, copy_kernel, copy_constants(shape, 0), arch, COPY_WARPS)


def compile_commit(arch: int) -> Compiled:
    """*commit* for a batch of 64."""
    return _compile("commit", commit_kernel, {"TILE": 64}, arch, 1)


def _compile(name: str, kernel: Any, constants: dict[str, int], arch: int, warps: int) -> Compiled:
    signature, attributes = {}, {}
    for at, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            continue
        if argument == "offset":
            signature[argument] = "i32"
        else:
            signature[argument] = "*i64" if argument in _WORD_TENSORS else "*i16" if argument == "order" else "*i32"
        attributes[at,] = [["tt.divisibility", 16]]  # as a launch finds them: torch aligns, and so do frames
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    registers, spill_bytes = _usage(made.asm["cubin"])
    accesses = _ACCESS.findall(made.asm["ptx"])
    stores = [at for at, (kind, _) in enumerate(accesses) if kind == "st"]
    return Compiled(
        name,
        arch,
        registers,
        spill_bytes,
        made.metadata.shared,
        _loads(accesses),
        _loads(accesses[: stores[0]] if stores else accesses),
    )


def _loads(accesses: list[tuple[str, str]]) -> dict[str, int]:
    return dict(Counter(width for kind, width in accesses if kind == "ld"))


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers per thread, and bytes of local memory per thread: no array of ours lives there, so they are spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
        command = [tool, "--dump-resource-usage", file.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - Triton's own tool
    found = {word: int(value) for word, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told.stdout)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _all(arch: int, *, wide: bool) -> Iterator[Compiled]:
    """The kernels of the field's models; `wide` also every size between."""
    sizes = [(2048, 4096, 1), (2048, 8192, 4)]
    rows = [(656, 1), (1152, 1), (584, 1)]
    if wide:
        sizes += [(512, 2048, 1), (512, 2048, 4), (2048, 2048, 1), (2048, 6144, 2), (16, 64, 1)]
        rows += [(256, 128), (512, 64), (1024, 1)]
    for selected, slots, queries in sizes:
        yield compile_plan(shape_for(656, slots=slots, selected=selected, queries=queries), arch)
    for row_bytes, rows_per_id in rows:
        yield compile_copy(shape_for(row_bytes, slots=64, selected=16, rows_per_id=rows_per_id), arch)
    yield compile_commit(arch)


def main() -> int:
    """Print one JSON line per kernel."""
    parser = argparse.ArgumentParser(prog="python -m flexkv_tiers.hbm.compiled", description=__doc__)
    parser.add_argument("--arch", type=int, action="append", required=True, help="compute capability, e.g. 90")
    parser.add_argument("--wide", action="store_true", help="every size, not only the usual ones")
    chosen = parser.parse_args()
    for arch in chosen.arch:
        for compiled in _all(arch, wide=chosen.wide):
            sys.stdout.write(json.dumps(asdict(compiled)) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
