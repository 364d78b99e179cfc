"""What a daemon with one connected client burns while nothing happens."""

from __future__ import annotations

import time
from typing import Any

from flexkv_py.client import Client
from flexkvd.cli.cpu import cpu_seconds
from flexkvd.cli.spawn import Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target
from scripts.bench_parts.row import row

SETTLE_S = 2.0
WATCH_S = 10.0


def rows() -> list[dict[str, Any]]:
    """CPU share of an idle daemon over ten seconds."""
    with SpawnedDaemon(Sizes()) as daemon:
        daemon.wait_ready()
        geometry = Target(daemon.socket, 32 * 1024, tokens_per_block=512).geometry()
        with Client(daemon.socket, geometry, role="scheduler"):
            time.sleep(SETTLE_S)
            before = cpu_seconds(daemon.pid)
            time.sleep(WATCH_S)
            used = cpu_seconds(daemon.pid) - before
    return [row("idle: daemon with one client", 100 * used / WATCH_S, "% of a core", most=0.5)]
