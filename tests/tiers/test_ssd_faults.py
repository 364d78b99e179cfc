"""The SSD tier on a disk that breaks on purpose: EIO and a full disk at each operation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskIo, open_disk_io
from flexkv_tiers.diskio.faulty import DiskFaultPlan, DiskOperation, DiskTrouble, DiskVerdict, FaultyIo
from flexkv_tiers.ssd import SsdStore
from tests.tiers.accounts import live_bytes
from tests.tiers.contract import KIB, Frames, assert_readable, block, opened, places_of, write_all

NAMES = [block(number) for number in range(8)]


def life(directory: Path, frames: Frames, plan: DiskFaultPlan, segment_bytes: int = 256 * KIB) -> SsdStore:
    def open_io(place: Path) -> DiskIo:
        return FaultyIo(open_disk_io(place, "threads", 4, direct=True), plan)

    options = {"segment_bytes": segment_bytes, "reserve_bytes": 0}
    return SsdStore(directory, 8 * segment_bytes, frames.arena, open_io=open_io, **options)


@pytest.mark.parametrize(
    ("operation", "trouble"),
    [
        (DiskOperation.WRITE, DiskTrouble.ERROR),
        (DiskOperation.WRITE, DiskTrouble.PART),
        (DiskOperation.WRITE, DiskTrouble.FULL),
        (DiskOperation.SYNC, DiskTrouble.ERROR),
    ],
)
@pytest.mark.parametrize("at", range(6))
def test_one_failed_operation_costs_at_most_its_write(tmp_path, frames, operation, trouble, at):
    """Whichever write or sync fails (header, record, map, footer): what was acknowledged stays, the rest never was."""
    plan = DiskFaultPlan()
    acknowledged: dict[BlockName, int] = {}

    async def first() -> None:
        async with opened(life(tmp_path, frames, plan)) as store:
            plan.script(operation, *[DiskVerdict()] * at, DiskVerdict(trouble))
            faults = []
            for name in NAMES:
                try:
                    acknowledged.update(await write_all(store, frames, [name]))
                except TierFault as fault:
                    faults.append(fault.fault)
            assert set(faults) <= {Fault.IO, Fault.FULL}
            for name, location in acknowledged.items():
                await assert_readable(store, frames, name, location)
            assert len(acknowledged) >= len(NAMES) - 1
            assert await live_bytes(store) == len(acknowledged) * 16 * KIB

    async def second() -> None:
        async with opened(life(tmp_path, frames, DiskFaultPlan())) as store:
            found = places_of([batch async for batch in store.found()])
            assert set(found) == set(acknowledged)
            for name, location in found.items():
                await assert_readable(store, frames, name, location)

    asyncio.run(first())
    asyncio.run(second())


def test_a_read_that_fails_costs_nothing_else(tmp_path, frames):
    """EIO in one of a record's reads is a fault of that read; asked again, the record comes."""
    plan = DiskFaultPlan()

    lengths = (8 * KIB, 1024 * KIB)

    async def scene() -> None:
        async with opened(life(tmp_path, frames, plan, 2048 * KIB)) as store:
            location = await store.write(NAMES[0], frames.fill(NAMES[0], lengths))
            for at in range(2):
                plan.script(DiskOperation.READ, *[DiskVerdict()] * at, DiskVerdict(DiskTrouble.ERROR))
                with pytest.raises(TierFault) as caught:
                    await assert_readable(store, frames, NAMES[0], location, lengths)
                assert caught.value.fault is Fault.IO
            await assert_readable(store, frames, NAMES[0], location, lengths)
            assert store.status()["records_quarantined"] == 0

    asyncio.run(scene())
