"""What the event loop costs: CPU seconds of its thread per GiB saved and demoted, and promoted and loaded.

A real daemon with an SSD tier and one worker; the bytes are of no interest here, other parts check them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.keys import ROOT
from flexkvd.cli.spawn import MIB, Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target, block_keys
from flexkvd.lag import core_times
from scripts.bench_parts.row import row

KIB = 1024
GIB = 1 << 30
BLOCKS_AND_BYTES = ((16 * KIB, 64 * MIB), (256 * KIB, 512 * MIB), (2560 * KIB, 1280 * MIB))
"""Size of a block, and how much of them goes down. DRAM holds a quarter: nearly all of it must come up again."""
WINDOW_BYTES = 64 * MIB
WINDOW_BLOCKS_MAX = 64
WAIT_S = 60.0


def rows() -> list[dict[str, Any]]:
    """Loop CPU per GiB for small, middling and large blocks."""
    found = []
    for block_bytes, total_bytes in BLOCKS_AND_BYTES:
        down, up = _loop_cpu_s_per_gib(block_bytes, total_bytes)
        found += [
            row(f"loop: {block_bytes // KIB} KiB blocks saved and demoted", down, "CPU-s per GiB"),
            row(f"loop: {block_bytes // KIB} KiB blocks promoted and loaded", up, "CPU-s per GiB"),
        ]
    return found


def _loop_cpu_s_per_gib(block_bytes: int, total_bytes: int) -> tuple[float, float]:
    window = min(WINDOW_BLOCKS_MAX, WINDOW_BYTES // block_bytes)
    count = total_bytes // block_bytes // window * window
    dram_bytes = min(128 * MIB, total_bytes // 4)
    with SpawnedDaemon(Sizes(dram_bytes, 2 * total_bytes + GIB)) as daemon:
        daemon.wait_ready()
        geometry = Target(daemon.socket, block_bytes, tokens_per_block=512).geometry()
        with closing(Client(daemon.socket, geometry, timeout_s=WAIT_S)) as client:
            client.connect()
            layout = PagedLayout(geometry, window, geometry.tokens_per_block)
            descriptor = create_memory(layout.bytes, "flexkv-bench")
            mmap.mmap(descriptor, layout.bytes)[:] = os.urandom(layout.bytes)
            memory = client.register_memory(
                descriptor,
                bytes=layout.bytes,
                page_count=window,
                page_tokens=geometry.tokens_per_block,
                layout=layout.layers,
            )
            os.close(descriptor)
            keys = block_keys(client.namespace, range(count))

            def save(first: int) -> int:
                parent = keys[first - 1] if first else ROOT
                part = keys[first : first + window]
                return client.save(part, range(window), memory, parent, deadline_s=WAIT_S, ack="ssd").wait().length

            def load(first: int) -> int:
                return client.load(keys[first : first + window], range(window), memory, deadline_s=WAIT_S).wait().length

            save(0)
            down = _measure(daemon.pid, range(window, count, window), save, window, block_bytes)
            up = _measure(daemon.pid, range(0, count // 2, window), load, window, block_bytes)
    return down, up


def _measure(pid: int, firsts: range, work: Callable[[int], int], window: int, block_bytes: int) -> float:
    before_ns, _ = core_times(pid, pid)
    for first in firsts:
        done = work(first)
        assert done == window, f"only {done} of {window} blocks arrived"
    after_ns, _ = core_times(pid, pid)
    return (after_ns - before_ns) / 1e9 / (len(firsts) * window * block_bytes / GIB)
