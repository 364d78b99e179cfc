"""Records that reclaim rewrites lie apart from new ones: less is rewritten, and a kill with both open loses none."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import deque
from collections.abc import Set
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName
from flexkv_tiers.ssd.segment import APART_SEGMENTS_MIN, SegmentState
from tests.tiers.contract import opened, places_of
from tests.tiers.test_ssd_log import Driver
from tests.tiers.test_ssd_reclaim import Cache

SEGMENTS = 2 * APART_SEGMENTS_MIN
LIVE_SHARE = 0.9
"""Of what is usable: records of several lengths leave gaps at the ends of segments."""
WRITES_MAX = 1000


class Churn(Driver):
    """Two in five live records stay for good, the others go in the order they came."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), [SEGMENTS], 10.0)
        self._fleeting: deque[int] = deque()

    def turn(self, number: int) -> None:
        while self.log.live_pages > LIVE_SHARE * self.usable_pages and self._fleeting:
            if (slot := self.log.table.slot(location := self._fleeting.popleft())) is not None:
                del self.records[location]
                self.log.remove(slot)
        known = set(self.records)
        self.write(number)
        while self.writing:
            self.end_write()
        if number > self.usable_pages // 8 or number % 2:
            self._fleeting.extend(set(self.records) - known)


def test_what_stays_is_not_rewritten_with_every_record_that_goes():
    """Beside new records, those that stay are moved each time the new ones are gone: 4.4 times as much was written."""
    churn = Churn()
    for number in range(4000):
        churn.turn(number)
    churn.check()
    assert churn.let_go == 0
    assert 1.5 < churn.log.budget.life_amplification < 3.0


def test_a_kill_while_both_kinds_of_segments_are_open_loses_nothing(tmp_path, frames):
    """Files copied from under a running store hold every record that was not dropped; both open ends are scanned."""

    def cache_in(directory: Path) -> Cache:
        cache = Cache([directory], frames, segments=SEGMENTS)
        cache.room -= 3 * 9  # beside the free segment, two are half empty
        return cache

    async def first() -> Set[BlockName]:
        cache, chance = cache_in(tmp_path / "running"), random.Random(2)
        async with opened(cache.store) as store:
            for number in range(WRITES_MAX):
                await cache.churn(range(number, number + 1), chance)
                if store.status()["segments_by_state"].get(SegmentState.ACTIVE) == 2:
                    shutil.copytree(tmp_path / "running", tmp_path / "killed")
                    return set(cache.places)
        pytest.fail("two segments were never open at once")

    async def second(expected: Set[BlockName]) -> None:
        cache = cache_in(tmp_path / "killed")
        async with opened(cache.store) as store:
            cache.places.update(places_of([batch async for batch in store.found()]))
            assert set(cache.places) == expected
            assert store.status()["found_scanned"] == 2
            await cache.check(list(cache.places))
            await cache.churn(range(2000, 2000 + cache.room), random.Random(3))
            assert not cache.listener.lost_records
            await cache.check(list(cache.places))

    asyncio.run(second(asyncio.run(first())))
