"""The disk that breaks on purpose: each trouble does what it says, a seed repeats, a power cut loses what it may."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import nothing, open_disk_io
from flexkv_tiers.diskio.faulty import TROUBLES, DiskFaultPlan, DiskOperation, DiskTrouble, DiskVerdict, FaultyIo
from tests.tiers.test_diskio import PAGE, fault_of, memory, opened

PAGES = 8
OLD, NEW = os.urandom(PAGES * PAGE), os.urandom(PAGES * PAGE)


@pytest.fixture
def path(tmp_path) -> Path:
    place = tmp_path / "file"
    place.write_bytes(OLD)
    return place


def live(path: Path, plan: DiskFaultPlan, scene: Callable[[FaultyIo], Awaitable[None]]) -> None:
    async def life() -> None:
        io = FaultyIo(open_disk_io(path.parent, "auto", 8, True), plan)
        try:
            await scene(io)
        finally:
            await io.stop()

    asyncio.run(life())


def changed_pages(content: bytes) -> list[bool | None]:
    """For each page whether it is the new one; None where it is neither the old nor the new."""
    pages = ([whole[at : at + PAGE] for at in range(0, len(OLD), PAGE)] for whole in (content, OLD, NEW))
    return [page == new if page in (old, new) else None for page, old, new in zip(*pages, strict=True)]


READ_ENDS = {
    DiskTrouble.ERROR: (Fault.IO, 0),
    DiskTrouble.PART: (Fault.IO, 4),
    DiskTrouble.SHORT: (Fault.CORRUPT, 4),
    DiskTrouble.FLIP: (None, 8),
}


@pytest.mark.parametrize("trouble", sorted(TROUBLES[DiskOperation.READ]))
def test_what_a_read_can_meet(path, trouble):
    """Each trouble gives its fault, having moved none, half or all of the pages; the next read is well."""
    plan = DiskFaultPlan()
    plan.script(DiskOperation.READ, DiskVerdict(trouble))
    fault, moved = READ_ENDS[trouble]

    async def scene(io: FaultyIo) -> None:
        file, target = await opened(io, path), memory(PAGES * PAGE)
        assert await fault_of(io.read(file, [target[:PAGE], target[PAGE:]], 0, nothing)) == fault
        differing = [bit for bit in range(8 * len(OLD)) if (target[bit // 8] ^ OLD[bit // 8]) >> bit % 8 & 1]
        if trouble is DiskTrouble.FLIP:
            assert len(differing) == 1
        else:
            assert target[: moved * PAGE] == OLD[: moved * PAGE]
            assert not any(target[moved * PAGE :])
        assert await io.read(file, [target], 0, lambda: bytes(target)) == OLD
        file.close()

    live(path, plan, scene)


WRITE_ENDS = {
    DiskTrouble.ERROR: (Fault.IO, 0),
    DiskTrouble.FULL: (Fault.FULL, 0),
    DiskTrouble.PART: (Fault.IO, 4),
    DiskTrouble.LOST: (None, 0),
    DiskTrouble.FLIP: (None, 7),
}


@pytest.mark.parametrize("trouble", sorted(TROUBLES[DiskOperation.WRITE]))
def test_what_a_write_can_meet(path, trouble):
    """Each trouble gives its fault or none, and leaves none, half or all but one of the pages on the disk."""
    plan = DiskFaultPlan()
    plan.script(DiskOperation.WRITE, DiskVerdict(trouble))
    fault, moved = WRITE_ENDS[trouble]

    async def scene(io: FaultyIo) -> None:
        file = await opened(io, path)
        assert await fault_of(io.write(file, [memory(len(NEW), NEW)], 0)) == fault
        file.close()

    live(path, plan, scene)
    changed = changed_pages(path.read_bytes())
    assert changed.count(True) == moved
    assert changed.count(None) == (trouble is DiskTrouble.FLIP)


def test_files_that_cannot_be_opened(path):
    """A full or broken disk shows when a file is made: the system's own error, and no file."""
    plan = DiskFaultPlan()
    plan.script(DiskOperation.OPEN, DiskVerdict(DiskTrouble.FULL), DiskVerdict(DiskTrouble.ERROR))

    async def scene(io: FaultyIo) -> None:
        for words in ("No space left", "Input/output error"):
            with pytest.raises(OSError, match=words):
                await opened(io, path.with_name("new"), PAGE)
        assert not path.with_name("new").exists()

    live(path, plan, scene)


def test_a_seed_repeats_and_another_differs(path):
    """The same seed and questions meet the same troubles; so a failing run can be run again."""

    def run(seed: int) -> list[Fault | None]:
        plan, ends = DiskFaultPlan(seed), []
        plan.rates[DiskOperation.READ] = {DiskTrouble.ERROR: 0.3, DiskTrouble.SHORT: 0.3}

        async def scene(io: FaultyIo) -> None:
            file = await opened(io, path)
            ends.extend(await asyncio.gather(*(fault_of(io.read(file, [memory(PAGE)], 0, nothing)) for _ in range(40))))
            file.close()

        live(path, plan, scene)
        return ends

    assert run(1) == run(1) != run(2)
    assert set(run(1)) == {None, Fault.IO, Fault.CORRUPT}


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_power_cut_loses_what_no_sync_covers(path, kept):
    """What a sync covers stays; of the rest each page is old or new by chance; nothing works afterwards."""

    async def scene(io: FaultyIo) -> None:
        file, source = await opened(io, path), memory(len(NEW), NEW)
        await io.write(file, [source[: 2 * PAGE]], 0)
        await io.sync(file)
        await io.write(file, [source[2 * PAGE :]], 2 * PAGE)
        await io.crash(kept)
        for transfer in (io.read(file, [memory(PAGE)], 0, nothing), io.write(file, [source], 0), io.sync(file)):
            with pytest.raises(TierFault, match="power"):
                await transfer
        file.close()

    live(path, DiskFaultPlan(seed=3), scene)
    changed = changed_pages(path.read_bytes())
    assert changed[:2] == [True, True]
    assert set(changed[2:]) == {0.0: {False}, 0.5: {False, True}, 1.0: {True}}[kept]


def test_a_lying_sync_shows_only_when_the_power_fails(path):
    """A sync that is acknowledged and never happened: reads still see the new bytes, the power cut does not."""
    plan = DiskFaultPlan()
    plan.script(DiskOperation.SYNC, DiskVerdict(DiskTrouble.LOST))

    async def scene(io: FaultyIo) -> None:
        file, target = await opened(io, path), memory(len(NEW))
        await io.write(file, [memory(len(NEW), NEW)], 0)
        await io.sync(file)
        assert await io.read(file, [target], 0, lambda: bytes(target)) == NEW
        await io.crash(kept=0)
        file.close()

    live(path, plan, scene)
    assert path.read_bytes() == OLD
