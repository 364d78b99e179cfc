"""Lives of one SSD store: opened, used, closed or cut off, damaged while nobody looks, and opened again.

Owns the store, its disks and the account; what callers do in a life is `operations`'.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from flexkv_py.core.messages import BlockName, LostRecord
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, key_of_hash, namespace_digest
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.diskio import DiskIo
from flexkv_tiers.diskio.faulty import DiskOperation, FaultyIo
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.budget import PARTS
from flexkv_tiers.ssd.segment import SegmentState
from tests.service.virtual_loop import VirtualLoop
from tests.sim.names import CUTS
from tests.sim.ssdlog.damage import damage
from tests.sim.ssdlog.disk import CountingPlan, SimulatedIo
from tests.sim.ssdlog.frames import LogFrames
from tests.sim.ssdlog.model import LogModel
from tests.sim.ssdlog.settings import Harm, make_settings
from tests.sim.violation import Violation

KEPT_SHARES = (0.0, 0.5, 0.9)
"""Which part of the unsynced pages may survive a power cut."""


class LogWorld:
    """One world. Everything that is left to chance comes from `seed`."""

    def __init__(self, seed: int, root: Path) -> None:
        self.loop = VirtualLoop()
        self.chance = random.Random(f"ssd-log {seed}")
        self.settings = make_settings(self.chance)
        self.model = LogModel(lies=self.settings.harm is Harm.LIES)
        self.plan = CountingPlan(seed)
        self.frames = LogFrames(self.settings.callers + 1)
        self.cuts = dict(zip(range(2), self.chance.sample(CUTS, 2), strict=True))
        self.names, self._cut_of = self._make_names()
        self.digest = xxh3_128()
        self.history: list[tuple[float, str, BlockName | None]] = []
        self.life = self.step = 0
        self.up = True
        self.crashed = False
        self.closing = False
        self.failure: BaseException | None = None
        self._directories = [root / str(number) for number in range(self.settings.directories)]
        self._ios: list[FaultyIo] = []
        self.recovery: asyncio.Task[None] | None = None
        self._removed = False  # a segment at the end of this life, because its disk would not say what is dead in it
        self.store = self._make_store()

    def _make_names(self) -> tuple[list[BlockName], dict[bytes, tuple[int, ...]]]:
        names, cut_of = [], {}
        for space, cut in self.cuts.items():
            digest = namespace_digest(b"simulated model", "tenant", space)
            cut_of[bytes(digest)] = cut
            for number in range(self.settings.names // 2):
                key = key_of_hash(digest, ROOT, b"%d" % number)
                names.append(BlockName(digest, number % 2, key, ROOT))
        return names, cut_of

    def cut(self, name: BlockName) -> tuple[int, ...]:
        """Lengths of a block's chunks."""
        if bytes(name.namespace) not in self._cut_of:
            raise Violation("found a record of a namespace nobody has", name)
        return self._cut_of[bytes(name.namespace)]

    def record_bytes(self, name: BlockName) -> int:
        return ALIGN_BYTES + sum(self.cut(name))

    @property
    def now_s(self) -> float:
        return self.loop.time()

    def note(self, what: str, name: BlockName | None = None) -> None:
        """Into the digest, and into the story that a failure tells."""
        self.history.append((self.now_s, what, name))
        self.digest.update(f"{self.now_s:.9f} {what} {name.key.hex() if name else ''}".encode())

    # ------------------------------------------------------------------ lives

    def _make_store(self) -> SsdStore:
        settings = self.settings
        return SsdStore(
            self._directories,
            settings.share_bytes * settings.directories,
            self.frames.arena,
            listener=self,
            segment_bytes=settings.segment_bytes,
            amplification_max=settings.amplification_max,
            reserve_bytes=0,
            open_io=self._open_io,
        )

    def _open_io(self, _directory: Path) -> DiskIo:
        self._ios.append(FaultyIo(SimulatedIo(self.chance), self.plan))
        return self._ios[-1]

    async def open(self) -> None:
        """Begin a life; its recovery goes on beside what callers do."""
        self.life += 1
        self.crashed = self.closing = False
        self.up = True
        self._ios.clear()
        self.plan.rates = {}  # a directory that cannot be opened is refused, which is nothing to simulate
        self.store = self._make_store()
        await self.store.start()
        self.plan.rates = self.settings.rates
        self.note(f"life {self.life}")
        self.recovery = asyncio.create_task(self._recover())
        self.recovery.add_done_callback(self._recovered)

    def _recovered(self, recovery: asyncio.Task[None]) -> None:
        self.failure = self.failure or (None if recovery.cancelled() else recovery.exception())

    async def _recover(self) -> None:
        met = self.plan.met[DiskOperation.READ]
        try:
            async for batch in self.store.found():
                first = BlockName(batch.namespace, batch.shard, batch.blocks[0].key, batch.blocks[0].parent)
                for name in self.model.found(batch, self.cut(first), self.record_bytes(first)):
                    self.note("found", name)
                if self.chance.random() < 0.5:
                    await asyncio.sleep(self.chance.uniform(0, 5e-3))
        except TierFault:
            if not self.closing:
                raise
            ended = False
        else:
            ended = not self.crashed
        if self.plan.met[DiskOperation.READ] != met:
            self.model.met_failed_reads()
        if ended:
            self.model.end_found()

    async def close(self) -> None:
        """End a life as a daemon does."""
        self.closing = True
        self.note("close")
        before = self._files()
        await self.store.close()
        self._removed = bool(before - self._files())
        await self._end_life()
        self.model.cut_while_let_go(self._condemned())

    async def crash(self) -> None:
        """Cut the power: what no sync covered is kept or lost page by page."""
        self.closing = self.crashed = True
        self.note("crash")
        kept = self.chance.choice(KEPT_SHARES)
        let_go, owed = self._being_let_go(), self._owed()
        await asyncio.gather(*(io.crash(kept) for io in self._ios))
        await self.store.close()
        await self._end_life()
        self.model.cut_while_let_go(let_go | self._condemned())
        self.model.cut_while_owed(owed)

    def _files(self) -> set[Path]:
        return {file for directory in self._directories for file in directory.glob("segment*")}

    def _being_let_go(self) -> set[int]:
        """Locations of the records in segments that are being emptied."""
        log = self.store._log  # nobody is told of these before they are gone
        emptied = [each for each in log.segments if each.state is SegmentState.RECLAIMING]
        return {log.table.location(slot) for segment in emptied for slot in log.live_slots(segment)}

    def _condemned(self) -> set[int]:
        """Locations of the records the store wanted to let go of, and its disk would not say that they are dead."""
        if self.settings.harm is not Harm.FAULTS:
            return set()
        log = self.store._log
        live = [(segment, slot) for segment in log.segments for slot in log.live_slots(segment)]
        return {log.table.location(slot) for segment, slot in live if segment.dead.is_dead(log.table.place(slot)[1])}

    def _owed(self) -> list[BlockName | None]:
        """Whose records lie where the store could not get its disk to say that they are dead."""
        return [block for segment in self.store._log.segments for block in segment.owed.values()]

    async def _end_life(self) -> None:
        assert self.recovery is not None
        await self.recovery

    def end_life(self) -> None:
        """Nothing runs any more."""
        self.model.end_life(untold=self._removed or bool(self.store.status()["records_let_go_unnamed"]))
        self._removed = False
        if self.settings.harm is Harm.DAMAGE and self.chance.random() < 0.5:
            for what, doubted in damage(self.chance.choice(self._directories), self.chance):
                self.note(what)
                self.model.doubted |= doubted

    # --------------------------------------------------------------- listener

    def changed(self, up: bool, reason: str) -> None:
        if up is self.up or not (self.settings.harm is Harm.FAULTS or self.crashed):
            self.failure = Violation(f"the SSD tier says that it is up: {up}, {reason}")
        self.up = up
        self.note(f"up: {up}")

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        assert reason
        for record in records:
            self.note("lost", record.block)
        try:
            self.model.lost(records)
        except Violation as violation:  # raised here it would end the store's own task
            self.failure = violation

    def restored(self) -> None:
        if self.settings.harm is not Harm.FAULTS:
            self.failure = Violation("a disk that was never full has room again")
        self.note("restored")

    def appeared(self, batch: FoundBatch) -> None:
        raise Violation(f"{len(batch.blocks)} records appeared in a tier nobody else writes to")

    # ---------------------------------------------------------------- account

    def check_written(self, name: BlockName, location: int) -> None:
        """What holds of a record that was acknowledged just now: no start will pass it over."""
        log = self.store._log
        slot = log.table.slot(location)
        assert slot is not None
        index, page = log.table.place(slot)
        if log.segments[index].dead.is_dead(page):
            raise Violation("a record was written to a place that is marked dead", name)

    def check_limits(self) -> None:
        """What holds at every moment: the account adds up, the files stay within the capacity."""
        told: Any = self.store.status()
        for each in (told, *told["directories"]):
            parts = [each[f"{part}_bytes"] for part in ("live", "dead", "free")]
            if min(parts) < 0:
                raise Violation(f"live, dead and free bytes are {parts}")
        total = sum(each["live_bytes"] for each in told["directories"])
        writing = sum(each["writing_bytes"] for each in told["directories"])
        if not told["live_bytes"] == total == told["used_bytes"] + writing:
            raise Violation(f"{told['live_bytes']} live bytes, {told['used_bytes']} used, {writing} being written")
        for directory in self._directories:
            there = sum(file.stat().st_size for file in directory.glob("segment*"))
            if there > self.settings.share_bytes:
                raise Violation(f"{there} bytes of segments, the capacity is {self.settings.share_bytes}")

    def check_account(self) -> None:
        """What holds when no operation runs: every byte that is used is of a record somebody knows."""
        self.check_limits()
        told: Any = self.store.status()
        known = [*self.model.kept, *(name for name, _ in self.model.leaving)]
        known_bytes = sum(map(self.record_bytes, known))
        if told["used_bytes"] != known_bytes and not told["records_let_go_unnamed"]:
            raise Violation(f"{told['used_bytes']} bytes are used, callers know of {known_bytes}")
        part_bytes = self.store.usable_bytes // PARTS
        share = self.settings.amplification_max - 1
        slack_bytes = self.settings.directories * self.settings.segment_bytes
        if told["rewritten_bytes"] > share * (told["written_bytes"] + part_bytes) + slack_bytes:
            raise Violation(f"{told['rewritten_bytes']} bytes rewritten for {told['written_bytes']} written")
