"""SIGKILL of row-path workers in mid-step, while requests are turned over: no wrong row, no frame reused or lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from flexkv_py.client import Client, Outcome
from tests.service.conftest import GEOMETRY

from .blocks import BLOCK_BYTES, Pages, chain
from .fleet import ENVIRONMENT, DaemonProcess, until

DRAM_BLOCKS = 64
FILL_FIRST = 1 << 27
GONE_S_MAX = 10.0
STOPPED_S = 0.7
"""Longer than `ack_s_max`: whoever owes an acknowledgement then loses its session while its process lives."""


class RowWorker:
    """One process, and what it said."""

    def __init__(self, daemon: DaemonProcess, seed: int) -> None:
        command = [sys.executable, "-m", "tests.trials.busy_row_worker", str(daemon.socket), str(seed)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self._said = [self.process.stdout.readline()]

    def kill(self) -> int:
        """SIGKILL; how many steps it had made. It must not have ended by itself."""
        self.process.kill()
        said, _ = self.process.communicate()
        self._said += said.splitlines()
        ended_well = self.process.returncode == -signal.SIGKILL and self._said[-1].strip().isdecimal()
        assert ended_well, "\n".join(self._said[-20:])
        return int(self._said[-1])

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP: it neither reads its socket nor acknowledges."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)


def fill_dram(daemon: DaemonProcess) -> None:
    """Save as much as DRAM holds: no frame may be lost for it, and none be held."""
    with Client(daemon.socket, GEOMETRY, timeout_s=30.0) as client:
        pages = Pages(client, DRAM_BLOCKS)
        fresh = chain(client, FILL_FIRST, DRAM_BLOCKS)
        outcomes = client.save(fresh, pages.pages(0, DRAM_BLOCKS), pages.memory, deadline_s=30).wait().outcomes
    assert set(outcomes) == {Outcome.STORED}, f"frames that nobody gave back: {outcomes}"
    daemon.settle()
    used_bytes = daemon.planner()["tiers"]["dram"]["used_bytes"]
    assert used_bytes == DRAM_BLOCKS * BLOCK_BYTES, f"{used_bytes} bytes of DRAM in use, by nothing but whole blocks"


def row_workers(folder: Path, *, kills: int = 10, workers: int = 3, seed: int = 1) -> dict[str, float]:
    """Keep so many workers busy, kill one after another at random moments, then all; count what is left of them."""
    chance = random.Random(seed)
    tables: dict[str, dict[str, object]] = {
        "dram": {"bytes": "1MiB", "segment_bytes": "1MiB"},
        "ssd": {"directory": str(folder / "ssd"), "bytes": "64MiB"},
        "row_path": {"ack_s_max": STOPPED_S / 2},
    }
    assert DRAM_BLOCKS * BLOCK_BYTES == 1 << 20
    steps = 0
    with DaemonProcess(folder, tables) as daemon:
        busy = [RowWorker(daemon, seed * 1000 + number) for number in range(workers)]
        for number in range(kills):
            time.sleep(chance.uniform(0.1, 0.5))
            victim = busy.pop(chance.randrange(len(busy)))
            if number % 3 == 2:
                victim.stop_for(STOPPED_S)
            steps += victim.kill()
            busy.append(RowWorker(daemon, seed * 1000 + workers + number))
        for each in busy:
            steps += each.kill()
        gone_s = until(lambda: daemon.metric("flexkv_row_readers") == 0, "the frames of dead workers", GONE_S_MAX)
        daemon.settle()
        daemon.recount()
        fill_dram(daemon)
        revoked = daemon.metric("flexkv_row_pages_total", change="revoked")
        assert revoked, "nothing was revoked: DRAM was large enough"
        return {
            "workers killed": kills + workers,
            "steps": steps,
            "chunks granted": daemon.metric("flexkv_row_pages_total", change="granted"),
            "chunks revoked": revoked,
            "sessions ended for an ack": daemon.metric("flexkv_row_sessions_ended_total", code="ack_overdue"),
            "last frames back, s": round(gone_s, 3),
        }
