"""Damages stored records under a stopped or a running daemon: a miss and a count, never the bytes; the tier stays up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from scripts.s3server import S3Server

from .blocks import GEOMETRY, Pages, chain, content
from .damage import CUTS, IN_PLACE, Damage, harmless
from .fleet import DaemonProcess
from .stored import Objects, Segments, Store

INTACT = 8
"""Blocks that are left alone: they must be served throughout."""
PREFIX = "trial"
AT_START = {"found_damaged", "found_duplicate", "listed_damaged"}
"""What the tiers call damage they meet at start."""
UNSEEN_AT_START = {"zero header", "zero whole record", "cut to nothing"}
"""On SSD these leave what a dropped record leaves: nothing tells that a record was there."""


@dataclass(frozen=True)
class Verdict:
    """What became of one damaged block: outcome of the first load, length of a match after it, and whether counted."""

    outcome: Outcome
    matched_after: int
    counted: float


class Ground:
    """One daemon over one tier below DRAM, and the records of that tier, for any number of damages.

    Every block is a chain of its own, so that no damage hides behind another.
    """

    def __init__(self, folder: Path, server: S3Server | None) -> None:
        self._folder = folder
        self._server = server
        self.tier = "ssd" if server is None else "s3"
        tables: dict[str, dict[str, object]] = {"ssd": {"directory": str(folder / "ssd"), "bytes": "64MiB"}}
        if server is not None:
            s3 = {"bucket": Objects.BUCKET, "prefix": f"{PREFIX}-{folder.name}", "endpoint_url": server.endpoint_url}
            tables = {"s3": {**s3, "region": "us-east-1"}}
        self.daemon = DaemonProcess(folder, tables, server.environment if server is not None else None)
        self._numbers: dict[bytes, int] = {}

    def fill(self, count: int) -> None:
        """Save `count` blocks and the intact ones, acknowledged in the tier."""
        with Client(self.daemon.socket, GEOMETRY, timeout_s=30) as client:
            pages = Pages(client, count + INTACT)
            tickets = []
            for number in range(count + INTACT):
                pages.put(number, number)
                keys = chain(client, number, 1)
                self._numbers[keys[0]] = number
                tickets.append(client.save(keys, pages.pages(number, 1), pages.memory, deadline_s=60, ack=self.tier))
            for ticket in tickets:
                assert ticket.wait().outcomes == [Outcome.STORED]

    def store(self) -> Store:
        if self._server is None:
            return Segments(self._folder / "ssd")
        return Objects(self._server, f"{PREFIX}-{self._folder.name}")

    def number(self, key: bytes) -> int:
        return self._numbers[key]

    def counts(self) -> float:
        """Everything that counts damage: faults of reads, and what the start met."""
        tier = self.daemon.status()["tiers"][self.tier]
        at_start = sum(count for name, count in tier.items() if name in AT_START)
        return at_start + sum(count for what, count in self.daemon.faults().items() if what.startswith(self.tier))

    def judge(self, key: bytes, counted_before: float) -> Verdict:
        """Load a damaged block; raises if one byte comes that is not its own."""
        number = self._numbers[key]
        with Client(self.daemon.socket, GEOMETRY, timeout_s=30) as client:
            pages = Pages(client, 1)
            keys = chain(client, number, 1)
            [outcome] = client.load(keys, pages.pages(0, 1), pages.memory).wait().outcomes
            came, own = pages.block_bytes(0), content(number)
            assert all(byte in (0, right) for byte, right in zip(came, own, strict=True)), "bytes of somebody else's"
            return Verdict(outcome, client.match(keys).length, self.counts() - counted_before)

    def check_intact(self, keys: list[bytes]) -> None:
        """The tier is up and serves every block that was left alone."""
        assert self.daemon.planner()["tiers"][self.tier]["up"]
        with Client(self.daemon.socket, GEOMETRY, timeout_s=30) as client:
            pages = Pages(client, 1)
            for number in (self._numbers[key] for key in keys):
                pages.wipe(0)
                loaded = client.load(chain(client, number, 1), pages.pages(0, 1), pages.memory).wait()
                assert loaded.outcomes == [Outcome.LOADED], f"intact block {number}: {loaded}"
                assert pages.wrong(0, [number]) == []


def damage_in_place(folder: Path, server: S3Server | None, *, running: bool) -> dict[str, Verdict]:
    """Apply every damage of `IN_PLACE` to a record of its own; the verdict on each, by its name."""
    return _damage(folder, server, running, IN_PLACE)


def cut_objects(folder: Path, server: S3Server, *, running: bool) -> dict[str, Verdict]:
    """Cut one object to every length of `CUTS`, and lengthen others by a byte and by a page."""

    def cut(length: int) -> Damage:
        return lambda record, _other: record[:length]

    def longer(length: int) -> Damage:
        return lambda record, _other: record + bytes(length)

    cuts = {f"cut {name}": cut(length) for name, length in CUTS.items()}
    return _damage(folder, server, running, cuts | {"a byte more": longer(1), "a page more": longer(4096)})


def cut_segment(folder: Path, name: str, *, running: bool) -> dict[str, Verdict]:
    """Cut a segment file within its last record (every other record stays whole)."""
    return _damage(folder, None, running, {f"cut {name}": lambda record, _other: record[: CUTS[name]]}, last=True)


def _damage(
    folder: Path, server: S3Server | None, running: bool, damages: Mapping[str, Damage], last: bool = False
) -> dict[str, Verdict]:
    ground = Ground(folder, server)
    with ground.daemon as daemon:
        ground.fill(len(damages))
        daemon.stop()
        if running:
            daemon.start()
        damaged, intact = _apply(ground.store(), damages, last, ground.number)
        if not running:
            daemon.start()
        verdicts = {}
        for name, key in damaged.items():
            verdicts[name] = ground.judge(key, ground.counts() if running else 0)
        ground.check_intact(intact)
        daemon.settle()
        daemon.recount()
        daemon.stop()
        return verdicts


def _apply(
    store: Store, damages: Mapping[str, Damage], last: bool, number: Callable[[bytes], int]
) -> tuple[dict[str, bytes], list[bytes]]:
    """Damage one record for every damage that changes anything; keys by name of damage, and keys left alone."""
    keys = store.keys() if last else sorted(store.keys(), key=number)
    other, records = store.read(keys[0]), {key: store.read(key) for key in keys}
    damaged: dict[str, bytes] = {}
    for name, damage in damages.items():
        key = keys[-1]
        if not harmless(damage, records[key], other):
            damaged[name] = keys.pop()
            store.write(key, damage(records[key], other))
    return damaged, keys
