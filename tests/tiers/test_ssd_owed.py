"""What an SSD disk would not do, and what no later life may find because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import HEADER_MAGIC
from flexkv_tiers.diskio import DiskIo, open_disk_io
from flexkv_tiers.diskio.faulty import WELL, DiskFaultPlan, DiskOperation, DiskTrouble, DiskVerdict, FaultyIo
from flexkv_tiers.ssd import SsdStore, mender
from flexkv_tiers.ssd.format import MAP_BIT_PAGES, PAGE_BYTES
from tests.tiers.contract import KIB, Frames, block, opened, places_of
from tests.tiers.segment_files import Place, records, regions

LENGTHS = (12 * KIB, 8 * KIB)
SEGMENT_BYTES = 256 * KIB
ERROR = DiskVerdict(DiskTrouble.ERROR)
ALWAYS = {DiskOperation.SYNC: {DiskTrouble.ERROR: 1.0}}
OTHERS = [block(number) for number in range(1, 4)]
SETTLED_S_MAX = 10.0


class Life:
    """One life of a store in `directories`, each on a disk that fails as its plan says."""

    def __init__(self, directories: list[Path], frames: Frames) -> None:
        frames.rewind()
        self._frames = frames
        self.plans = {place: DiskFaultPlan() for place in directories}
        self.disks: list[FaultyIo] = []
        options = {"segment_bytes": SEGMENT_BYTES, "reserve_bytes": 0, "open_io": self._open_io}
        self.store = SsdStore(directories, 8 * SEGMENT_BYTES * len(directories), frames.arena, **options)

    def _open_io(self, place: Path) -> DiskIo:
        self.disks.append(FaultyIo(open_disk_io(place, "threads", 2, direct=True), self.plans[place]))
        return self.disks[-1]

    async def write(self, name: BlockName) -> int:
        return await self.store.write(name, self._frames.fill(name, LENGTHS))

    async def found(self) -> set[BlockName]:
        return set(places_of([batch async for batch in self.store.found()]))

    async def settled(self) -> None:
        """The disk has done what it was told."""
        end = asyncio.get_running_loop().time() + SETTLED_S_MAX
        owed = self.store.status()["places_owed"]
        while owed and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
            owed = self.store.status()["places_owed"]
        assert not owed

    async def seal(self) -> None:
        """The first directory's segment is sealed, whatever it owes."""
        self.store._roller.retire_all(0)
        await self.store._roller.close()

    async def cut(self) -> None:
        """The power fails, and the disk keeps all it was given."""
        for disk in self.disks:
            await disk.crash(1.0)


def live(directories: list[Path], frames: Frames, scene: Callable[[Life], Awaitable[None]]) -> None:
    async def run() -> None:
        life = Life(directories, frames)
        async with opened(life.store):
            await scene(life)

    asyncio.run(run())


async def finds_only_others(life: Life) -> None:
    assert await life.found() == set(OTHERS)


def test_what_one_start_could_not_read_no_later_one_finds(tmp_path: Path, frames: Frames) -> None:
    """A scan meets EIO: what it misses is a miss for good, or a drop of what is saved anew would bring it back. What is
    saved in that life and not dropped stays.
    """

    async def first(life: Life) -> None:
        await life.write(block(9))
        await life.write(block(0))
        await life.cut()

    async def second(life: Life) -> None:
        assert await life.found() == set()
        assert life.store.status()["found_unreadable"] == 1
        location = await life.write(block(0))
        await life.store.drop(block(0), location)
        await life.write(block(1))
        await life.cut()

    async def third(life: Life) -> None:
        assert await life.found() == {block(1)}

    live([tmp_path], frames, first)

    async def start_second() -> None:
        life = Life([tmp_path], frames)
        reads_before_the_scan = [WELL] * 3  # the segment's header, its maps, its trailer
        life.plans[tmp_path].script(DiskOperation.READ, *reads_before_the_scan, ERROR)
        async with opened(life.store):
            await second(life)

    asyncio.run(start_second())
    live([tmp_path], frames, third)


def test_a_failed_write_is_marked_dead_as_soon_as_the_disk_lets_us(tmp_path: Path, frames: Frames) -> None:
    """A record is whole, but not its sync, and its mark fails: that is asked again, and a restart finds nothing."""

    async def first(life: Life) -> None:
        life.plans[tmp_path].script(DiskOperation.SYNC, ERROR)
        life.plans[tmp_path].script(DiskOperation.WRITE, WELL, WELL, ERROR)  # segment, record, mark
        with pytest.raises(TierFault):
            await life.write(block(0))
        assert life.store.status()["places_owed"] == 1
        await life.settled()
        await life.cut()

    async def second(life: Life) -> None:
        assert await life.found() == set()

    live([tmp_path], frames, first)
    live([tmp_path], frames, second)


def test_a_drop_waits_for_the_places_its_block_is_owed_at(tmp_path: Path, frames: Frames) -> None:
    """A block saved well after a write of it had failed elsewhere is not dropped while that other place is owed."""
    directories = [tmp_path / str(number) for number in range(2)]

    async def first(life: Life) -> None:
        for name in OTHERS:
            await life.write(name)
        for ill in directories:  # the next write goes to one of them, the one after that to the other
            life.plans[ill].rates = ALWAYS
        with pytest.raises(TierFault):
            await life.write(block(0))
        [ill] = {segment.disk for segment in life.store._owed.segments}
        life.plans[directories[1 - ill]].rates = {}
        location = await life.write(block(0))
        with pytest.raises(TierFault) as refused:
            await life.store.drop(block(0), location)
        assert refused.value.fault is Fault.IO
        life.plans[directories[ill]].rates = {}
        await life.store.drop(block(0), location)
        await life.cut()

    live(directories, frames, first)
    live(directories, frames, finds_only_others)


def test_a_disk_that_refuses_to_the_end_loses_the_segment(
    tmp_path: Path, frames: Frames, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be marked dead before the store closes is gone with its file, and the log says so."""

    async def first(life: Life) -> None:
        await life.write(block(5))
        life.plans[tmp_path].rates = ALWAYS
        with pytest.raises(TierFault):
            await life.write(block(0))

    async def second(life: Life) -> None:
        assert await life.found() == set()
        life.plans[tmp_path].rates = {}
        await life.write(block(0))

    live([tmp_path], frames, first)
    assert "segment 000001 is removed" in caplog.text
    live([tmp_path], frames, second)


def test_a_record_behind_a_place_marked_dead_outlives_a_restart(tmp_path: Path, frames: Frames) -> None:
    """A damaged header where the log ends is marked dead, and whatever shares its bit: the next record shares none."""

    async def first(life: Life) -> None:
        await life.write(block(1))
        await life.cut()

    async def second(life: Life) -> None:
        assert await life.found() == {block(1)}
        assert life.store.status()["found_torn"] == 1
        await life.write(block(2))

    async def third(life: Life) -> None:
        assert await life.found() == {block(1), block(2)}

    live([tmp_path], frames, first)
    [(_, place)] = records(tmp_path)
    behind = place.offset + place.length + PAGE_BYTES
    assert behind // PAGE_BYTES % MAP_BIT_PAGES == 0  # so the page after it has the same bit
    Place(place.path, behind, PAGE_BYTES).write(HEADER_MAGIC)
    live([tmp_path], frames, second)
    live([tmp_path], frames, third)


def test_what_a_footer_does_not_name_stays_away_without_the_footer(
    tmp_path: Path, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled write lies whole in a segment that was sealed before its mark got there: a start that believes the
    footer marks it, so that one which must scan finds no more.
    """

    async def first(life: Life) -> None:
        for name in OTHERS:
            await life.write(name)
        life.plans[tmp_path].script(DiskOperation.SYNC, ERROR, ERROR)  # of the record, and of its mark
        life.plans[tmp_path].script(DiskOperation.WRITE, WELL, ERROR)
        monkeypatch.setattr(mender, "RETRY_S_MIN", SETTLED_S_MAX)  # the mark is not asked for before the power fails
        with pytest.raises(TierFault):
            await life.write(block(0))
        await life.seal()
        assert life.store.status()["places_owed"] == 1
        await life.cut()

    live([tmp_path], frames, first)
    live([tmp_path], frames, finds_only_others)
    regions(tmp_path / "segment-000001.kv")["footer"].flip(0)
    live([tmp_path], frames, finds_only_others)
