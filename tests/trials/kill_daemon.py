"""SIGKILL of the daemon at random moments of saves acknowledged at `ssd`: every acknowledged block is there afterwards.

The savers' clients live through all of it and reconnect by themselves; readers check with fresh clients.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.errors import ErrorCode, FlexKVError

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess, until

SAVERS = 3
CHAIN_BLOCKS = 8
BLOCKS_PER_SAVER = 1 << 20
RESAVE_SHARE = 0.2
KILL_S_MAX = 0.25
"""Latest moment of the kill, counted from the first acknowledgement of a life."""
OLD_CHAINS_CHECKED_MAX = 8
CHAINS_PER_LIFE_MAX = 24
SSD_MIB_PER_CYCLE = 64
"""Room for everything all savers can save in a cycle, or the tier would rightly evict."""

LOST = {ErrorCode.DAEMON_LOST, ErrorCode.DRAINING, ErrorCode.DEADLINE_EXCEEDED}
ACKNOWLEDGED = {Outcome.STORED, Outcome.PRESENT}


@dataclass
class Record:
    """What savers were promised: the first blocks of chains acknowledged whole; shared by threads."""

    chains: list[int] = field(default_factory=list)
    losses: int = 0
    resaves: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self) -> int:
        with self.lock:
            return len(self.chains)


class Saver(threading.Thread):
    """One client that saves chain after chain, whatever happens to the daemon."""

    def __init__(self, daemon: DaemonProcess, number: int, record: Record, seed: int, ack: str = "ssd") -> None:
        super().__init__(name=f"saver-{number}", daemon=True)  # a failed trial ends
        self.failure: BaseException | None = None
        self.go_on = threading.Event()
        self.chains_left = 0
        self._chance = random.Random(f"{seed} {number}")
        self._next = number * BLOCKS_PER_SAVER
        self._record = record
        self._over = False
        self._ack = ack
        self._client = Client(daemon.socket, GEOMETRY, timeout_s=10)
        self._client.connect()
        self._pages = Pages(self._client, CHAIN_BLOCKS)

    def run(self) -> None:
        mine: list[int] = []
        try:
            while self.go_on.wait(60) and not self._over:
                if self.chains_left <= 0:
                    time.sleep(0.002)
                    continue
                again = bool(mine) and self._chance.random() < RESAVE_SHARE
                first = self._chance.choice(mine) if again else self._next
                if self._save(first):
                    self.chains_left -= 1
                    with self._record.lock:
                        self._record.resaves += again
                        if not again:
                            self._record.chains.append(first)
                    mine.append(first)
                if not again:
                    self._next += CHAIN_BLOCKS
        except BaseException as failure:
            self.failure = failure
        finally:
            self._client.close()

    def end(self) -> None:
        self._over = True
        self.go_on.set()
        self.join(60)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def _save(self, first: int) -> bool:
        """Save one chain; True when every block of it was acknowledged."""
        self._pages.put_chain(0, first, CHAIN_BLOCKS)
        try:
            keys = chain(self._client, first, CHAIN_BLOCKS)
            places = self._pages.pages(0, CHAIN_BLOCKS)
            ticket = self._client.save(keys, places, self._pages.memory, ack=self._ack)
            return set(ticket.wait().outcomes) <= ACKNOWLEDGED
        except FlexKVError as error:
            if error.code not in LOST:
                raise
            with self._record.lock:
                self._record.losses += 1
            time.sleep(0.005)
            return False


def kill_daemon(folder: Path, *, cycles: int = 50, seed: int = 1) -> dict[str, float]:
    """Kill and restart `cycles` times; check what was acknowledged: each time the new and some old, at last all."""
    chance = random.Random(seed)
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": f"{cycles * SSD_MIB_PER_CYCLE}MiB"}}
    record, checked, start_s, new_counts = Record(), 0, [], []
    with DaemonProcess(folder, tables) as daemon:
        savers = [Saver(daemon, number, record, seed) for number in range(SAVERS)]
        for saver in savers:
            saver.start()
        try:
            for _ in range(cycles):
                before = record.count()
                for saver in savers:
                    saver.chains_left = CHAINS_PER_LIFE_MAX
                    saver.go_on.set()
                until(lambda before=before: record.count() > before, "savers are acknowledged again", 20)
                time.sleep(chance.uniform(0, KILL_S_MAX))
                daemon.kill()
                begun = time.monotonic()
                daemon.start()
                start_s.append(time.monotonic() - begun)
                with record.lock:
                    new, old = record.chains[before:], record.chains[:before]
                new_counts.append(len(new))
                checked += check(daemon, new + chance.sample(old, min(len(old), OLD_CHAINS_CHECKED_MAX)))
        finally:
            for saver in savers:
                saver.end()
        everything = check(daemon, record.chains)
        daemon.recount()
    return {
        "kills": cycles,
        "blocks acknowledged": everything,
        "blocks acknowledged in a life, least": CHAIN_BLOCKS * min(new_counts),
        "blocks checked after kills": checked,
        "calls that met a dead daemon": record.losses,
        "saves of known blocks": record.resaves,
        "start_s_max": max(start_s),
    }


def check(daemon: DaemonProcess, chains: list[int]) -> int:
    """Every block of these chains is a hit with its bytes; returns how many blocks that were."""
    with Client(daemon.socket, GEOMETRY, timeout_s=10) as client:
        pages = Pages(client, CHAIN_BLOCKS)
        for first in chains:
            keys = chain(client, first, CHAIN_BLOCKS)
            assert client.match(keys).length == CHAIN_BLOCKS, f"the acknowledged chain from block {first} is no hit"
            pages.wipe(0, CHAIN_BLOCKS)
            loaded = client.load(keys, pages.pages(0, CHAIN_BLOCKS), pages.memory).wait()
            assert loaded.length == CHAIN_BLOCKS, (
                f"the acknowledged chain from block {first} cannot be loaded: {loaded}"
            )
            wrong = pages.wrong(0, range(first, first + CHAIN_BLOCKS))
            assert wrong == [], f"acknowledged blocks {wrong} came back with other bytes"
    return CHAIN_BLOCKS * len(chains)
