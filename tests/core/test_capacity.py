"""A tier that holds more than it may: less was configured than the last life had, or another daemon has written."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.endings import DROP_PAUSE_NS
from flexkv_py.core.messages import (
    BlocksFound,
    Event,
    Fault,
    FoundBlock,
    Instruction,
    MoveKind,
    StartMove,
    Tier,
    TierChanged,
)
from flexkv_py.core.room import VICTIM_SCAN_MAX
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey
from tests.core.conftest import CHUNKS, NAMESPACE, Bench, chain

RECORD_BYTES = ALIGN_BYTES + sum(CHUNKS)
FOUND, FIT = 100, 10
BELOW = {
    "s3": (Tier.S3, {"tiers": (Tier.DRAM, Tier.S3), "s3_bytes": FIT * RECORD_BYTES}),
    "ssd": (Tier.SSD, {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": FIT * RECORD_BYTES}),
    "ssd above s3": (Tier.SSD, {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": FIT * RECORD_BYTES}),
    "s3 below ssd": (
        Tier.S3,
        {"tiers": (Tier.DRAM, Tier.SSD, Tier.S3), "ssd_bytes": FIT * RECORD_BYTES, "s3_bytes": FIT * RECORD_BYTES},
    ),
}


def find(bench: Bench, keys: list[BlockKey], tier: Tier) -> None:
    """One batch of what the tier has already."""
    found = [FoundBlock(key, parent, at) for at, (key, parent) in enumerate(zip(keys, (ROOT, *keys), strict=False))]
    bench.post(BlocksFound(tier, NAMESPACE, 0, RECORD_BYTES, found, bench.now_ns))


def served(bench: Bench, keys: list[BlockKey], tier: Tier) -> int:
    """How many of them the tier still serves."""
    copies = [bench.copy(key, tier) for key in keys]
    return sum(copy is not None and copy.state is CopyState.READY for copy in copies)


@pytest.mark.parametrize("name", BELOW)
def test_a_tier_over_its_capacity_goes_on_dropping_until_it_is_within(benches: Any, name: str) -> None:
    """Ten times what fits is found, and nobody asks for more: so many go per event, until all that must are gone."""
    tier, config = BELOW[name]
    bench, keys = benches(**config), chain(FOUND)
    level, drops_per_event = bench.planner.state.levels[tier], []
    post = bench.post

    def count_drops(event: Event) -> list[Instruction]:
        out = post(event)
        drops_per_event.append(sum(type(one) is StartMove and one.kind is MoveKind.DROP for one in out))
        return out

    bench.post = count_drops
    find(bench, keys, tier)
    events = 0
    while bench.running or bench.planner.next_deadline_ns() is not None:
        if bench.running:
            bench.settle_once()
        else:
            bench.tick()
        events += 1
        assert events < 2 * FOUND
    assert max(drops_per_event) <= VICTIM_SCAN_MAX
    assert level.used_bytes <= level.capacity_bytes
    assert served(bench, keys, tier) >= FIT // 2


def test_an_s3_that_is_down_is_brought_within_its_capacity_when_it_is_back(benches: Any) -> None:
    """While it is down nothing could be dropped there, so nothing is asked; no wake-up is needed afterwards."""
    tier, config = BELOW["s3"]
    bench = benches(**config)
    bench.post(TierChanged(tier, False, "unplugged", bench.now_ns))
    find(bench, chain(FOUND), tier)
    assert not bench.running
    assert bench.planner.next_deadline_ns() is None
    bench.post(TierChanged(tier, True, "", bench.now_ns))
    bench.settle()
    assert bench.planner.state.levels[tier].used_bytes == FIT * RECORD_BYTES


@pytest.mark.parametrize("name", ["s3", "ssd"])
def test_drops_that_are_refused_cost_no_block_after_block(benches: Any, name: str) -> None:
    """A bucket or disk that takes no delete: what was asked is asked again, and the rest of the blocks is served on."""
    tier, config = BELOW[name]
    bench, keys = benches(**config), chain(FOUND)
    find(bench, keys, tier)
    for _ in range(FOUND):
        for move in bench.moves(MoveKind.DROP):
            bench.finish(move.transfer, Fault.IO)
        bench.now_ns += DROP_PAUSE_NS
        bench.tick()
    assert served(bench, keys, tier) == FOUND - VICTIM_SCAN_MAX
    bench.settle()
    assert bench.planner.state.levels[tier].used_bytes <= FIT * RECORD_BYTES


def test_what_leases_hold_stays_and_costs_no_wake_up(benches: Any) -> None:
    """A tier that may drop nothing rests over its capacity until the lease ends, and is within it then."""
    tier, config = BELOW["s3"]
    bench, keys = benches(**config, dram_segments=FOUND), chain(FIT)
    find(bench, keys, tier)
    bench.match(keys, hold_ns=DROP_PAUSE_NS)
    find(bench, chain(FIT, "other"), tier)
    bench.settle()
    assert served(bench, keys, tier) == FIT
    assert bench.planner.next_deadline_ns() == DROP_PAUSE_NS
