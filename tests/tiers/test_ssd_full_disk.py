"""A full disk: another takes its writes before anybody hears of it; and when it has room again, that is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flexkv_py.core.messages import Fault
from flexkv_tiers.ssd import SsdStore
from tests.tiers.contract import KIB, Frames, assert_readable, block, fault_or_location, opened
from tests.tiers.small_disk import mounted
from tests.tiers.test_ssd_reclaim import Listener

MIB = 1 << 20
LENGTHS = (60 * KIB,)
SEGMENTS = 16
RECORDS_PER_SEGMENT = 15


def test_a_full_disk_passes_its_writes_to_the_other(tmp_path: Path, frames: Frames) -> None:
    """Two segments fit one of two disks: FULL comes only when the other's own share is full, and all stays."""
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()

    async def scene(small: Path) -> None:
        directories = [small, tmp_path / "large"]
        store = SsdStore(directories, 2 * SEGMENTS * MIB, frames.arena, segment_bytes=MIB, reserve_bytes=0)
        async with opened(store):
            places = {}
            for number in range(3 * SEGMENTS * RECORDS_PER_SEGMENT):
                outcome = await fault_or_location(store, block(number), frames.fill(block(number), LENGTHS))
                if isinstance(outcome, Fault):
                    break
                places[block(number)] = outcome
            assert outcome is Fault.FULL
            told = store.status()["directories"]
            assert [each["cut_by_file_system"] for each in told] == [True, False]
            assert len(places) >= (SEGMENTS - 1 + 2) * RECORDS_PER_SEGMENT - 1, "all but the spare segment"
            assert store.status()["records_let_go"] == 0
            for name, location in places.items():
                await assert_readable(store, frames, name, location, LENGTHS)

    with mounted("tmpfs", "size=2560k", tmp_path / "small") as small:
        asyncio.run(scene(small))


def test_a_disk_that_was_full_says_when_it_takes_another_segment(tmp_path: Path, frames: Frames) -> None:
    """Somebody else's file takes room the tier counts on: once that is gone, the next segment brings the news, once."""
    (tmp_path / "small").mkdir()

    async def scene(small: Path) -> None:
        (small / "ballast").write_bytes(bytes(5 * MIB))
        listener = Listener()
        options = {"segment_bytes": MIB, "reserve_bytes": 0, "listener": listener}
        store = SsdStore(small / "tier", 6 * MIB, frames.arena, **options)
        async with opened(store):
            numbers = iter(range(5 * RECORDS_PER_SEGMENT))

            async def write() -> Fault | int:
                name = block(next(numbers))
                return await fault_or_location(store, name, frames.fill(name, LENGTHS))

            while not isinstance(outcome := await write(), Fault):
                pass
            assert outcome is Fault.FULL
            assert listener.times_restored == 0
            (small / "ballast").unlink()
            for _ in range(2 * RECORDS_PER_SEGMENT):
                assert not isinstance(await write(), Fault)
            assert listener.times_restored == 1

    with mounted("tmpfs", "size=8m", tmp_path / "small") as small:
        asyncio.run(scene(small))
