"""The SSD tier against damage: whatever happens to its files, it never serves a wrong byte."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault, TierStore
from flexkv_tiers.diskio import open_disk_io
from flexkv_tiers.ssd import SsdStore
from tests.tiers.contract import (
    KIB,
    SMALL,
    Frames,
    assert_readable,
    block,
    drain,
    fault_of_read,
    opened,
    places_of,
    write_all,
)
from tests.tiers.page_cache import cached_pages
from tests.tiers.segment_files import Place, records

RECORD_BYTES = 4 * KIB + sum(SMALL)
HEADER_FIELDS = {
    "magic": 0,
    "version": 8,
    "codec": 10,
    "shard": 12,
    "chunk count": 16,
    "key": 20,
    "parent": 36,
    "namespace": 52,
    "chunk table": 84 + 20,
    "padding": 2000,
    "salt": 4096 - 16 - 8,
    "own checksum": 4095,
}
CHUNK_BYTES = {"first chunk": 4 * KIB, "its end": 12 * KIB - 1, "last chunk": 12 * KIB, "record's end": 16 * KIB - 1}


class Disk:
    """The directory of a tier, and hands that reach into its files behind its back."""

    def __init__(self, directory: Path, frames: Frames) -> None:
        self.directory = directory
        self._frames = frames

    def store(self, **options: object) -> SsdStore:
        settings = {"capacity_bytes": 2 << 20, "segment_bytes": 256 * KIB} | options
        return SsdStore(self.directory, arena=self._frames.arena, **settings)

    def live(self, scene: Callable[[SsdStore], Awaitable[None]], **options: object) -> None:
        async def life() -> None:
            async with opened(self.store(**options)) as store:
                await scene(store)

        asyncio.run(life())

    def place(self, name: BlockName) -> Place:
        """Where a block's record lies; the last one, if there are several."""
        return dict(records(self.directory))[name]


@pytest.fixture
def disk(tmp_path, frames):
    return Disk(tmp_path / "tier", frames)


@pytest.mark.parametrize("at", (HEADER_FIELDS | CHUNK_BYTES).values(), ids=(HEADER_FIELDS | CHUNK_BYTES).keys())
def test_a_flipped_bit_is_a_miss_and_a_quarantine(disk, frames, at):
    """One wrong bit anywhere in a record: CORRUPT, counted, quarantined until dropped; the neighbours serve on."""

    async def damaged(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1), block(2), block(3)])
        disk.place(block(2)).flip(at)
        assert await fault_of_read(store, frames, block(2), places[block(2)]) is Fault.CORRUPT
        await assert_readable(store, frames, block(1), places[block(1)])
        await assert_readable(store, frames, block(3), places[block(3)])
        assert store.status()["records_quarantined"] == store.status()["faults"]["corrupt"] == 1
        assert places[block(2)] not in (await write_all(store, frames, [block(4), block(5)])).values()

    async def after(store: SsdStore) -> None:
        found = places_of([batch async for batch in store.found()])
        assert set(found) == {block(1), block(2), block(3), block(4), block(5)}  # the footer still names it
        assert await fault_of_read(store, frames, block(2), found[block(2)]) is Fault.CORRUPT
        await store.drop(block(2), found[block(2)])
        assert store.status()["records_quarantined"] == 0

    async def later(store: SsdStore) -> None:
        assert set(places_of([batch async for batch in store.found()])) == {block(1), block(3), block(4), block(5)}

    for scene in (damaged, after, later):
        disk.live(scene)


@pytest.mark.parametrize(("at", "length"), [(0, 4 * KIB), (4 * KIB, 8 * KIB), (12 * KIB, 4 * KIB), (0, RECORD_BYTES)])
def test_zeroed_parts_are_a_miss(disk, frames, at, length):
    """A zeroed header, chunk or record is a fault, never zeros served as KV."""

    async def scene(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1)])
        place = disk.place(block(1))
        Place(place.path, place.offset + at, length).write(bytes(length))
        assert await fault_of_read(store, frames, block(1), places[block(1)]) is Fault.CORRUPT

    disk.live(scene)


def test_a_record_zeroed_while_the_daemon_was_down_is_counted(disk, frames):
    """The footer names a record whose bytes are gone: a read is CORRUPT and counted; dropped ones are not told."""

    async def first(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(at) for at in range(6)])
        await store.drop(block(1), places[block(1)])

    async def second(store: SsdStore) -> None:
        found = places_of([batch async for batch in store.found()])
        assert set(found) == {block(0), block(2), block(3), block(4), block(5)}
        assert await fault_of_read(store, frames, block(3), found[block(3)]) is Fault.CORRUPT
        assert store.status()["faults"]["corrupt"] == 1

    disk.live(first)
    disk.place(block(3)).write(bytes(RECORD_BYTES))
    disk.live(second)


@pytest.mark.parametrize("keep", [0, 100, 4 * KIB, 16 * KIB, 24 * KIB])
def test_a_truncated_segment_is_a_miss(disk, frames, keep):
    """A segment cut off within its first records: faults while it lives, and what is found afterwards faults too."""

    async def cut(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1), block(2)])
        os.truncate(disk.place(block(1)).path, keep)
        for name, location in places.items():
            assert await fault_of_read(store, frames, name, location) is Fault.CORRUPT

    async def after(store: SsdStore) -> None:
        for name, location in places_of([batch async for batch in store.found()]).items():
            assert await fault_of_read(store, frames, name, location) is Fault.CORRUPT
            await store.drop(name, location)
        places = await write_all(store, frames, [block(1)])
        await assert_readable(store, frames, block(1), places[block(1)])

    disk.live(cut)
    disk.live(after)


def test_a_segment_cut_in_its_last_record_is_counted(disk, frames):
    """What is left is no record: the block is a miss, the others are found by a scan, and the start says so."""

    async def write(store: SsdStore) -> None:
        await write_all(store, frames, [block(1)])
        await write_all(store, frames, [block(2)])

    async def after(store: SsdStore) -> None:
        found = places_of([batch async for batch in store.found()])
        assert set(found) == {block(1)}
        assert (store.status()["found_torn"], store.status()["found_footers_damaged"]) == (1, 1)
        await assert_readable(store, frames, block(1), found[block(1)])

    disk.live(write)
    last = disk.place(block(2))
    os.truncate(last.path, last.offset + 4 * KIB)
    disk.live(after)


@pytest.mark.parametrize("other", [block(2), block(1, space=2), block(1, shard=1)], ids=["key", "space", "shard"])
def test_swapped_records_are_a_miss(disk, frames, other):
    """Two whole records swapped: each is CORRUPT at the other's place, now and in the next life; neither is served."""

    async def swap(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1), other])
        one, two = disk.place(block(1)), disk.place(other)
        first, second = one.read(), two.read()
        one.write(second)
        two.write(first)
        for name, location in places.items():
            assert await fault_of_read(store, frames, name, location) is Fault.CORRUPT

    async def after(store: SsdStore) -> None:
        for name, location in places_of([batch async for batch in store.found()]).items():
            assert await fault_of_read(store, frames, name, location) is Fault.CORRUPT

    disk.live(swap)
    disk.live(after)


@pytest.mark.parametrize("at", CHUNK_BYTES.values(), ids=CHUNK_BYTES.keys())
def test_chunks_of_another_block_under_a_right_header_are_a_miss(disk, frames, at):
    """Bytes of another record in a chunk's place do not pass: the checksum covers key and chunk number."""

    async def scene(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1), block(1, space=2)])
        start = 4 * KIB if at < 12 * KIB else 12 * KIB
        end = start + SMALL[start > 4 * KIB]
        place = disk.place(block(1))
        Place(place.path, place.offset + start, end - start).write(disk.place(block(1, space=2)).read()[start:end])
        assert await fault_of_read(store, frames, block(1), places[block(1)]) is Fault.CORRUPT

    disk.live(scene)


def test_chunks_before_the_damage_are_yielded(disk, frames):
    """A read yields the whole chunks before a damaged one, then faults: what was yielded is valid."""

    async def scene(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1)])
        disk.place(block(1)).flip(12 * KIB)
        reading = store.read(block(1), places[block(1)], frames.take(SMALL))
        assert await anext(reading) == 0
        with pytest.raises(TierFault, match="chunk 1"):
            await anext(reading)

    disk.live(scene)


def test_the_same_block_cut_otherwise_is_corrupt(disk, frames):
    """Frames of other lengths than the record's chunks are refused before a byte is believed."""

    async def scene(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1)])
        with pytest.raises(TierFault, match="other chunks"):
            await drain(store, block(1), places[block(1)], frames.take(SMALL[::-1]))

    disk.live(scene)


def test_a_file_deleted_underneath_takes_no_acknowledged_write(disk, frames):
    """What is written into a deleted file would be lost: the write faults, the next goes to a new file."""
    kept: dict[BlockName, int] = {}

    async def deleted(store: SsdStore) -> None:
        places = await write_all(store, frames, [block(1)])
        disk.place(block(1)).path.unlink()
        with pytest.raises(TierFault, match="deleted underneath") as caught:
            await write_all(store, frames, [block(2)])
        assert caught.value.fault is Fault.IO
        await assert_readable(store, frames, block(1), places[block(1)])  # the open file still has it
        await store.drop(block(1), places[block(1)])
        kept.update(await write_all(store, frames, [block(2), block(3)]))

    async def after(store: SsdStore) -> None:
        assert set(places_of([batch async for batch in store.found()])) == set(kept)

    disk.live(deleted)
    disk.live(after)


def test_a_directory_emptied_underneath_takes_nothing_new(disk, frames):
    """What were put there, no start would accept: every write faults and says what happened."""

    async def emptied(store: SsdStore) -> None:
        await write_all(store, frames, [block(1)])
        for path in disk.directory.iterdir():
            path.unlink()
        for match in ("deleted underneath", "emptied underneath", "emptied underneath"):
            with pytest.raises(TierFault, match=match) as caught:
                await write_all(store, frames, [block(2)])
            assert caught.value.fault is Fault.IO
        assert not list(disk.directory.iterdir())

    disk.live(emptied)


def test_of_two_records_of_one_block_the_later_one_counts(disk, frames):
    """A block written twice is found once, where it was written last; the older is dropped for good and counted."""

    async def twice(store: SsdStore) -> None:
        await write_all(store, frames, [block(1), block(2)])
        await write_all(store, frames, [block(1)])
        assert sum(name == block(1) for name, _ in records(disk.directory)) == 2

    async def after(store: SsdStore) -> None:
        found = places_of([batch async for batch in store.found()])
        assert set(found) == {block(1), block(2)}
        assert store.status()["found_duplicates"] == 1
        assert store.status()["records"] == 2
        await assert_readable(store, frames, block(1), found[block(1)])
        await store.drop(block(1), found[block(1)])

    async def later(store: SsdStore) -> None:
        assert set(places_of([batch async for batch in store.found()])) == {block(2)}
        assert store.status()["found_duplicates"] == 0

    for scene in (twice, after, later):
        disk.live(scene)


def test_the_later_record_counts_however_it_is_cut(disk, frames):
    """Written three times and last in another size: the last is found and read, and one drop leaves nothing of it."""
    cuts = (SMALL, SMALL, (*SMALL, 4 * KIB))

    async def thrice(store: SsdStore) -> None:
        for lengths in cuts:
            await store.write(block(1), frames.fill(block(1), lengths))

    async def after(store: SsdStore) -> None:
        [batch] = [batch async for batch in store.found()]
        assert batch.chunk_bytes == cuts[-1]
        assert (store.status()["found_duplicates"], store.status()["records"]) == (2, 1)
        [(name, location)] = places_of([batch]).items()
        await assert_readable(store, frames, name, location, cuts[-1])
        await store.drop(name, location)

    async def later(store: SsdStore) -> None:
        assert [batch async for batch in store.found()] == []

    for scene in (thrice, after, later):
        disk.live(scene)


def test_writes_beside_the_warm_restart(disk, frames):
    """Records written while `found` runs neither hide those of the last life nor come up in it."""
    old = [block(at) for at in range(60)]

    async def first(store: SsdStore) -> None:
        await write_all(store, frames, old)

    async def second(store: SsdStore) -> None:
        async def census() -> dict[BlockName, int]:
            return places_of([batch async for batch in store.found()])

        new = [block(at) for at in range(100, 124)]
        found, places = await asyncio.gather(census(), write_all(store, frames, new))
        assert set(found) == set(old)
        assert not set(found.values()) & set(places.values())
        for name, location in (found | places).items():
            await assert_readable(store, frames, name, location)

    disk.live(first)
    disk.live(second)


def test_room_moves_between_record_sizes(disk, frames):
    """A tier full of one size serves another one as soon as enough of the first is dropped."""
    small, large = (4 * KIB,), (60 * KIB,)

    async def fill(store: TierStore, lengths: tuple[int, ...], first: int, count: int) -> dict[BlockName, int]:
        names = [block(number) for number in range(first, first + count)]
        return {name: await store.write(name, frames.fill(name, lengths)) for name in names}

    async def scene(store: SsdStore) -> None:
        places = await fill(store, small, 0, 39)  # three of four segments
        for name in list(places)[:26]:
            await store.drop(name, places[name])
        larger = await fill(store, large, 1000, 2)
        assert sum(path.stat().st_size for path in disk.directory.glob("*.kv")) <= 512 * KIB
        for name, location in larger.items():
            await assert_readable(store, frames, name, location, large)

    disk.live(scene, capacity_bytes=512 * KIB, segment_bytes=128 * KIB)


def test_a_smaller_capacity_shrinks_the_directory(disk, frames):
    """The capacity is a hard limit over restarts: segments beyond a lowered one are removed, and it says so."""

    async def first(store: SsdStore) -> None:
        await write_all(store, frames, [block(at) for at in range(100)])

    async def second(store: SsdStore) -> None:
        assert sum(path.stat().st_size for path in disk.directory.glob("*.kv")) <= 512 * KIB
        assert store.status()["found_segments_removed"] > 0
        found = places_of([batch async for batch in store.found()])
        assert 0 < len(found) <= 512 * KIB // RECORD_BYTES
        for name, location in found.items():
            await assert_readable(store, frames, name, location)

    disk.live(first)
    disk.live(second, capacity_bytes=512 * KIB)


def test_a_drop_that_failed_can_be_asked_for_again(disk, frames):
    """A header that could not be zeroed keeps its slot; the next drop zeroes it, so the record never returns."""

    async def first(store: SsdStore) -> None:
        location = await store.write(block(1), frames.fill(block(1), SMALL))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
        try:
            with pytest.raises(TierFault):
                await store.drop(block(1), location)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await store.drop(block(1), location)
        assert store.status()["records_quarantined"] == 0

    async def second(store: SsdStore) -> None:
        assert [batch async for batch in store.found()] == []

    disk.live(first)
    disk.live(second)


@pytest.mark.parametrize("direct", [True, False])
def test_the_page_cache_is_left_alone(disk, frames, direct):
    """Neither path keeps the records' pages in the kernel's cache: DRAM belongs to the arena."""

    async def scene(store: SsdStore) -> None:
        lengths = (48 * KIB,) * 4
        location = await store.write(block(1), frames.fill(block(1), lengths))
        await assert_readable(store, frames, block(1), location, lengths)
        [told] = store.status()["directories"]
        assert told["io_path"] in (("direct",) if direct else ("dontcache", "fadvise"))
        assert ("switched off" in told["io_reason"]) != direct
        assert cached_pages(next(disk.directory.glob("*.kv"))) == 0

    disk.live(scene, open_io=partial(open_disk_io, engine="threads", depth=4, direct=direct))
