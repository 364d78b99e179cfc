"""Large records over several connections: how they are cut, and that they still come in order, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_tiers.base import TierFault
from flexkv_tiers.s3 import S3Store, ranges
from flexkv_tiers.s3.ranges import RANGE_BYTES_MIN, RANGES_MAX, cut_ranges
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.contract import assert_readable, block, content
from tests.tiers.s3_backing import patient, shared_server

MIB = 1 << 20
RECORD = (MIB,) * 8


@given(st.lists(st.integers(1, 40).map(lambda pages: pages * MIB), min_size=1, max_size=64))
def test_ranges_cover_every_chunk_once(lengths):
    """Whole chunks, in order, no gap; never more ranges than are worth it or than there are chunks."""
    found = cut_ranges(lengths, [True] * len(lengths))
    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(lengths)
    assert all(first < end for first, end in found)
    assert len(found) <= max(1, min(RANGES_MAX, sum(lengths) // RANGE_BYTES_MIN))


def test_small_records_are_one_range():
    """Up to twice the least a range is worth, one connection; four equal parts of a large one."""
    assert cut_ranges([MIB] * 31, [True] * 31) == [(0, 31)]
    assert cut_ranges([8 * MIB] * 8, [True] * 8) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_missing_chunks_make_ranges_of_their_own() -> None:
    """What is in DRAM already is not fetched again, however small the gaps are."""
    assert cut_ranges([MIB] * 6, [False, True, True, False, False, True]) == [(1, 3), (5, 6)]


def test_ranges_come_in_order_and_a_fault_ends_them_all(frames, tmp_path, monkeypatch):
    """Four connections: chunks in order, right to the bit; cut ones go on; one that fails frees every frame."""
    monkeypatch.setattr(ranges, "RANGE_BYTES_MIN", 2 * MIB)

    async def scene(store, proxy):
        await store.write(block(1), frames.fill(block(1), RECORD))
        await assert_readable(store, frames, block(1), 0, RECORD)
        frames.rewind()
        proxy.set(Faults(methods=["GET"], cut_answer=MIB + MIB // 2))
        target, landed = frames.take(RECORD), []
        async for chunk in store.read(block(1), 0, target):
            landed.append(chunk)
            assert frames.bytes_of(target)[chunk] == content(block(1), RECORD)[chunk]
        assert landed == list(range(8))
        proxy.set(Faults(methods=["GET"], bytes_per_s=4e6, cut_answer=MIB // 2))
        with pytest.raises(TierFault):
            await anext(store.read(block(1), 0, target))
        assert store.status()["moves_running"] == 0

    async def life():
        with FaultProxy(shared_server().endpoint_url) as proxy:
            store = S3Store(replace(patient(tmp_path.name), endpoint_url=proxy.endpoint_url), frames.arena)
            try:
                await store.start()
                await scene(store, proxy)
            finally:
                await store.close()

    asyncio.run(life())
