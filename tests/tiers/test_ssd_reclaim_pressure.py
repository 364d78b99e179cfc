"""Reclaim when nothing is left to it: what was written last stays, also where a rewrite finds no place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskIo, open_disk_io
from flexkv_tiers.diskio.faulty import DiskFaultPlan, DiskOperation, DiskTrouble, FaultyIo
from tests.tiers.accounts import live_bytes
from tests.tiers.contract import Frames, assert_readable, block, copy_into, opened, places_of
from tests.tiers.test_ssd_reclaim import LENGTHS, RECORD_BYTES, Cache

WRITERS = 4


class Crowd(Cache):
    """Several writers at a time, on frames of their own; what is written is noted in the order of its end."""

    def __init__(self, directories: Sequence[Path], frames: Frames, **options: object) -> None:
        super().__init__(directories, frames, **options)
        self.sources = [frames.take(LENGTHS) for _ in range(WRITERS)]
        self.written: list[BlockName] = []
        self.refused: list[Fault] = []

    async def fill(self, numbers: range, chance: random.Random) -> None:
        """All writers write these blocks; each makes room by drops at random, never of the newest quarter."""
        todo = iter(numbers)

        async def write(source: int) -> None:
            for number in todo:
                while len(self.places) >= self.room - WRITERS:
                    newest = set(self.newest())
                    await self.drop(chance.choice([name for name in self.places if name not in newest]))
                name, spans = block(number), self.sources[source]
                copy_into(self.frames, spans, name, LENGTHS)
                try:
                    self.places[name] = await self.store.write(name, spans)
                except TierFault as fault:
                    self.refused.append(fault.fault)
                else:
                    self.written.append(name)
                    gone = set(self.newest()) - set(self.places)
                    assert not gone, f"block {number} cost {len(gone)} of the newest quarter"

        await asyncio.gather(*map(write, range(WRITERS)))

    async def drop(self, name: BlockName) -> None:
        location = self.places.pop(name)
        try:
            await self.store.drop(name, location)
        except TierFault as fault:  # asked for again some time
            self.refused.append(fault.fault)
            self.places[name] = location

    def newest(self) -> list[BlockName]:
        return self.written[-(self.room // 4) :]


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("amplification_max", [1.0, 1.1, 1.5])
def test_the_newest_quarter_is_never_let_go(tmp_path, frames, stripes, amplification_max):
    """However little may be rewritten, four writers lose old records only, and every write finds room."""

    async def scene() -> None:
        places = [tmp_path / str(number) for number in range(stripes)]
        cache = Crowd(places, frames, amplification_max=amplification_max)
        async with opened(cache.store) as store:
            await cache.fill(range(6 * cache.room), random.Random(stripes))
            assert cache.refused == []
            assert cache.listener.lost_records
            assert await live_bytes(store) == len(cache.places) * RECORD_BYTES
            await cache.check(list(cache.places))

    asyncio.run(scene())


@pytest.mark.parametrize("seed", range(3))
def test_a_rewrite_without_a_place_costs_no_young_record(tmp_path, frames, seed):
    """Writes and syncs fail at random: victims whose records find no place are put back, old ones go instead."""
    plan = DiskFaultPlan(seed)

    def open_io(directory: Path) -> DiskIo:
        return FaultyIo(open_disk_io(directory, "threads", 4, direct=True), plan)

    async def first() -> set[BlockName]:
        cache = Crowd([tmp_path], frames, open_io=open_io, amplification_max=1.5)
        async with opened(cache.store) as store:
            await cache.fill(range(2 * cache.room), random.Random(seed))
            plan.rates = {
                DiskOperation.WRITE: {DiskTrouble.ERROR: 0.03, DiskTrouble.PART: 0.03},
                DiskOperation.SYNC: {DiskTrouble.ERROR: 0.03},
            }
            await cache.fill(range(10_000, 10_000 + 2 * cache.room), random.Random(seed))
            assert set(cache.refused) <= {Fault.IO, Fault.FULL}
            plan.rates = {}
            await cache.fill(range(20_000, 20_000 + cache.room), random.Random(seed))
            assert await live_bytes(store) == len(cache.places) * RECORD_BYTES
            await cache.check(list(cache.places))
            return set(cache.places)

    async def second(expected: set[BlockName]) -> None:
        cache = Cache([tmp_path], frames)
        async with opened(cache.store) as store:
            found = places_of([batch async for batch in store.found()])
            assert set(found) == expected
            for name, location in found.items():
                frames.rewind()
                await assert_readable(store, frames, name, location, LENGTHS)

    asyncio.run(second(asyncio.run(first())))
