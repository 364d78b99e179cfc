"""The fake tier: its faults come when they were planned, and the same seed plans the same."""

from __future__ import annotations

import asyncio

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.fake import WELL, FakeRecords, FakeStore, FaultPlan, Operation, Verdict
from tests.tiers.contract import SMALL, Frames, block, content, drain, opened, places_of


def stored(records: FakeRecords, number: int = 1, verdict: Verdict = WELL) -> int:
    chunks = content(block(number), SMALL)
    sums = [chunk_checksum(block(number).key, at, chunk) for at, chunk in enumerate(chunks)]
    return records.write(block(number), chunks, sums, verdict)


@pytest.mark.parametrize("at", [0, 30, 4095, 4096, 4096 + sum(SMALL) - 1])
def test_damaged_records_are_corrupt(at):
    """Any byte of a stored record may be damaged by hand, and no read lets it through."""
    records = FakeRecords(1 << 20)
    location = stored(records)
    records.raw[location][at] ^= 1
    with pytest.raises(TierFault) as caught:
        [records.read(block(1), location, chunk) for chunk in range(len(SMALL))]
    assert caught.value.fault is Fault.CORRUPT


def test_damaged_headers_are_not_found():
    """A new life forgets records whose header is damaged and has their room back."""
    records = FakeRecords(1 << 20)
    bad, good = stored(records, 1), stored(records, 2)
    records.raw[bad][100] ^= 1
    assert places_of(records.found()) == {block(2): good}
    assert records.used_bytes == 4096 + sum(SMALL)


@pytest.mark.parametrize("fault", [Fault.IO, Fault.FULL, Fault.LATE, Fault.DOWN])
def test_a_planned_write_fault_stores_nothing(fault):
    """A write that meets a fault leaves no record."""
    records = FakeRecords(1 << 20)
    with pytest.raises(TierFault) as caught:
        stored(records, verdict=Verdict(fault=fault))
    assert caught.value.fault is fault
    assert not records.found()


def test_silent_corruption_is_met_on_read():
    """A write that lies succeeds, is found, and is CORRUPT when read."""
    records = FakeRecords(1 << 20)
    location = stored(records, verdict=Verdict(fault=Fault.CORRUPT))
    assert places_of(records.found()) == {block(1): location}
    with pytest.raises(TierFault):
        records.read(block(1), location, 0)


def test_a_read_fault_comes_at_its_chunk():
    """Chunks before the planned one land, the planned one faults."""

    async def scene(frames: Frames) -> None:
        plan = FaultPlan()
        async with opened(FakeStore(FakeRecords(1 << 20), frames.arena, plan)) as store:
            location = await store.write(block(1), frames.fill(block(1), SMALL))
            plan.script(Operation.READ, Verdict(fault=Fault.IO, chunk=1))
            reading = store.read(block(1), location, frames.take(SMALL))
            assert await anext(reading) == 0
            with pytest.raises(TierFault, match="chunk 1"):
                await anext(reading)
            assert await drain(store, block(1), location, frames.take(SMALL)) == [0, 1]
            assert store.status()["faults"]["io"] == 1

    frames = Frames()
    asyncio.run(scene(frames))
    frames.arena.close()


def test_the_same_seed_plans_the_same():
    """Two plans of one seed answer alike; another seed answers otherwise; rates are about kept."""

    def verdicts(seed: int) -> list[Verdict]:
        rates = {Operation.READ: {Fault.IO: 0.1, Fault.LATE: 0.1}}
        plan = FaultPlan(seed, latency_ns=(10, 20), rates=rates)
        return [plan.verdict(Operation.READ) for _ in range(1000)]

    one = verdicts(1)
    assert one == verdicts(1) != verdicts(2)
    assert all(10 <= verdict.latency_ns <= 20 for verdict in one)
    assert 120 < sum(verdict.fault is not None for verdict in one) < 260


def test_a_script_goes_before_chance():
    """Scripted verdicts are met in order, each by one operation of its kind."""
    plan = FaultPlan(latency_ns=(5, 5))
    plan.script(Operation.WRITE, Verdict(fault=Fault.FULL), Verdict(latency_ns=9))
    assert plan.verdict(Operation.READ) == Verdict(5)
    assert [plan.verdict(Operation.WRITE) for _ in range(3)] == [
        Verdict(fault=Fault.FULL),
        Verdict(latency_ns=9),
        Verdict(latency_ns=5),
    ]


def test_a_drop_makes_room_whatever_became_of_the_record():
    """A record truncated by hand still gives back what it took."""
    records = FakeRecords(4096 + sum(SMALL))
    location = stored(records)
    del records.raw[location][5000:]
    records.drop(block(1), location)
    records.drop(block(1), location)
    assert records.used_bytes == 0
    stored(records, 2)
