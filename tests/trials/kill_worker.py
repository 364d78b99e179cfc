"""SIGKILL of a worker with a lease, tickets in flight and registered memory: what it held is gone at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from .blocks import BLOCK_BYTES
from .busy_worker import READY
from .fleet import ENVIRONMENT, DaemonProcess, until

MEMORY_NAME = "flexkv-worker"
"""What `create_memory` calls a worker's memory."""
BLOCKS_PER_WORKER = 1 << 16
GONE_S_MAX = 0.1
SETTLE_S_MAX = 5.0


def kill_worker(
    folder: Path, *, repetitions: int = 10, gone_s_max: float = GONE_S_MAX, seed: int = 1
) -> dict[str, float]:
    """Kill one worker after another at random moments of their work, each timed from the kill on."""
    chance = random.Random(seed)
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": "256MiB"}}
    gone_ms, closed_ms = [], []
    with DaemonProcess(folder, tables) as daemon:
        for number in range(repetitions):
            worker = start_worker(daemon, number * BLOCKS_PER_WORKER)
            time.sleep(chance.uniform(0, 0.1))
            assert daemon.planner()["leases"] == 1
            assert daemon.maps(MEMORY_NAME) == daemon.descriptors(MEMORY_NAME) == 1
            worker.kill()
            gone_ms.append(1000 * until(lambda: _nothing_held(daemon), "lease, tickets, session gone", 10, 0))
            closed_ms.append(gone_ms[-1] + 1000 * until(lambda: not _memory_open(daemon), "its memory closed", 10, 0))
            worker.wait()
            daemon.settle(SETTLE_S_MAX)
            _check_pins_and_frames(daemon)
            daemon.recount()
        assert max(gone_ms) < 1000 * gone_s_max, f"what dead workers held was gone after {gone_ms} ms"
    return {
        "workers killed": repetitions,
        "gone_ms_median": sorted(gone_ms)[repetitions // 2],
        "gone_ms_max": max(gone_ms),
        "memory_closed_ms_max": max(closed_ms),
    }


def start_worker(daemon: DaemonProcess, first: int) -> subprocess.Popen[str]:
    """A busy worker that has begun to be busy."""
    command = [sys.executable, "-m", "tests.trials.busy_worker", str(daemon.socket), str(first)]
    worker = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    with worker.stdout as stdout:
        assert stdout.readline() == READY + "\n"
    return worker


def _nothing_held(daemon: DaemonProcess) -> bool:
    facts = daemon.planner()
    return (facts["sessions"], facts["tickets"], facts["leases"], facts["saves_waiting"]) == (0, 0, 0, 0)


def _memory_open(daemon: DaemonProcess) -> bool:
    return bool(daemon.maps(MEMORY_NAME) or daemon.descriptors(MEMORY_NAME) or daemon.status()["sessions"])


def _check_pins_and_frames(daemon: DaemonProcess) -> None:
    """With nothing in flight every frame in use belongs to a block that may be evicted: no pin is left."""
    dram = daemon.planner()["tiers"]["dram"]
    assert dram["used_bytes"] == dram["evictable_blocks"] * BLOCK_BYTES, f"frames nobody can evict: {dram}"
