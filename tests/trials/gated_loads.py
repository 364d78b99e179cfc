"""SIGKILL and SIGSTOP of the daemon under many gated loads: every gate is open within a second, and none lies.

One client lives through all of it. It looks at its gates all the while: where one says that its chunk is there, the
rows are read at once and compared.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from flexkv_py.client import Client, Gates, GateState, Ticket
from flexkv_py.errors import ErrorCode, FlexKVError
from tests.service.gated import CHUNKS, GatedWorker

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess

LOADS = 16
CHAIN_BLOCKS = 8
CHAINS = 32
LOST = {ErrorCode.DAEMON_LOST, ErrorCode.DEADLINE_EXCEEDED}
OPEN_S_MAX = 1.0
"""Of a kill, or of the deadline of the last load under a daemon that stands still."""
DEADLINE_S = 10.0
SHORT_DEADLINE_S = 0.3
DELAY_S_MAX = 0.1
STOP_EVERY = 4
"""Of so many cycles one stops the daemon instead of killing it."""


class GatedPages(Pages, GatedWorker):
    """Places for every load at a time, each with gates of its own."""


class Loader(threading.Thread):
    """Loads on all gates at once, again and again, until the daemon is lost."""

    def __init__(self, client: Client, pages: GatedPages, expected: dict[int, list[bytes]], chance: random.Random):
        super().__init__(name="gated-loads", daemon=True)  # a failed trial ends
        self.seen: Counter[GateState] = Counter()
        self.rounds = threading.Event()
        """Set once a round is under way."""
        self.deadline_s = DEADLINE_S
        self.opened_s = self.deadline_end_s = 0.0
        self.shut_last = 0
        """How many gates were shut when one was last."""
        self.failure: BaseException | None = None
        self._client, self._pages, self._expected, self._chance = client, pages, expected, chance

    def run(self) -> None:
        try:
            while self._round():
                pass
        except BaseException as failure:
            self.failure = failure

    def _round(self) -> bool:
        """One load on each array; False when the daemon was lost, and then all gates are open."""
        firsts: dict[Gates, int] = {}
        tickets: list[Ticket] = []
        lost = False
        for place, gates in enumerate(self._pages.arrays):
            first = self._chance.randrange(CHAINS) * CHAIN_BLOCKS
            self._pages.wipe(place * CHAIN_BLOCKS, CHAIN_BLOCKS)
            self.deadline_end_s = time.monotonic() + self.deadline_s
            firsts[gates] = first
            try:
                tickets.append(self._load(place, first, gates))
            except FlexKVError as error:
                if error.code not in LOST:
                    raise
                lost = True
                break
        self.rounds.set()
        self._watch(firsts)
        return not (self._void(tickets) or lost)

    def _load(self, place: int, first: int, gates: Gates) -> Ticket:
        keys = chain(self._client, first, CHAIN_BLOCKS)
        places = self._pages.pages(place * CHAIN_BLOCKS, CHAIN_BLOCKS)
        return self._client.load(keys, places, self._pages.memory, self.deadline_s, gates)

    def _watch(self, firsts: dict[Gates, int]) -> None:
        """Look until all are open; the rows behind one that opens are read at once."""
        shut = {(gates, chunk) for gates in firsts for chunk in CHUNKS}
        while shut:
            for gates, chunk in list(shut):
                state = gates.state(chunk)
                if state is GateState.SHUT:
                    self.shut_last = len(shut)
                    continue
                shut.discard((gates, chunk))
                self.opened_s = time.monotonic()
                self.seen[state] += 1
                if state is GateState.OPEN:
                    self._check(gates, chunk, firsts[gates])

    def _check(self, gates: Gates, chunk: int, first: int) -> None:
        place = self._pages.arrays.index(gates) * CHAIN_BLOCKS
        for offset in range(CHAIN_BLOCKS):
            found = self._pages.chunk_bytes(place + offset, chunk)
            assert found == self._expected[first + offset][chunk], f"chunk {chunk} of block {first + offset} is wrong"

    def _void(self, tickets: list[Ticket]) -> bool:
        """Whether a ticket is lost; each of them says so, or how it ended."""
        lost = False
        for ticket in tickets:
            try:
                assert ticket.wait(timeout_s=0 if lost else 2).done
            except FlexKVError as error:
                if error.code not in LOST:
                    raise
                lost = True
        return lost


def gated_loads(folder: Path, *, cycles: int = 10, seed: int = 1, open_s_max: float = OPEN_S_MAX) -> dict[str, float]:
    """Kill or stop the daemon `cycles` times at random moments of the loads, and start it or let it go on."""
    chance = random.Random(seed)
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": "64MiB"}}
    seen: Counter[GateState] = Counter()
    open_ms, shut = [], []
    with DaemonProcess(folder, tables) as daemon, Client(daemon.socket, GEOMETRY, timeout_s=2) as client:
        pages = GatedPages(client, LOADS * CHAIN_BLOCKS, arrays=LOADS)
        expected = _save_all(client, pages)
        for cycle in range(cycles):
            stops = cycle % STOP_EVERY == STOP_EVERY - 1
            loader = Loader(client, pages, expected, chance)
            loader.deadline_s = SHORT_DEADLINE_S if stops else DEADLINE_S
            open_ms.append(1000 * _lose(daemon, loader, chance.uniform(0, DELAY_S_MAX), stops=stops))
            shut.append(loader.shut_last)
            seen += loader.seen
            assert open_ms[-1] < 1000 * open_s_max, f"the last gate opened {open_ms[-1]:.0f} ms late"
            daemon.process.send_signal(signal.SIGCONT) if stops else daemon.start()
            client.connect()
        daemon.recount()
    return {
        "daemons lost": cycles,
        "gates opened": seen[GateState.OPEN],
        "gates failed": seen[GateState.FAILED],
        "gates shut at a loss, median": sorted(shut)[cycles // 2],
        "last gate open after ms, median": sorted(open_ms)[cycles // 2],
        "last gate open after ms, max": max(open_ms),
    }


def _save_all(client: Client, pages: GatedPages) -> dict[int, list[bytes]]:
    """Every chain at `ssd`; what the chunks of each block hold."""
    expected = {}
    for number in range(CHAINS):
        first = number * CHAIN_BLOCKS
        pages.put_chain(0, first, CHAIN_BLOCKS)
        for offset in range(CHAIN_BLOCKS):
            expected[first + offset] = [pages.chunk_bytes(offset, chunk) for chunk in CHUNKS]
        keys = chain(client, first, CHAIN_BLOCKS)
        done = client.save(keys, pages.pages(0, CHAIN_BLOCKS), pages.memory, ack="ssd").wait()
        assert done.length == CHAIN_BLOCKS, done
    return expected


def _lose(daemon: DaemonProcess, loader: Loader, delay_s: float, *, stops: bool) -> float:
    """Lose the daemon under the loader; how long after it, or after its loads' deadline, the last gate opened."""
    loader.start()
    assert loader.rounds.wait(30)
    time.sleep(delay_s)
    assert daemon.process is not None
    lost_s = time.monotonic()
    daemon.process.send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
    loader.join(30)
    if not stops:
        daemon.process.wait()
    assert not loader.is_alive(), "a gate is still shut"
    if loader.failure is not None:
        raise loader.failure
    return loader.opened_s - (max(lost_s, loader.deadline_end_s) if stops else lost_s)
