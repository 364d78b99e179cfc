"""The worker socket while the tiers below are busy: ping beside a replay that saves and loads real bytes.

The load is another process, so that the pings share nothing with it but the daemon and the cores. Every
request of its trace is new, or repeats one that has left DRAM long ago: blocks go down to SSD and S3 and
come up again all the time. Load and S3 server are nice: in production both have other cores.

So has whoever asks. It asks in real time where it may (root, or RLIMIT_RTPRIO): a core is then free for it
when the answer comes, and its figure is the daemon's. What it waited for a core all the same is a row of
its own; that cannot be taken off afterwards, for the daemon may have worked on the answer meanwhile. What
the answering end waited can, because nobody else did anything for the answer; the kernel counts both. The bare
echo, asked in turn with the ping, shows what of the figure is the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexkv_py.client import Client
from flexkvd.cli.s3server import S3Server
from flexkvd.cli.spawn import MIB, Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target
from flexkvd.lag import core_times
from scripts.bench_parts.echo import Echo
from scripts.bench_parts.row import percentile, row

BLOCK_BYTES = 1 * MIB
REQUESTS = 2_000
BLOCKS_PER_REQUEST = 8
REPEATED_AFTER = 12
WARM_UP_S = 3.0
WATCH_S = 8.0
NICEST = 19
PAUSE_S = 0.0005  # a worker's pings are not a busy loop; one that is would itself be the load


def rows() -> list[dict[str, Any]]:
    """Ping beside a load on SSD, and beside one on SSD and S3."""
    found = []
    with tempfile.TemporaryDirectory(prefix="flexkv-bench-") as folder:
        trace = write_trace(Path(folder) / "trace.jsonl")
        found += beside_load("SSD works", Sizes(64 * MIB, 512 * MIB), trace, None)
        with S3Server(Path(folder) / "s3", buckets=("bench",)) as server:
            make_nice(server.pid)
            sizes = Sizes(64 * MIB, 128 * MIB, f"{server.endpoint_url}/bench/load")
            found += beside_load("SSD and S3 work", sizes, trace, os.environ | server.environment)
    return found


def make_nice(pid: int) -> None:
    """Let a server stand back, and the threads it starts later, as if it ran on another machine."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), NICEST)


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
            str(NICEST),
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
            with Client(daemon.socket, geometry, role="scheduler") as client, Echo() as echo, _in_real_time():
                pings, echoes = _ask_in_turn((client.ping, daemon.pid), (echo.ping, echo.pid))
            assert load.poll() is None, "the load ended before the pings did"
        finally:
            load.kill()
            load.wait()
    rows = []
    for what, asked, most in (("bare echo", echoes, None), ("ping", pings, 300)):
        rows += [
            row(f"socket: {what} while {name}, p50", percentile(asked.times_us, 50), "µs"),
            row(f"socket: {what} while {name}, p99", _p99(asked.times_us), "µs", most=most),
            row(f"socket: {what} while {name}, its wait for a core taken off, p99", _p99(asked.on_core_us), "µs"),
        ]
    return [
        *rows,
        row(f"socket: ping while {name}, the asker's wait for a core, p99", _p99(pings.asker_waits_us), "µs"),
        row(f"socket: ping while {name}, the loop's own work meanwhile, p99", _p99(pings.work_us), "µs"),
    ]


@dataclass(slots=True)
class _Asked:
    """What was measured of one other end, a value per question, in µs."""

    times_us: list[float] = field(default_factory=list)
    on_core_us: list[float] = field(default_factory=list)
    """Without what the other end's loop waited for a core. A GIL's holder that waits for one still counts."""
    asker_waits_us: list[float] = field(default_factory=list)
    work_us: list[float] = field(default_factory=list)
    """What the other end's first thread, its loop, ran on a core meanwhile."""


def _ask_in_turn(*ends: tuple[Callable[[], object], int]) -> list[_Asked]:
    """Ask these ends, each a call and the process that answers it, for WATCH_S."""
    asked = [_Asked() for _ in ends]
    ours = os.getpid(), threading.get_native_id()
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        for (call, pid), values in zip(ends, asked, strict=True):
            before = core_times(pid, pid), core_times(*ours)
            started_ns = time.perf_counter_ns()
            call()
            taken_ns = time.perf_counter_ns() - started_ns
            after = core_times(pid, pid), core_times(*ours)
            waited_ns, asker_waited_ns = (late[1] - early[1] for early, late in zip(before, after, strict=True))
            values.times_us.append(taken_ns / 1000)
            values.on_core_us.append(max(0, taken_ns - waited_ns) / 1000)
            values.asker_waits_us.append(asker_waited_ns / 1000)
            values.work_us.append((after[0][0] - before[0][0]) / 1000)
            time.sleep(PAUSE_S)
    return asked


@contextmanager
def _in_real_time() -> Iterator[None]:
    """The calling thread has a core whenever it is ready to run; without the right to that, nothing changes."""
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 99)
