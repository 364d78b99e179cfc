"""Hot rows: the CPU path, the kernels against it, and what they compile to; a GPU is `hot_device`'s."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from scripts.bench_parts.row import row

TOKENS, SELECTED, SLOTS, ROW_BYTES = 16_384, 2_048, 4_096, 656
MISS_SHARES = (0.0, 0.1, 0.5)
STEPS = 12


def rows() -> Iterator[dict[str, Any]]:
    """On a GPU the kernels are measured; without one they are interpreted, and the CPU path is."""
    if torch.cuda.is_available():
        from scripts.bench_parts import hot_device  # noqa: PLC0415 - needs a device

        yield from hot_device.rows()
        yield from _compiled([hot_device.architecture()])
        return
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    torch.set_num_threads(1)  # as a worker on CPU should: torch's threads cost more than such small steps gain
    yield from _on_cpu()
    yield from _compiled([80, 90, 100])


def _on_cpu() -> list[dict[str, Any]]:
    """One request of 16 K tokens, K = 2,048, H = 4,096: time of the oracle, and steps in which kernels equal it."""
    from flexkv_tiers.hbm import reference  # noqa: PLC0415 - after TRITON_INTERPRET is set
    from flexkv_tiers.hbm.gather import Kernels  # noqa: PLC0415
    from scripts.bench_parts.hot_bed import Bed  # noqa: PLC0415

    found, equal, steps = [], 0, 0
    for share in MISS_SHARES:
        beds = [Bed(SELECTED, SLOTS, 1, TOKENS, torch.device("cpu")) for _ in range(2)]
        kernels = Kernels([beds[0].shape], torch.device("cpu"))
        plan_s, copy_s, copied = [], [], 0
        for step in range(STEPS):
            chosen = beds[0].selection(step, share)
            begin = time.process_time()
            reference.plan(beds[0].requests, beds[0].group, chosen)
            planned = time.process_time()
            reference.copy(beds[0].requests, beds[0].group, 0, 0)
            if step:  # the first step fills the empty hot buffer
                plan_s.append(planned - begin)
                copy_s.append(time.process_time() - planned)
                copied += int(beds[0].group.miss_count) * ROW_BYTES
            if step < 3:
                kernels.plan(beds[1].requests, beds[1].group, chosen)
                kernels.copy(beds[1].requests, beds[1].group, 0, 0)
                steps, equal = steps + 1, equal + beds[0].equals(beds[1])
        wrong = beds[0].misplaced()
        name = f"CPU path, K=2048 H=4096, {share:.0%} misses"
        found.append(row(f"{name}: plan", 1e6 * statistics.median(plan_s), "µs CPU per group"))
        if copied:
            found.append(row(f"{name}: copy of a layer", sum(copy_s) * 1e9 / copied, "CPU-s per GB"))
        found.append(row(f"{name}: rows in a wrong slot", wrong, "rows", most=0))
    return [*found, row("interpreted kernels equal the oracle", equal / steps, "of steps", least=1)]


def _compiled(architectures: list[int]) -> list[dict[str, Any]]:
    """Registers, spills and the share of 16-byte loads among loads of rows, in a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [word for architecture in architectures for word in ("--arch", str(architecture))]
    told = subprocess.run(
        [sys.executable, "-m", "flexkv_tiers.hbm.compiled", *arguments],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found = []
    for line in told.stdout.splitlines():
        kernel = json.loads(line)
        name = f"sm_{kernel['arch']}, {kernel['name']}"
        found.append(row(f"{name}: registers", kernel["registers"], "per thread", most=128))
        found.append(row(f"{name}: spills", kernel["spill_bytes"], "bytes per thread", most=0))
        if kernel["name"].startswith("copy"):
            wide = kernel["loads"].get(".v2.b64", 0) + kernel["loads"].get(".v4.b32", 0)
            found.append(row(f"{name}: loads of rows, 16 bytes", wide, "per thread and tile", least=1))
    return found
