"""SIGKILL of the daemon while its SSD log writes, seals, reclaims and rewrites: what is served afterwards is right.

The SSD is far smaller than what is saved, so the log goes round and round. After each kill the newest
acknowledged blocks must be hits with their bytes, older ones hits with their bytes or misses, and the
planner, the log and the directory itself must count the same bytes. Some kills are followed by an offline
`flexkv verify`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError

from .blocks import BLOCK_BYTES, GEOMETRY, Pages, chain
from .fleet import ENVIRONMENT, DaemonProcess, until

WRITERS = 2
READERS = 1
CHAIN_BLOCKS = 32
BLOCKS_PER_CLIENT = 1 << 17
"""Numbered apart. A block's number is part of its tokens, which are u32."""
RECORD_BYTES = 4096 + BLOCK_BYTES
SSD_MIB = 16
FILL_SHARE = 1.5
"""Written before the first kill, as a share of the SSD: every life then seals and reclaims."""
SEGMENT_KIB = 512
DRAM_MIB = 4
PROMISED_SHARE = 0.25
"""Of the usable bytes: that much of the newest acknowledgements nothing evicts. The planner goes by least recent use
here, because its other policies may let go of what is new and used once."""
HOT_CHAINS = 3
"""Read over and over, so that reclaim has something to rewrite."""
OLD_CHAINS_CHECKED = 6
KILL_S_MAX = 0.4
VERIFY_EVERY = 10
LOST = {ErrorCode.DAEMON_LOST, ErrorCode.DRAINING, ErrorCode.DEADLINE_EXCEEDED}


@dataclass
class Record:
    """First blocks of the chains acknowledged at `ssd`, oldest first, and what readers met; shared by threads."""

    chains: list[int] = field(default_factory=list)
    read: int = 0
    wrong: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def newest(self, bytes_max: float) -> list[int]:
        with self.lock:
            count = int(bytes_max / (CHAIN_BLOCKS * RECORD_BYTES))
            return self.chains[-count:]

    def sample(self, chance: random.Random, count: int) -> list[int]:
        with self.lock:
            return chance.sample(self.chains, min(count, len(self.chains)))

    def count(self) -> int:
        with self.lock:
            return len(self.chains)


class Actor(threading.Thread):
    """One client that does the same thing again and again, whatever happens to the daemon."""

    def __init__(self, daemon: DaemonProcess, number: int, record: Record) -> None:
        super().__init__(name=f"{type(self).__name__.lower()}-{number}", daemon=True)  # a failed trial ends
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self.record = record
        self.client = Client(daemon.socket, GEOMETRY, timeout_s=10)
        self.client.connect()
        self.pages = Pages(self.client, CHAIN_BLOCKS)
        self.chance = random.Random(number)

    def run(self) -> None:
        try:
            while not self.over.is_set():
                try:
                    self.act()
                except FlexKVError as error:
                    if error.code not in LOST:
                        raise
                    time.sleep(0.005)
        except BaseException as failure:
            self.failure = failure
        finally:
            self.client.close()

    def act(self) -> None:
        """What a started one does again and again."""

    def end(self) -> None:
        self.over.set()
        self.join(60)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def load(self, first: int) -> int:
        """Load a chain as far as it is a hit, compare, and return how many blocks that were."""
        keys = chain(self.client, first, CHAIN_BLOCKS)
        self.pages.wipe(0, CHAIN_BLOCKS)
        loaded = self.client.load(keys, self.pages.pages(0, CHAIN_BLOCKS), self.pages.memory).wait()
        wrong = self.pages.wrong(0, range(first, first + loaded.length))
        with self.record.lock:
            self.record.read += loaded.length
            self.record.wrong += wrong
        return loaded.length


class Writer(Actor):
    """Saves new chains, acknowledged at `ssd`."""

    def __init__(self, daemon: DaemonProcess, number: int, record: Record) -> None:
        super().__init__(daemon, number, record)
        self._next = number * BLOCKS_PER_CLIENT

    def act(self) -> None:
        first, self._next = self._next, self._next + CHAIN_BLOCKS
        self.pages.put_chain(0, first, CHAIN_BLOCKS)
        keys, places = chain(self.client, first, CHAIN_BLOCKS), self.pages.pages(0, CHAIN_BLOCKS)
        outcomes = self.client.save(keys, places, self.pages.memory, ack="ssd").wait().outcomes
        if set(outcomes) == {Outcome.STORED}:
            with self.record.lock:
                self.record.chains.append(first)


class Reader(Actor):
    """Loads a few hot chains over and over, and others at random."""

    def act(self) -> None:
        with self.record.lock:
            chains = self.record.chains[:HOT_CHAINS] + self.record.chains[-8:]
        if chains:
            self.load(self.chance.choice(chains))
        else:
            time.sleep(0.01)


class Checker(Actor):
    """Asks after a kill; not started as a thread."""

    def check(self, first: int, *, promised: bool) -> None:
        keys = chain(self.client, first, CHAIN_BLOCKS)
        length = self.client.match(keys).length
        loaded = self.load(first)
        assert self.record.wrong == [], f"blocks {self.record.wrong} came back with other bytes"
        assert loaded == length, f"of the chain from block {first} {length} blocks are hits, but {loaded} were loaded"
        if promised:
            assert length == CHAIN_BLOCKS, (
                f"the chain from block {first} was acknowledged at ssd lately and is cut to {length}"
            )


def enough(actors: list[Actor], record: Record, least: int) -> bool:
    """Whether more than `least` chains are acknowledged. Raises what an actor met."""
    for actor in actors:
        if actor.failure is not None:
            raise actor.failure
    return record.count() > least


def kill_log(folder: Path, *, cycles: int = 200, seed: int = 1) -> dict[str, float]:
    """Kill and restart `cycles` times; every check is made before anything new is written."""
    chance, record = random.Random(seed), Record()
    ssd = {
        "directory": str(folder / "ssd"),
        "bytes": f"{SSD_MIB}MiB",
        "segment_bytes": f"{SEGMENT_KIB}KiB",
        "write_amplification_max": 1.5,  # so that records are let go of, too
    }
    tables: dict[str, dict[str, object]] = {"ssd": ssd, "planner": {"policy": "lru"}}
    tables["dram"] = {"bytes": f"{DRAM_MIB}MiB", "segment_bytes": "1MiB"}
    figures = dict.fromkeys(("verified offline", "segments_reclaimed", "rewritten_bytes", "written_bytes"), 0.0)
    start_s_max = 0.0
    with DaemonProcess(folder, tables) as daemon:
        for cycle in range(cycles):
            actors: list[Actor] = [Writer(daemon, cycle * WRITERS + number, record) for number in range(WRITERS)]
            actors += [Reader(daemon, cycle, record) for _ in range(READERS)]
            for actor in actors:
                actor.start()
            least = record.count() if cycle else int(FILL_SHARE * (SSD_MIB << 20) / (CHAIN_BLOCKS * RECORD_BYTES))
            until(lambda least=least, actors=actors: enough(actors, record, least), "enough saves are acknowledged", 60)
            time.sleep(chance.uniform(0, KILL_S_MAX))
            facts = daemon.status()["tiers"]["ssd"]
            for name in ("segments_reclaimed", "rewritten_bytes", "written_bytes"):
                figures[name] += facts[name]
            daemon.kill()
            for actor in actors:
                actor.end()
            if cycle % VERIFY_EVERY == VERIFY_EVERY - 1:
                verify(folder / "ssd")
                figures["verified offline"] += 1
            begun = time.monotonic()
            daemon.start()
            start_s_max = max(start_s_max, time.monotonic() - begun)
            usable_bytes = count_alike(daemon)
            check(daemon, record, chance, usable_bytes)
        daemon.recount()
    return {
        "kills": cycles,
        "blocks acknowledged": record.count() * CHAIN_BLOCKS,
        "blocks read and compared": record.read,
        **figures,
        "start_s_max": start_s_max,
    }


def check(daemon: DaemonProcess, record: Record, chance: random.Random, usable_bytes: int) -> None:
    """What was promised is there, what is there is right."""
    checker = Checker(daemon, 0, record)
    try:
        for first in record.newest(PROMISED_SHARE * usable_bytes):
            checker.check(first, promised=True)
        for first in record.sample(chance, OLD_CHAINS_CHECKED):
            checker.check(first, promised=False)
    finally:
        checker.client.close()


def count_alike(daemon: DaemonProcess) -> int:
    """Planner and log count the same bytes and records, to the byte; returns what the planner may use."""
    begun = time.monotonic()
    while True:  # a record that is being moved counts in both places until that has ended
        status = daemon.status()
        log, planner = status["tiers"]["ssd"], status["planner"]["tiers"]["ssd"]
        if log["live_bytes"] == log["used_bytes"] or time.monotonic() - begun > 5:
            break
    assert planner["used_bytes"] == log["used_bytes"] == log["live_bytes"] == log["records"] * RECORD_BYTES, (
        f"the planner counts {planner['used_bytes']} bytes, the log {log['used_bytes']} in {log['records']} records"
    )
    files = sum(path.stat().st_blocks * 512 for path in daemon.ssd.glob("segment-*"))
    assert files <= SSD_MIB << 20, f"the segments take {files} bytes"
    assert log["live_bytes"] + log["dead_bytes"] + log["free_bytes"] <= files
    usable: int = log["usable_bytes"]
    return usable


def verify(directory: Path) -> dict[str, Any]:
    """`flexkv verify`: a killed log has no damage, only an end, where a write may have been interrupted."""
    command = [
        sys.executable,
        "-c",
        "import sys; from flexkvd.cli import main; sys.exit(main())",
        "verify",
        "--json",
        str(directory),
    ]
    run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode in (0, 1), f"flexkv verify ended with {run.returncode}: {run.stderr[-2000:]}"
    facts: dict[str, Any] = json.loads(run.stdout)
    assert facts["total"]["damaged"].keys() <= {"torn record"}, f"flexkv verify found {facts['total']['damaged']}"
    return facts
