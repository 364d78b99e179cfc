"""The SSD tier when a directory turns read-only, one stripe of several fails, or the power is cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault, LostRecord
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.diskio import DiskIo, open_disk_io
from flexkv_tiers.diskio.faulty import DiskFaultPlan, DiskOperation, DiskTrouble, FaultyIo
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.mender import RETRY_S_MIN
from tests.tiers.accounts import live_bytes
from tests.tiers.contract import KIB, Frames, block, content, copy_into, drain, opened, places_of
from tests.tiers.small_disk import ReadOnlySwitch, switchable

LENGTHS = (12 * KIB, 8 * KIB)
RECORD_BYTES = 24 * KIB
SEGMENT_BYTES = 256 * KIB
SEGMENTS = 8


class Books:
    """A store over faulty disks, and what it owes: acknowledged and not dropped since."""

    def __init__(self, directories: Sequence[Path], frames: Frames, seed: int = 0) -> None:
        self.frames = frames
        frames.rewind()
        self.source, self.target = frames.take(LENGTHS), frames.take(LENGTHS)
        self.plans = {place: DiskFaultPlan(seed + at) for at, place in enumerate(directories)}
        self.disks: list[FaultyIo] = []
        options = {"segment_bytes": SEGMENT_BYTES, "reserve_bytes": 0, "open_io": self._open_io, "listener": self}
        self.store = SsdStore(directories, SEGMENTS * SEGMENT_BYTES * len(directories), frames.arena, **options)
        self.owed: dict[BlockName, int] = {}
        self.maybe: set[BlockName] = set()
        """Asked for and not acknowledged, or its drop failed: it may be there or not."""
        self.faults: list[TierFault] = []
        self.up = True
        self.back = asyncio.Event()  # set when the store says that it takes writes again

    def _open_io(self, place: Path) -> DiskIo:
        disk = FaultyIo(open_disk_io(place, "threads", 4, direct=True), self.plans[place])
        self.disks.append(disk)
        return disk

    def changed(self, up: bool, reason: str) -> None:
        assert up is not self.up, reason
        self.up = up
        if up:
            self.back.set()

    def restored(self) -> None:
        """A disk may be full as it fails."""

    def appeared(self, batch: FoundBatch) -> None:
        raise AssertionError(batch)

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        for record in records:
            if self.owed.get(record.block) == record.location:
                del self.owed[record.block]

    async def put(self, number: int) -> bool:
        name = block(number)
        copy_into(self.frames, self.source, name, LENGTHS)
        try:
            self.owed[name] = await self.store.write(name, self.source)
        except TierFault as fault:
            self.faults.append(fault)
            self.maybe.add(name)
            return False
        return True

    async def drop(self, name: BlockName) -> None:
        location = self.owed.pop(name)
        try:
            await self.store.drop(name, location)
        except TierFault as fault:
            self.faults.append(fault)
            self.maybe.add(name)

    async def check(self) -> None:
        """Everything owed comes byte for byte, and the account is exact."""
        assert await live_bytes(self.store) == len(self.owed) * RECORD_BYTES
        assert self.store.status()["records"] == len(self.owed)
        for name, location in self.owed.items():
            assert await drain(self.store, name, location, self.target) == [0, 1]
            assert self.frames.bytes_of(self.target) == content(name, LENGTHS)

    def count_faults(self) -> None:
        """Every fault somebody met is in the status, by its kind."""
        told = self.store.status()["faults"]
        for fault in Fault:
            assert told[fault.value] == sum(each.fault is fault for each in self.faults)


def found_again(directories: Sequence[Path], frames: Frames, before: Books) -> None:
    """The next life has what was owed, perhaps what was in doubt, and nothing else; all of it is right."""

    async def life() -> None:
        after = Books(directories, frames)
        async with opened(after.store):
            after.owed = places_of([batch async for batch in after.store.found()])
            assert set(before.owed) <= set(after.owed) <= set(before.owed) | before.maybe
            await after.check()
            assert await after.put(1_000_000)
            await after.check()

    asyncio.run(life())


def test_a_directory_that_turns_read_only(tmp_path, frames):
    """No further segment can be made: after three IO faults the tier is down and says why, until it takes writes."""

    async def life(switch: ReadOnlySwitch) -> Books:
        books = Books([switch.directory], frames)
        async with opened(books.store):
            for number in range(20):
                assert await books.put(number)
            switch.read_only()
            refused = [number for number in range(20, 40) if not await books.put(number)]
            assert refused
            assert [fault.fault for fault in books.faults[:4]] == [Fault.IO] * 3 + [Fault.DOWN]
            assert all("Read-only file system" in fault.detail for fault in books.faults)
            assert not books.up
            assert "Read-only file system" in books.store.status()["down_because"]
            await books.drop(block(3))
            await books.check()
            books.count_faults()
            switch.writable()
            await books.back.wait()
            assert books.store.status()["up"]
            for number in range(40, 60):
                assert await books.put(number)
            await books.check()
        books.maybe.clear()  # nothing of a write without a place ever reached the disk
        return books

    with switchable(tmp_path) as switch:
        found_again([switch.directory], frames, asyncio.run(life(switch)))


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
def test_a_tier_whose_directories_all_fail_is_down_until_one_is_mended(tmp_path, frames, operation):
    """With EIO everywhere the store refuses at once and says why; one directory that works again is enough."""
    directories = [tmp_path / str(number) for number in range(2)]

    async def life() -> Books:
        books = Books(directories, frames)
        async with opened(books.store):
            for number in range(6):
                assert await books.put(number)
            for plan in books.plans.values():
                plan.rates = {operation: {DiskTrouble.ERROR: 1.0}}
            assert not any([await books.put(number) for number in range(10, 30)])
            told = books.store.status()
            assert (books.up, told["up"]) == (False, False)
            assert "Input/output error" in told["down_because"]
            assert all("Input/output error" in each["failing_because"] for each in told["directories"])
            assert books.faults[-1].fault is Fault.DOWN
            books.plans[directories[1]].rates = {}
            await books.back.wait()
            for number in range(30, 40):
                assert await books.put(number)
            await books.check()
            books.plans[directories[0]].rates = {}
        return books

    books = asyncio.run(life())
    books.maybe.clear()  # the disk was told at the end what it had refused before
    found_again(directories, frames, books)


def test_a_directory_emptied_underneath_is_down_for_good(tmp_path, frames):
    """Files and marker gone: no start would accept what is put there, so the tier stays down, and says what to do."""

    async def life() -> None:
        books = Books([tmp_path / "ssd"], frames)
        async with opened(books.store):
            for number in range(6):
                assert await books.put(number)
            for file in (tmp_path / "ssd").iterdir():
                file.unlink()
            assert not any([await books.put(number) for number in range(10, 20)])
            await asyncio.sleep(3 * RETRY_S_MIN)
            told = books.store.status()
            assert (books.up, told["up"]) == (False, False)
            assert "restart the daemon" in told["down_because"]
            await books.check()  # what is open is still read

    asyncio.run(life())


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC, DiskOperation.OPEN])
def test_one_failing_directory_of_three(tmp_path, frames, operation):
    """While one disk fails every write the others take them: few faults, exact books, and all is read again."""
    directories = [tmp_path / str(number) for number in range(3)]

    async def life() -> Books:
        books = Books(directories, frames)
        async with opened(books.store):
            for number in range(6):
                assert await books.put(number)
            books.plans[directories[1]].rates = {operation: {DiskTrouble.ERROR: 1.0}}
            written = sum([await books.put(number) for number in range(10, 70)])
            assert written >= 50
            assert {fault.fault for fault in books.faults} <= {Fault.IO}
            books.plans[directories[1]].rates = {}
            await books.check()
            books.count_faults()
        return books

    found_again(directories, frames, asyncio.run(life()))


@pytest.mark.parametrize("stripes", [1, 2])
@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_loses_nothing_acknowledged(tmp_path, frames, stripes, kept, seed):
    """Pages written since the last sync are lost by chance: what was acknowledged is there, what was dropped is not."""
    directories = [tmp_path / str(number) for number in range(stripes)]
    chance = random.Random(seed)

    async def life() -> Books:
        books = Books(directories, frames, seed)
        for plan in books.plans.values():
            plan.delay_s = (0.0, 0.002)
        async with opened(books.store):
            spans = [frames.take(LENGTHS) for _ in range(4)]
            todo = iter(range(400))

            async def work(source: int) -> None:
                for number in todo:
                    if len(books.owed) > 30 * stripes:
                        await books.drop(chance.choice(list(books.owed)))
                    name = block(number)
                    copy_into(frames, spans[source], name, LENGTHS)
                    books.maybe.add(name)
                    try:
                        location = await books.store.write(name, spans[source])
                    except TierFault:
                        return
                    books.owed[name] = location
                    books.maybe.discard(name)

            workers = [asyncio.create_task(work(number)) for number in range(4)]
            await asyncio.sleep(chance.uniform(0.02, 0.25))
            for disk in books.disks:
                await disk.crash(kept)
            await asyncio.gather(*workers)
        return books

    found_again(directories, frames, asyncio.run(life()))
