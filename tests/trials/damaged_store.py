"""Damages records under a stopped or a running daemon: a miss and a count, never the bytes; the tier stays up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import BlockKey
from flexkvd.cli.s3server import S3Server

from .blocks import GEOMETRY, Pages, chain, content
from .damage import CUTS, IN_PLACE, Damage
from .fleet import DaemonProcess
from .stored import Objects, Segments, Store

INTACT = 8
"""Blocks that are left alone: they must be served throughout."""
PREFIX = "trial"
AT_START = {"found_torn", "found_footers_damaged", "found_maps_damaged", "found_headers_damaged", "listed_damaged"}
"""What the tiers call damage they meet at start."""


@dataclass(frozen=True)
class Verdict:
    """What became of one damaged block.

    `counted` is what its load added to the counters; under a daemon that was stopped, all they count so far.
    """

    outcome: Outcome
    matched_after: int
    counted: float

    @property
    def is_miss(self) -> bool:
        """Not served now, and not promised again."""
        return self.outcome in (Outcome.MISS, Outcome.FAILED) and self.matched_after == 0


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

    def counts(self) -> float:
        """Everything that counts damage: faults of reads, and what the start met."""
        tier = self.daemon.status()["tiers"][self.tier]
        at_start = sum(count for name, count in tier.items() if name in AT_START)
        return at_start + sum(count for what, count in self.daemon.faults().items() if what.startswith(self.tier))

    def judge(self, damaged: dict[str, bytes], *, running: bool) -> dict[str, Verdict]:
        """Load every damaged block; raises if one byte comes that is not its own."""
        verdicts = {}
        with Client(self.daemon.socket, GEOMETRY, timeout_s=30) as client:
            pages = Pages(client, 1)
            for name, key in damaged.items():
                number = self._numbers[key]
                before = self.counts() if running else 0
                pages.wipe(0)
                [outcome] = client.load([BlockKey(key)], pages.pages(0, 1), pages.memory).wait().outcomes
                came, own = pages.block_bytes(0), content(number)
                strange = any(byte not in (0, right) for byte, right in zip(came, own, strict=True))
                assert not strange, f"{name}: bytes came that are not the block's"
                verdicts[name] = Verdict(outcome, client.match([BlockKey(key)]).length, self.counts() - before)
        return verdicts

    def check_intact(self, keys: list[bytes]) -> None:
        """The tier is up and serves every block that was left alone."""
        assert self.daemon.planner()["tiers"][self.tier]["up"]
        with Client(self.daemon.socket, GEOMETRY, timeout_s=30) as client:
            pages = Pages(client, 1)
            for number in (self._numbers[key] for key in keys):
                pages.wipe(0)
                loaded = client.load(chain(client, number, 1), pages.pages(0, 1), pages.memory).wait()
                assert loaded.outcomes == [Outcome.LOADED], f"block {number}, which nobody damaged: {loaded}"
                assert pages.wrong(0, [number]) == []


def judge_all(verdicts: Mapping[str, Verdict], *, running: bool) -> dict[str, float]:
    """Every one a miss, and every one counted, once."""
    served = {name: verdict for name, verdict in verdicts.items() if not verdict.is_miss}
    assert not served, f"served though damaged: {served}"
    counts = [verdict.counted for verdict in verdicts.values()]
    if running:
        uncounted = [name for name, verdict in verdicts.items() if verdict.counted != 1]
        assert not uncounted, f"not counted once: {uncounted}"
    else:
        assert max(counts) == len(verdicts), f"damages are not counted: {verdicts}"
    return {"records damaged": len(verdicts), "counted": sum(counts) if running else max(counts)}


def damage(
    folder: Path, server: S3Server | None = None, *, running: bool, cut: str = "in mid-chunk", in_place: bool = True
) -> dict[str, float]:
    """Apply every damage to a record of its own, on SSD or (with a server) in S3.

    On SSD only the last record of a file can be cut without harm to another: one kind of `cut` a run.
    """
    if server is not None:
        return judge_all(_damage(folder, server, running, _wrong_lengths() | IN_PLACE), running=running)
    (cut_folder := folder / "cut").mkdir()
    figures = judge_cut(_damage(cut_folder, None, running, {f"cut {cut}": _cut(CUTS[cut])}))
    if in_place:
        figures = judge_all(_damage(folder, None, running, IN_PLACE), running=running) | figures
    return figures


def judge_cut(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    """A miss, and counted: the record, or the segment that lost its end with it."""
    [verdict] = verdicts.values()
    assert verdict.is_miss, f"served though cut: {verdict}"
    assert verdict.counted, f"not counted: {verdict}"
    return {"records cut": 1}


def _wrong_lengths() -> dict[str, Damage]:
    """Objects cut to every length of `CUTS`, and longer by a byte and by a page."""
    longer: dict[str, Damage] = {
        "a byte more": lambda record, _other: record + bytes(1),
        "a page more": lambda record, _other: record + bytes(ALIGN_BYTES),
    }
    return {f"cut {name}": _cut(length) for name, length in CUTS.items()} | longer


def _cut(length: int) -> Damage:
    return lambda record, _other: record[:length]


def _damage(folder: Path, server: S3Server | None, running: bool, damages: Mapping[str, Damage]) -> dict[str, Verdict]:
    ground = Ground(folder, server)
    with ground.daemon as daemon:
        ground.fill(len(damages))
        daemon.stop()
        if running:
            daemon.start()
        damaged, intact = _apply(ground.store(), damages)
        if not running:
            daemon.start()
        verdicts = ground.judge(damaged, running=running)
        ground.check_intact(intact)
        daemon.settle()
        daemon.recount()
        daemon.stop()
        return verdicts


def _apply(store: Store, damages: Mapping[str, Damage]) -> tuple[dict[str, bytes], list[bytes]]:
    """Damage one record for every damage that changes anything; keys by name of damage, and keys left alone."""
    keys = store.keys()
    other, records = store.read(keys[0]), {key: store.read(key) for key in keys}
    damaged: dict[str, bytes] = {}
    for name, damage_of in damages.items():
        record = records[keys[-1]]
        if damage_of(record, other) != record:  # padding is zero already, and all share the header's fixed fields
            damaged[name] = keys.pop()
            store.write(damaged[name], damage_of(record, other))
    return damaged, keys
