"""How long after exec the worker socket answers, and the daemon is ready."""

from __future__ import annotations

import time
from typing import Any

from flexkv_py.client import Client
from flexkvd.cli.spawn import Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target
from scripts.bench_parts.row import percentile, row

STARTS = 5


def rows() -> list[dict[str, Any]]:
    """Median of several starts with an arena of 1 GiB."""
    answers, ready = [], []
    for _ in range(STARTS):
        started = time.perf_counter()
        with SpawnedDaemon(Sizes(dram_bytes=1 << 30)) as daemon:
            daemon.wait_socket()
            geometry = Target(daemon.socket, 32 * 1024, tokens_per_block=512).geometry()
            with Client(daemon.socket, geometry, role="scheduler") as client:
                client.ping()
                answers.append(time.perf_counter() - started)
            daemon.wait_ready()
            ready.append(time.perf_counter() - started)
    return [
        row("start: the socket answers a ping after", percentile(answers, 50), "s", most=1),
        row("start: ready with 1 GiB populated after", percentile(ready, 50), "s"),
    ]
