"""Hot rows on a GPU: plan and copy from a captured graph, against what the bus and HBM give in the same run.

Everything is replayed from graphs of some steps each. A row "plan and copy" is the time of one group of one layer;
what the copy alone takes is the difference to a graph of the same plans without copies.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.gather import Kernels
from scripts.bench_parts import attributes
from scripts.bench_parts.hot_bed import ROW_BYTES, Bed, make_arena
from scripts.bench_parts.row import row

TOKENS = 65_536
SIZES = ((512, 2_048), (2_048, 2_048), (2_048, 4_096), (2_048, 8_192))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MISS_SHARES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
STEPS, ROUNDS = 8, 7
LIMIT_BYTES = 1 << 30
PEER_MODULES = ("sglang.kernels.ops.kvcache.hisparse", "sglang.jit_kernel.hisparse")


def architecture() -> int:
    """The device's compute capability as one number: 90 for an H200."""
    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor


def rows() -> Iterator[dict[str, Any]]:
    """Attributes and limits of the device, then every size, batch and share of misses; each as soon as it is known."""
    device = torch.device("cuda")
    name = torch.cuda.get_device_properties(0).name
    for attribute, value in attributes.values():
        yield row(f"{name}: {attribute}", -1 if value is None else value, "")
    arena = make_arena(max(BATCHES), TOKENS, pinned=True)
    pinned, hbm = _copy_gb_per_s(arena.view(-1)[:LIMIT_BYTES]), _copy_gb_per_s(arena.view(-1)[:LIMIT_BYTES].to(device))
    yield row("pinned copy to the device", pinned, "GB/s")
    yield row("copy within HBM", hbm, "GB/s")
    yield from _equality(device, arena)
    for selected, slots in SIZES:
        for batch in BATCHES:
            bed = Bed(selected, slots, batch, TOKENS, device, arena[:batch])
            for share in MISS_SHARES:
                yield from _measured(bed, share, pinned, hbm)


def _copy_gb_per_s(source: torch.Tensor) -> float:
    target = torch.empty(source.shape, dtype=source.dtype, device="cuda")
    target.copy_(source, non_blocking=True)
    return source.nbytes / 1e3 / _time_us(lambda: target.copy_(source, non_blocking=True))


def _time_us(work: Callable[[], Any], prepare: Callable[[int], None] = lambda _: None) -> float:
    """Median time on the device, in microseconds; `prepare(round)` is not in it."""
    times = []
    for number in range(ROUNDS):
        prepare(number)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def _graph(bed: Bed, kernels: Kernels, chosen: torch.Tensor, *, copies: bool) -> torch.cuda.CUDAGraph:
    """STEPS steps on the selections that `chosen` [STEPS, batch, 1, K] will hold."""

    def steps() -> None:
        for each in chosen:
            kernels.plan(bed.requests, bed.group, each)
            if copies:
                kernels.copy(bed.requests, bed.group, 0, 0)

    steps()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    return graph


def _step_us(bed: Bed, share: float, *, copies: bool) -> float:
    """Microseconds of one step, the hot buffer filled before."""
    bed.open()
    chosen = torch.stack([bed.selection(step, share) for step in range(STEPS)])
    following = [
        torch.stack([bed.selection(STEPS * (number + 2) + step, share) for step in range(STEPS)])
        for number in range(ROUNDS)
    ]
    graph = _graph(bed, Kernels([bed.shape], bed.device), chosen, copies=copies)
    return _time_us(graph.replay, lambda number: chosen.copy_(following[number])) / STEPS


def _measured(bed: Bed, share: float, pinned: float, hbm: float) -> list[dict[str, Any]]:
    limits = bed.shape.limits
    plan_us, whole_us = _step_us(bed, share, copies=False), _step_us(bed, share, copies=True)
    typical = (bed.shape.selected, bed.shape.slots) == (2_048, 4_096)
    name = f"K={bed.shape.selected} H={bed.shape.slots} batch {limits.batch_max}, {share:.0%} misses"
    found = [
        row(f"{name}: plan", plan_us, "µs per group"),
        row(f"{name}: plan and copy", whole_us, "µs per group", most=8 if typical and not share else None),
        row(f"{name}: rows in a wrong slot", bed.misplaced(), "rows", most=0),
    ]
    moved = limits.batch_max * round(share * bed.shape.selected) * ROW_BYTES
    if moved:
        speed = moved / 1e3 / max(whole_us - plan_us, 1e-3)
        least = 0.85 if typical and limits.batch_max >= 16 and share >= 0.1 else None
        found.append(row(f"{name}: copy", speed, "GB/s"))
        found.append(row(f"{name}: copy, of the pinned copy", speed / pinned, "share", least=least))
        found.append(row(f"{name}: copy, of HBM's", speed / hbm, "share"))
    peer = _peer_us(bed, share) if typical else None
    if peer is not None:
        found.append(row(f"{name}: HiSparse's kernel", peer, "µs per layer"))
        found.append(row(f"{name}: ours to HiSparse's", whole_us / peer, "time", most=1))
    return found


def _equality(device: torch.device, arena: torch.Tensor) -> list[dict[str, Any]]:
    """A graph replayed over new selections against the oracle on the host."""
    beds = [Bed(2_048, 4_096, 4, TOKENS, each, arena[:4]) for each in (torch.device("cpu"), device)]
    oracle, ours = beds
    chosen = torch.stack([ours.selection(step, 0.25) for step in range(STEPS)])
    graph = _graph(ours, Kernels([ours.shape], device), chosen, copies=True)
    ours.open()
    equal = 0
    for number in range(3):
        following = [oracle.selection(STEPS * number + step, 0.25) for step in range(STEPS)]
        chosen.copy_(torch.stack(following))
        graph.replay()
        for each in following:
            reference.plan(oracle.requests, oracle.group, each)
            reference.copy(oracle.requests, oracle.group, 0, 0)
        equal += oracle.equals(ours)
    return [row("replayed graph equals the oracle", equal / 3, "of replays", least=1)]


def _peer_us(bed: Bed, share: float) -> float | None:
    """HiSparse's kernel on the same selections, with the same rows in pinned memory; None where it is not installed."""
    for module in PEER_MODULES:
        try:
            load = importlib.import_module(module).load_cache_to_device_buffer_mla
        except ImportError:
            continue
        return _time_peer(bed, share, load)
    return None


def _time_peer(bed: Bed, share: float, load: Callable[..., None]) -> float:
    batch, slots, selected, device = bed.shape.limits.batch_max, bed.shape.slots, bed.shape.selected, bed.device
    count = batch * TOKENS
    state = {
        "device_buffer_tokens": torch.full((batch, slots + 1), -1, dtype=torch.int32, device=device),
        "host_cache_locs": torch.arange(count, device=device).view(batch, TOKENS),
        "device_buffer_locs": torch.arange(batch * (slots + 1), dtype=torch.int32, device=device).view(batch, -1),
        "host_cache": torch.empty((count, 1, ROW_BYTES), dtype=torch.uint8, pin_memory=True),
        "device_buffer": torch.empty((batch * (slots + 1), 1, ROW_BYTES), dtype=torch.uint8, device=device),
        "top_k_device_locs": torch.empty((batch, selected), dtype=torch.int32, device=device),
        "req_pool_indices": torch.arange(batch, device=device),
        "seq_lens": torch.full((batch,), TOKENS, dtype=torch.int32, device=device),
        "lru_slots": torch.arange(slots, dtype=torch.int16, device=device).repeat(batch, 1),
        "num_real_reqs": torch.tensor([batch], dtype=torch.int32, device=device),
    }
    sizes = {"item_size_bytes": ROW_BYTES, "num_top_k": selected, "hot_buffer_size": slots, "block_size": 1024}
    chosen = torch.stack([bed.selection(step, share).view(batch, selected) for step in range(STEPS)])

    def steps() -> None:
        for each in chosen:
            load(top_k_tokens=each, **state, **sizes)

    steps()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    following = [
        torch.stack([bed.selection(STEPS * (number + 1) + step, share).view(batch, selected) for step in range(STEPS)])
        for number in range(ROUNDS)
    ]
    return _time_us(graph.replay, lambda number: chosen.copy_(following[number])) / STEPS
