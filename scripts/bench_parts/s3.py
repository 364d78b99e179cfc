"""The S3 tier beside bare clients, each in a process of its own with as many connections, in turns.

Against SeaweedFS, and against a null server that takes uploads as fast as they come. Ours is the whole
tier: store, byte worker, arena, header and checksums. obstore is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexkvd.cli.s3server import S3Server
from flexkvd.cli.spawn import MIB, Sizes
from scripts.bench_parts import load
from scripts.bench_parts.null_s3 import NullS3
from scripts.bench_parts.row import percentile, row
from scripts.bench_parts.s3_clients import CONNECTIONS

KIB = 1024
SIZES = {"256 KiB": 256 * KIB, "1 MiB": MIB, "2.5 MiB": 5 * MIB // 2, "8 MiB": 8 * MIB}
ROUNDS = 3
ROUND_BYTES = {"null put": 96 * MIB, "null get": 128 * MIB, "SeaweedFS put": 32 * MIB, "SeaweedFS get": 128 * MIB}
"""Moved in a round; SeaweedFS takes uploads at the pace of its own hashing."""
COUNT_MAX = 128
SPEED_SHARE_MIN = 0.9
CPU_S_PER_GIB_MAX = 0.15
GIB = 1 << 30


@dataclass
class Measured:
    """All rounds of one client with one kind of work."""

    moved_bytes: int = 0
    speeds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """GB/s of the best round: what else runs on the machine slows rounds down, and speeds none up."""
        return max(self.speeds)

    @property
    def cpu_s_per_gib(self) -> float:
        return self.cpu_s / (self.moved_bytes / GIB)


class Worker:
    """A client process under test."""

    def __init__(self, client: str, url: str, environment: Mapping[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "scripts.bench_parts.s3_clients",
            client,
            url,
            "bench",
            client.replace(", ", "-").replace(" ", "-"),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(self, what: str, object_bytes: int, count: int, into: Measured) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {object_bytes} {count}\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        into.moved_bytes += object_bytes * count
        into.speeds.append(object_bytes * count / found["wall_s"] / 1e9)
        into.cpu_s += found["cpu_s"]
        into.times_s += found["times_s"]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def rows() -> list[dict[str, Any]]:
    """Every size and direction against both servers, then the socket's latency beside S3 at full speed."""
    clients = ["ours", "ours, codec auto", "boto3", *(["obstore"] if importlib.util.find_spec("obstore") else [])]
    found = []
    with tempfile.TemporaryDirectory(prefix="flexkv-bench-") as folder:
        with NullS3() as null:
            found += _against("null", null.endpoint_url, null.environment, clients)
        with S3Server(Path(folder) / "s3", buckets=("bench",)) as server:
            found += _against("SeaweedFS", server.endpoint_url, server.environment, clients)
        trace = load.write_trace(Path(folder) / "trace.jsonl")
        with NullS3() as null:
            load.make_nice(null.pid)
            sizes = Sizes(64 * MIB, None, f"{null.endpoint_url}/bench/load")
            found += load.beside_load("S3 works", sizes, trace, os.environ | null.environment)
    return found


def _against(server: str, url: str, environment: Mapping[str, str], clients: list[str]) -> list[dict[str, Any]]:
    found = []
    with _workers(clients, url, environment) as workers:
        for size, object_bytes in SIZES.items():
            for worker in workers.values():
                worker.run("keep", object_bytes, CONNECTIONS, Measured())
            for what in ("put", "get"):
                count = min(COUNT_MAX, ROUND_BYTES[f"{server} {what}"] // object_bytes)
                measured = {client: Measured() for client in clients}
                for _ in range(ROUNDS):
                    for client, worker in workers.items():
                        worker.run(what, object_bytes, count, measured[client])
                found += _compared(f"s3: {what} {size}, {server}", measured)
    return found


@contextmanager
def _workers(clients: list[str], url: str, environment: Mapping[str, str]) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        workers = {}
        for client in clients:
            workers[client] = Worker(client, url, environment)
            stack.callback(workers[client].end)
        yield workers


def _compared(name: str, measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
    found = []
    for client, each in measured.items():
        found += [
            row(f"{name}: {client}", each.speed, "GB/s"),
            row(f"{name}: {client}, CPU", each.cpu_s_per_gib, "CPU-s per GiB"),
            row(f"{name}: {client}, p50", percentile(each.times_s, 50) * 1e3, "ms"),
            row(f"{name}: {client}, p99", percentile(each.times_s, 99) * 1e3, "ms"),
        ]
    ours, bare = measured["ours"], measured["boto3"]
    return [
        *found,
        row(f"{name}: ours / boto3", ours.speed / bare.speed, "×", least=SPEED_SHARE_MIN),
        row(
            f"{name}: ours - boto3, CPU",
            ours.cpu_s_per_gib - bare.cpu_s_per_gib,
            "CPU-s per GiB",
            most=CPU_S_PER_GIB_MAX,
        ),
    ]
