"""The worker socket while the tiers below are busy: ping beside a replay that saves and loads real bytes.

The load is another process, so that the pings share nothing with it but the daemon and the cores. Every
request of its trace is new, or repeats one that has left DRAM long ago: blocks go down to SSD and S3 and
come up again all the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flexkv_py.client import Client
from flexkvd.cli.s3server import S3Server
from flexkvd.cli.spawn import MIB, Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target
from scripts.bench_parts.echo import Echo
from scripts.bench_parts.row import percentile, row

BLOCK_BYTES = 1 * MIB
REQUESTS = 2_000
BLOCKS_PER_REQUEST = 8
REPEATED_AFTER = 12
WARM_UP_S = 3.0
WATCH_S = 8.0
PAUSE_S = 0.0005  # a worker's pings are not a busy loop; one that is would itself be the load


def rows() -> list[dict[str, Any]]:
    """Ping beside a load on SSD, and beside one on SSD and S3."""
    found = []
    with tempfile.TemporaryDirectory(prefix="flexkv-bench-") as folder:
        trace = write_trace(Path(folder) / "trace.jsonl")
        found += beside_load("SSD works", Sizes(64 * MIB, 512 * MIB), trace, None)
        with S3Server(Path(folder) / "s3", buckets=("bench",)) as server:
            sizes = Sizes(64 * MIB, 128 * MIB, f"{server.endpoint_url}/bench/load")
            found += beside_load("SSD and S3 work", sizes, trace, os.environ | server.environment)
    return found


def write_trace(path: Path) -> Path:
    """Requests of eight blocks; every second one repeats an earlier one."""
    with path.open("w") as out:
        for number in range(REQUESTS):
            which = number - REPEATED_AFTER if number % 2 and number > REPEATED_AFTER else number
            ids = range(which * BLOCKS_PER_REQUEST, (which + 1) * BLOCKS_PER_REQUEST)
            request = {"timestamp": number, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": list(ids)}
            out.write(json.dumps(request) + "\n")
    return path


def beside_load(name: str, sizes: Sizes, trace: Path, environment: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Pings of a daemon with these tiers while a replay of the trace keeps them busy."""
    with SpawnedDaemon(sizes, environment) as daemon:
        daemon.wait_ready()
        geometry = Target(daemon.socket, BLOCK_BYTES, tokens_per_block=512).geometry()
        flexkv = [
            "nice",
            "-n",
            "19",
            str(Path(sys.executable).parent / "flexkv"),
            "replay",
            str(trace),
            "--socket",
            daemon.socket,
        ]
        flexkv += ["--admin", daemon.admin.address, "--block-bytes", str(BLOCK_BYTES), "--clients", "2"]
        load = subprocess.Popen(flexkv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(WARM_UP_S)
            with Client(daemon.socket, geometry, role="scheduler") as client, Echo() as echo:
                times, echoes = _pings(client.ping, echo.ping)
            assert load.poll() is None, "the load ended before the pings did"
        finally:
            load.kill()
            load.wait()
    return [
        row(f"socket: bare echo while {name}, p50", percentile(echoes, 50), "µs"),
        row(f"socket: bare echo while {name}, p99", percentile(echoes, 99), "µs"),
        row(f"socket: ping while {name}, p50", percentile(times, 50), "µs"),
        row(f"socket: ping while {name}, p99", percentile(times, 99), "µs", most=300),
    ]


def _pings(*calls: Callable[[], object]) -> list[list[float]]:
    """Times of these calls, in turn."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        for call, taken in zip(calls, times, strict=True):
            started = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - started) / 1000)
            time.sleep(PAUSE_S)
    return times
