"""Round trips through the worker socket of a real daemon: ping, and match of 1,000 blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flexkv_py.client import Client
from flexkvd.cli.pattern import Pattern
from flexkvd.cli.spawn import Sizes, SpawnedDaemon
from flexkvd.cli.traffic import ReplayClient, Target, block_keys
from scripts.bench_parts.echo import Echo
from scripts.bench_parts.row import percentile, row

BLOCK_BYTES = 32 * 1024
BLOCKS = 1000
PINGS = 20_000
MATCHES = 3_000


def rows() -> list[dict[str, Any]]:
    """The socket rows of design §9, measured now."""
    with SpawnedDaemon(Sizes()) as daemon:
        daemon.wait_ready()
        target = Target(daemon.socket, BLOCK_BYTES, tokens_per_block=512)
        geometry = target.geometry()
        with ReplayClient(target, geometry, Pattern(BLOCK_BYTES)) as worker:
            worker.serve(range(BLOCKS))
        with Client(daemon.socket, geometry, role="scheduler") as client:
            keys = block_keys(client.namespace, range(BLOCKS))
            found = client.match(keys).length
            assert found == BLOCKS, f"only {found} of {BLOCKS} blocks were saved"
            pings = _times_us(client.ping, PINGS)
            matches = _times_us(lambda: client.match(keys), MATCHES)
            with _one_core(daemon.pid):
                together = _times_us(client.ping, PINGS)
        with Echo() as echo:
            echoes = _times_us(echo.ping, PINGS)
    return [
        row("socket: bare echo, p50", percentile(echoes, 50), "µs"),
        row("socket: bare echo, p99", percentile(echoes, 99), "µs"),
        row("socket: ping, p50", percentile(pings, 50), "µs", most=45),
        row("socket: ping, p99", percentile(pings, 99), "µs", most=100),
        row("socket: ping, both ends on one core, p50", percentile(together, 50), "µs"),
        row("socket: ping, both ends on one core, p99", percentile(together, 99), "µs"),
        row("socket: match of 1,000 blocks, p50", percentile(matches, 50), "µs", most=150),
        row("socket: match of 1,000 blocks, p99", percentile(matches, 99), "µs"),
    ]


@contextmanager
def _one_core(pid: int) -> Iterator[None]:
    """Both ends on the first core: what is left is the programs' own work, without the waking of an idle core."""
    threads = [0, *(int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir())]
    cores = os.sched_getaffinity(0)
    for thread in threads:
        os.sched_setaffinity(thread, {min(cores)})
    try:
        yield
    finally:
        for thread in threads:
            os.sched_setaffinity(thread, cores)


def _times_us(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times
