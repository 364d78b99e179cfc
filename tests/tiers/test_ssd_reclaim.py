"""Reclaim on a real disk: space comes back, what is let go is told, readers are never cut, drops hold for good."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault, LostRecord
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.ssd import SsdStore
from tests.tiers.accounts import live_bytes
from tests.tiers.contract import (
    KIB,
    Frames,
    assert_readable,
    block,
    content,
    copy_into,
    drain,
    opened,
    places_of,
)
from tests.tiers.segment_files import records, regions

LENGTHS = (12 * KIB, 8 * KIB)
RECORD_BYTES = 24 * KIB
SEGMENT_BYTES = 256 * KIB
"""Holds nine records."""


class Listener:
    """Keeps the planner's half of the bargain: forgets what it is told is lost."""

    def __init__(self) -> None:
        self.lost_records: list[LostRecord] = []
        self.places: dict[BlockName, int] = {}
        self.times_restored = 0

    def changed(self, up: bool, reason: str) -> None:
        raise AssertionError(f"{up}: {reason}")

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        assert reason.startswith("reclaimed: ")
        for record in records:
            self.lost_records.append(record)
            if self.places.get(record.block) == record.location:
                del self.places[record.block]

    def restored(self) -> None:
        self.times_restored += 1

    def appeared(self, batch: FoundBatch) -> None:
        raise AssertionError(batch)


class Cache:
    """A store and what is known to be in it; frames are used again and again."""

    def __init__(self, directories: Sequence[Path], frames: Frames, *, segments: int = 8, **options: object) -> None:
        self.frames, self.listener = frames, Listener()
        self.source, self.target = frames.take(LENGTHS), frames.take(LENGTHS)
        settings = {"segment_bytes": SEGMENT_BYTES, "reserve_bytes": 0} | options
        capacity_bytes = segments * SEGMENT_BYTES * len(directories)
        self.store = SsdStore(directories, capacity_bytes, frames.arena, listener=self.listener, **settings)
        self.room = (segments - 1) * 9 * len(directories)  # one segment of each directory is spare

    @property
    def places(self) -> dict[BlockName, int]:
        return self.listener.places

    async def put(self, number: int) -> None:
        copy_into(self.frames, self.source, block(number), LENGTHS)
        self.places[block(number)] = await self.store.write(block(number), self.source)

    async def drop(self, name: BlockName) -> None:
        await self.store.drop(name, self.places.pop(name))

    async def check(self, names: Sequence[BlockName]) -> None:
        """These are there, byte for byte."""
        for name in names:
            assert await drain(self.store, name, self.places[name], self.target) == [0, 1]
            assert self.frames.bytes_of(self.target) == content(name, LENGTHS)

    async def churn(self, numbers: range, chance: random.Random, hot: Sequence[BlockName] = ()) -> None:
        """Write blocks, dropping others at random to keep the planner's bound; the hot ones are read each time."""
        for number in numbers:
            while len(self.places) >= self.room:
                await self.drop(chance.choice([name for name in self.places if name not in hot]))
            await self.put(number)
            await self.check([name for name in hot if name in self.places])


@pytest.mark.parametrize("stripes", [1, 3])
def test_space_comes_back_within_the_write_limit(tmp_path, frames, stripes):
    """Many times the capacity is written under random drops: no write refused, no limit exceeded, all bytes right."""

    async def scene() -> None:
        cache = Cache([tmp_path / str(number) for number in range(stripes)], frames, amplification_max=1.5)
        async with opened(cache.store) as store:
            await cache.churn(range(8 * cache.room), random.Random(stripes))
            told = store.status()
            assert told["write_amplification"] <= 1.5 + 0.05  # a life begins with part of a window in hand
            assert told["segments_reclaimed"] > 0
            assert told["rewritten_bytes"] > 0
            assert told["records"] == len(cache.places)
            assert await live_bytes(store) == len(cache.places) * RECORD_BYTES
            assert sum(told["faults"].values()) == 0
            await cache.check(list(cache.places))
            for number in range(stripes):
                files = list((tmp_path / str(number)).glob("*.kv"))
                assert files
                assert sum(file.stat().st_size for file in files) <= 8 * SEGMENT_BYTES

    asyncio.run(scene())


def test_what_is_read_stays(tmp_path, frames):
    """Blocks that are read survive far more writing than the tier holds; blocks nobody reads make room for them."""

    async def scene() -> None:
        cache = Cache([tmp_path], frames)
        cache.room -= 18
        async with opened(cache.store):
            await cache.churn(range(4), random.Random(1))
            hot = list(cache.places)
            await cache.churn(range(100, 100 + 4 * cache.room), random.Random(2), hot)
            assert set(hot) <= set(cache.places)
            assert not {record.block for record in cache.listener.lost_records} & set(hot)
            await cache.check(hot)

    asyncio.run(scene())


def test_without_rewriting_the_oldest_go_and_are_told(tmp_path, frames):
    """A limit of 1 rewrites nothing: every live record of a reclaimed segment is told as lost and is MISSING."""

    async def scene() -> None:
        cache = Cache([tmp_path], frames, amplification_max=1.0)
        async with opened(cache.store) as store:
            everything: dict[BlockName, int] = {}
            for number in range(3 * cache.room):
                if len(cache.places) >= cache.room:
                    await cache.drop(next(iter(cache.places)))
                await cache.put(number)
                everything[block(number)] = cache.places[block(number)]
            assert store.status()["rewritten_bytes"] == 0
            assert cache.listener.lost_records
            for record in cache.listener.lost_records:
                with pytest.raises(TierFault) as caught:
                    await drain(store, record.block, everything[record.block], cache.target)
                assert caught.value.fault is Fault.MISSING
                await store.drop(record.block, record.location)  # no error, and nobody else's record goes
            await cache.check(list(cache.places))

    asyncio.run(scene())


def test_a_reader_is_never_cut(tmp_path, frames):
    """A record that is being read while its segment is reclaimed and asked for comes whole."""

    async def scene() -> None:
        cache = Cache([tmp_path], frames, amplification_max=1.0)
        async with opened(cache.store) as store:
            await cache.put(0)
            slow = frames.take(LENGTHS)
            reading = store.read(block(0), cache.places[block(0)], slow)
            assert await anext(reading) == 0
            await cache.churn(range(1, 3 * cache.room), random.Random(3))
            assert block(0) not in cache.places  # dropped or lost meanwhile
            assert [chunk async for chunk in reading] == [1]
            assert frames.bytes_of(slow) == content(block(0), LENGTHS)

    asyncio.run(scene())


def test_the_state_survives_a_restart_at_any_time(tmp_path, frames):
    """After churn and a restart exactly what was neither dropped nor lost is found, each block once and whole."""
    kept: dict[int, set[BlockName]] = {}

    async def life(turn: int) -> None:
        cache = Cache([tmp_path / "a", tmp_path / "b"], frames)
        async with opened(cache.store) as store:
            batches = [batch async for batch in store.found()]
            assert sum(len(batch.blocks) for batch in batches) == len(places_of(batches))
            cache.places.update(places_of(batches))
            assert set(cache.places) == kept.get(turn - 1, set())
            assert {batch.chunk_bytes for batch in batches} <= {LENGTHS}
            await cache.check(list(cache.places))
            await cache.churn(range(turn * 1000, turn * 1000 + 3 * cache.room), random.Random(turn))
            kept[turn] = set(cache.places)
            assert store.damaged_at_start == 0

    for turn in range(4):
        asyncio.run(life(turn))


def test_a_record_dropped_while_it_is_rewritten_stays_dropped(tmp_path, frames):
    """Drops that race with reclaim hold: neither this life nor the next one has the record again."""

    async def first() -> set[BlockName]:
        cache = Cache([tmp_path], frames, amplification_max=10.0)
        async with opened(cache.store):
            chance = random.Random(5)
            for number in range(6 * cache.room):
                while len(cache.places) >= cache.room:
                    victims = chance.sample(sorted(cache.places, key=cache.places.__getitem__), 6)
                    await asyncio.gather(*(cache.drop(name) for name in victims), cache.put(10_000 + number))
                await cache.put(number)
            return set(cache.places)

    async def second(expected: set[BlockName]) -> None:
        cache = Cache([tmp_path], frames)
        async with opened(cache.store) as store:
            cache.places.update(places_of([batch async for batch in store.found()]))
            assert set(cache.places) == expected
            await cache.check(list(cache.places))

    asyncio.run(second(asyncio.run(first())))


def test_a_damaged_record_is_let_go_when_its_segment_is_reclaimed(tmp_path, frames):
    """Rewriting verifies: a record with a wrong byte is not carried on, but counted and told as lost."""

    async def scene() -> None:
        cache = Cache([tmp_path], frames, amplification_max=3.0)
        async with opened(cache.store) as store:
            for number in range(cache.room - 4):
                await cache.put(number)
            dict(records(tmp_path))[block(3)].flip(RECORD_BYTES - 1)
            for number in (0, 1, 2, 4, 5):
                await cache.drop(block(number))
            for number in range(100, 109):
                await cache.put(number)
            assert block(3) in {record.block for record in cache.listener.lost_records}
            assert store.status()["records_let_go_damaged"] == 1
            await cache.check(list(cache.places))

    asyncio.run(scene())


def test_a_block_found_in_two_directories_is_let_go_of_in_both(tmp_path, frames):
    """The later record counts, and is damaged: reclaim marks the earlier one too, on the other disk, and goes on."""
    directories = [tmp_path / "a", tmp_path / "b"]

    async def first() -> None:
        cache = Cache(directories, frames)
        async with opened(cache.store):
            for number in (0, *range(17)):
                await cache.put(number)

    async def second() -> None:
        cache = Cache(directories, frames)
        async with opened(cache.store) as store:
            cache.places.update(places_of([batch async for batch in store.found()]))
            [there] = [held for held in map(dict, map(records, directories)) if block(0) in held]
            there.pop(block(0)).flip(RECORD_BYTES - 1)
            for name in there:
                await cache.drop(name)
            for number in range(100, 100 + cache.room - len(cache.places)):
                await cache.put(number)
            assert [record.block for record in cache.listener.lost_records] == [block(0)]
            await cache.check(list(cache.places))

    asyncio.run(first())
    assert all(block(0) in dict(records(directory)) for directory in directories)
    asyncio.run(second())
    assert not any(block(0) in dict(records(directory)) for directory in directories)


def test_a_footer_damaged_while_running_hides_nobody_from_the_planner(tmp_path, frames):
    """Names come from the records' own headers then: who is let go is told all the same."""

    async def scene() -> None:
        cache = Cache([tmp_path], frames, amplification_max=1.0)
        async with opened(cache.store) as store:
            for number in range(cache.room):
                await cache.put(number)
            for path in tmp_path.glob("*.kv"):
                if "footer" in (found := regions(path)):
                    found["footer"].flip(100)
            await cache.drop(block(0))
            await cache.put(1000)
            assert {block(number) for number in range(1, 9)} <= {each.block for each in cache.listener.lost_records}
            assert store.status()["records_let_go_unnamed"] == 0
            await cache.check(list(cache.places))

    asyncio.run(scene())


def test_the_first_record_decides_the_segment_size(tmp_path, frames):
    """Without a configured size, segments are made so that records of that length fill them to the last page."""

    async def scene() -> None:
        store = SsdStore(tmp_path, 16 << 20, frames.arena)
        async with opened(store):
            location = await store.write(block(1), frames.fill(block(1), LENGTHS))
            await assert_readable(store, frames, block(1), location, LENGTHS)
            segment_bytes = store.status()["segment_bytes"]
            assert (1 << 20) - 64 * KIB <= segment_bytes <= (1 << 20) + 64 * KIB
            huge = frames.take((2 << 20,))
            frames.arena.set_checksum(huge[0].frame, bytes(16))
            with pytest.raises(TierFault, match="does not fit a segment") as caught:
                await store.write(block(2), huge)
            assert caught.value.fault is Fault.TOO_LONG
            wanted_bytes = int(re.search(r"segment_bytes to (\d+) or more", caught.value.detail)[1])
        other = SsdStore(tmp_path / "other", 16 << 20, frames.arena, segment_bytes=wanted_bytes)
        async with opened(other):
            assert await other.write(block(2), huge) >= 0, "what the cure says cures"

    asyncio.run(scene())
