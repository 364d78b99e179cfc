"""Two daemons on one bucket, both writing, one of them killed again and again.

Afterwards each serves every block the other was acknowledged, with the right bytes, and every object of
the bucket is whole.
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
from flexkvd.cli.s3server import S3Server

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess, until
from .whole_bucket import verify_bucket

CHAIN_BLOCKS = 16
SAVERS = 2
"""Per daemon; their saves meet in packs."""
SHARED_SHARE = 0.25
"""Of the chains: both daemons save them."""
REFRESH_S = 1.0
VISIBLE_S_MAX = 60.0
"""Two rounds and the reads of new indexes, on a machine that may be busy with anything."""
KILL_S_MAX = 0.2
LOST = {ErrorCode.DAEMON_LOST, ErrorCode.DRAINING, ErrorCode.DEADLINE_EXCEEDED}
ACKNOWLEDGED = {Outcome.STORED, Outcome.PRESENT}


@dataclass
class Work:
    """Chains one daemon is still to save, and those it has acknowledged; shared by its savers."""

    left: list[int]
    acknowledged: list[int] = field(default_factory=list)
    losses: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return not self.left


class Saver(threading.Thread):
    """One client that saves its daemon's chains, each until it is acknowledged at `s3`."""

    def __init__(self, daemon: DaemonProcess, work: Work) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self._work = work
        self._client = Client(daemon.socket, GEOMETRY, timeout_s=60)
        self._client.connect()
        self._pages = Pages(self._client, CHAIN_BLOCKS)

    def run(self) -> None:
        try:
            while (first := self._take()) is not None:
                self._pages.put_chain(0, first, CHAIN_BLOCKS)
                while not self._save(first):
                    time.sleep(0.01)
        except BaseException as failure:
            self.failure = failure
        finally:
            self._client.close()

    def _take(self) -> int | None:
        with self._work.lock:
            return self._work.left.pop() if self._work.left else None

    def _save(self, first: int) -> bool:
        try:
            keys, places = chain(self._client, first, CHAIN_BLOCKS), self._pages.pages(0, CHAIN_BLOCKS)
            ticket = self._client.save(keys, places, self._pages.memory, deadline_s=60, ack="s3")
            stored = set(ticket.wait().outcomes) <= ACKNOWLEDGED
        except FlexKVError as error:
            if error.code not in LOST:
                raise
            stored = False
        with self._work.lock:
            if stored:
                self._work.acknowledged.append(first)
            else:
                self._work.losses += 1
        return stored


def shared_bucket(
    folder: Path, server: S3Server | None = None, *, blocks: int = 10_000, kills: int = 10, seed: int = 1
) -> dict[str, float]:
    """Save `blocks` over two daemons, kill the second `kills` times meanwhile, then have each load the other's."""
    if server is None:
        with S3Server(folder / "server") as own:
            return shared_bucket(folder, own, blocks=blocks, kills=kills, seed=seed)
    chance, prefix = random.Random(seed), f"shared-{folder.name}"
    first, second = (_daemon(folder / name, server, prefix, owner=name == "first") for name in ("first", "second"))
    works = _divide(blocks // CHAIN_BLOCKS, chance)
    with first, second:
        savers = [
            Saver(daemon, work) for daemon, work in zip((first, second), works, strict=True) for _ in range(SAVERS)
        ]
        for saver in savers:
            saver.start()
        killed = _kill_again_and_again(second, works[1], kills, chance)
        for saver in savers:
            saver.join(600)
            assert not saver.is_alive()
            assert saver.failure is None, saver.failure
        until(second.ready, "the killed one has listed the bucket")
        found_s = _save_and_find(first, second, CHAIN_BLOCKS * (blocks // CHAIN_BLOCKS), works[0])
        begun = time.monotonic()
        for daemon, work in ((second, works[0]), (first, works[1])):
            _check(daemon, work.acknowledged)
        check_s = time.monotonic() - begun
        packs = [daemon.status()["tiers"]["s3"]["packs_written"] for daemon in (first, second)]
        for daemon in (first, second):
            daemon.settle()
            daemon.recount()
    whole = verify_bucket(server, prefix)
    acknowledged = {number for work in works for number in work.acknowledged}
    assert len(acknowledged) * CHAIN_BLOCKS <= whole["blocks"]
    return {
        "blocks acknowledged": CHAIN_BLOCKS * len(acknowledged),
        "blocks loaded from the other": CHAIN_BLOCKS * sum(len(work.acknowledged) for work in works),
        "blocks acknowledged by both": CHAIN_BLOCKS * len(set(works[0].acknowledged) & set(works[1].acknowledged)),
        "kills": killed,
        "calls that met a dead daemon": sum(work.losses for work in works),
        "found_by_the_other_after_s": found_s,
        "check_s": check_s,
        "packs written in the last lives": sum(packs),
        **{f"bucket: {name}": count for name, count in whole.items()},
    }


def _daemon(folder: Path, server: S3Server, prefix: str, *, owner: bool) -> DaemonProcess:
    folder.mkdir()
    place = {"bucket": "flexkv", "prefix": prefix, "endpoint_url": server.endpoint_url, "region": "us-east-1"}
    s3 = {**place, "sign_payload": "never", "refresh_s": REFRESH_S, "owner": owner, "writes_in_flight_max": 64}
    tables = {"s3": s3, "limits": {"demotions_in_flight_max": 64}}
    return DaemonProcess(folder, tables, server.environment)


def _divide(chains: int, chance: random.Random) -> tuple[Work, Work]:
    """Chains for each daemon, in an order of its own; a share of them for both."""
    numbers = [CHAIN_BLOCKS * at for at in range(chains)]
    shared = max(1, int(chains * SHARED_SHARE))
    middle = shared + (chains - shared) // 2
    works = Work(numbers[:middle]), Work(numbers[:shared] + numbers[middle:])
    for work in works:
        chance.shuffle(work.left)
    return works


def _kill_again_and_again(daemon: DaemonProcess, work: Work, kills: int, chance: random.Random) -> int:
    """SIGKILL at random moments, the first at once and the rest spread over the work; how many there were."""
    total = len(work.left)
    for killed in range(kills):
        until(
            lambda killed=killed: work.over or total - len(work.left) >= total * killed // (kills + 1),
            "work goes on",
            600,
            0.01,
        )
        if work.over:
            return killed
        time.sleep(chance.uniform(0, KILL_S_MAX))
        daemon.kill()
        daemon.launch()  # the next kill may come while it still lists
        until(daemon.listens, "it serves again")
    return kills


def _save_and_find(saver: DaemonProcess, finder: DaemonProcess, number: int, work: Work) -> float:
    """Save one chain more; the seconds from its acknowledgement until the other daemon has it."""
    work.left.append(number)
    last = Saver(saver, work)
    last.start()
    last.join(60)
    assert last.failure is None, last.failure
    with Client(finder.socket, GEOMETRY, timeout_s=60) as client:
        keys = chain(client, number, CHAIN_BLOCKS)
        return until(lambda: client.match(keys).length == CHAIN_BLOCKS, "the last chain is a hit", VISIBLE_S_MAX)


def _check(daemon: DaemonProcess, firsts: list[int]) -> None:
    """Every one of these chains is a hit with its bytes, now or soon."""
    with Client(daemon.socket, GEOMETRY, timeout_s=60) as client:
        pages = Pages(client, CHAIN_BLOCKS)
        for first in firsts:
            keys = chain(client, first, CHAIN_BLOCKS)
            until(lambda keys=keys: client.match(keys).length == CHAIN_BLOCKS, f"chain {first} is a hit", VISIBLE_S_MAX)
            pages.wipe(0, CHAIN_BLOCKS)
            loaded = client.load(keys, pages.pages(0, CHAIN_BLOCKS), pages.memory, deadline_s=60).wait()
            assert loaded.length == CHAIN_BLOCKS, (
                f"chain {first}, acknowledged by the other, cannot be loaded: {loaded}"
            )
            wrong = pages.wrong(0, range(first, first + CHAIN_BLOCKS))
            assert wrong == [], f"acknowledged blocks {wrong} came back with other bytes"
