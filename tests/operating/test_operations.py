"""Evictions, demotions and prefetches by the operator: what they do, what they leave, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import DrainStarted, Fault, MoveKind, Tier, TierChanged
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import NamespaceDigest
from flexkv_py.operating.messages import (
    Choice,
    DrainEnded,
    OperationAdvanced,
    OperationAsked,
    OperationCancelled,
    OperationKind,
    WishRefused,
)
from tests.core.conftest import NAMESPACE, chain
from tests.operating.conftest import SECOND

EVICT, DEMOTE, PREFETCH = OperationKind.EVICT, OperationKind.DEMOTE, OperationKind.PREFETCH
BLOCK_BYTES = 2 * 8192
"""What one block takes of DRAM: two frames of the larger chunk."""

WITH_SSD: dict[str, Any] = {"tiers": (Tier.DRAM, Tier.SSD), "ssd_bytes": 1 << 20}
UNCLEAN = {"dram_clean_ahead": 0.0}
"""Nothing is written below before somebody asks for it."""


def saved(bench: Any, count: int, branch: str = "") -> list[Any]:
    keys = chain(count, branch)
    bench.save(keys)
    bench.quiet()
    return keys


def in_dram(bench: Any, keys: list[Any]) -> list[bool]:
    return [bench.copy(key, Tier.DRAM) is not None for key in keys]


def test_an_eviction_writes_first_what_would_be_lost(benches: Any) -> None:
    """Nothing is below yet: all four are written to SSD, then leave DRAM, and can still be loaded."""
    bench = benches(**WITH_SSD, **UNCLEAN)
    keys = saved(bench, 4)
    end = bench.operate(EVICT, Tier.DRAM)
    assert (end.blocks, end.bytes, end.kept) == (4, 4 * BLOCK_BYTES, 0)
    assert in_dram(bench, keys) == [False] * 4
    assert bench.match(keys).length == 4


def test_an_eviction_without_a_tier_below_drops(benches: Any) -> None:
    """DRAM is all there is: what nothing needs is gone, as the operator said."""
    bench = benches()
    keys = saved(bench, 4)
    assert bench.operate(EVICT, Tier.DRAM).blocks == 4
    assert bench.match(keys).length == 0


def test_an_eviction_leaves_what_is_pinned_or_leased(benches: Any) -> None:
    """One block is pinned and another leased: both stay, are counted, and the end says why."""
    bench = benches()
    pinned, leased, other = saved(bench, 1, "p"), saved(bench, 1, "l"), saved(bench, 2, "o")
    bench.pin(pinned)
    assert bench.match(leased, hold_ns=SECOND).lease
    end = bench.operate(EVICT, Tier.DRAM)
    assert (end.blocks, end.kept) == (2, 2)
    assert "pinned" in end.detail
    assert "leased" in end.detail
    assert in_dram(bench, [*pinned, *leased, *other]) == [True, True, False, False]


def test_an_eviction_of_some_bytes_takes_the_coldest(benches: Any) -> None:
    """Two blocks' worth is asked for: those used longest ago go, and no more."""
    bench = benches(policy="lru")
    cold, warm = saved(bench, 2, "cold"), saved(bench, 3, "warm")
    end = bench.operate(EVICT, Tier.DRAM, Choice(bytes_max=2 * BLOCK_BYTES))
    assert end.blocks == 2
    assert in_dram(bench, [*cold, *warm]) == [False] * 2 + [True] * 3


def test_an_eviction_of_some_bytes_writes_no_more_than_that(benches: Any) -> None:
    """All must be written first: as many are begun with as are asked for, not as many as may be under way."""
    bench = benches(**WITH_SSD, **UNCLEAN, policy="lru")
    keys = saved(bench, 8)
    end = bench.operate(EVICT, Tier.DRAM, Choice(bytes_max=3 * BLOCK_BYTES))
    assert (end.blocks, end.bytes) == (3, 3 * BLOCK_BYTES)
    assert sum(bench.copy(key, Tier.SSD) is not None for key in keys) == 3


def test_an_eviction_takes_only_what_is_meant(benches: Any) -> None:
    """By namespace nothing is meant of another; by prefix one key; by key that one."""
    bench = benches()
    keys = saved(bench, 3)
    assert bench.operate(EVICT, Tier.DRAM, Choice(namespaces=(NamespaceDigest(bytes(32)),))).blocks == 0
    assert bench.operate(EVICT, Tier.DRAM, Choice(namespaces=(NAMESPACE,), prefix=keys[2].hex()[:9])).blocks == 1
    assert in_dram(bench, keys) == [True, True, False]
    end = bench.operate(EVICT, Tier.DRAM, Choice(keys=(keys[1], keys[2])))
    assert (end.blocks, end.kept, end.detail) == (1, 1, "1 in no tier")


def test_an_eviction_from_ssd_is_not_undone_by_cleaning_ahead(benches: Any) -> None:
    """Records go though their blocks are in DRAM too: they are not written again at once."""
    bench = benches(**WITH_SSD)
    keys = saved(bench, 2)
    bench.operate(DEMOTE, Tier.SSD)
    assert bench.operate(EVICT, Tier.SSD).blocks == 2
    bench.quiet()
    assert [bench.copy(key, Tier.SSD) for key in keys] == [None, None]
    assert in_dram(bench, keys) == [True, True]


def test_an_eviction_of_more_than_a_slice_goes_on_by_itself(benches: Any) -> None:
    """Three hundred blocks go in slices, each after an event that the planner asked for itself."""
    bench = benches(dram_segments=400, segment_bytes=1 << 14)
    keys = saved(bench, 300)
    end = bench.operate(EVICT, Tier.DRAM)
    assert end.blocks == 300
    advanced = [each for each in bench.told if isinstance(each, OperationAdvanced)]
    assert {each.total for each in advanced} == {300}
    assert not any(in_dram(bench, keys))


def test_a_block_used_while_an_eviction_gathers_is_no_end_of_it(benches: Any) -> None:
    """The copy that the walk stands at is used, so it moves to the end of its list: all are met all the same."""
    bench = benches(dram_segments=700, segment_bytes=1 << 14, policy="lru")
    keys = saved(bench, 600)
    bench.numbers += 1
    bench.post(OperationAsked(bench.numbers, EVICT, Choice(), Tier.DRAM, 100 * SECOND, bench.now_ns))
    hand = next(order.hand for order in bench.order.lists if order.hand is not None)
    bench.load([hand.block.key])
    bench.settle_copies()
    bench.quiet()
    end = bench.end_of(bench.numbers)
    assert end.blocks == 600
    assert not any(in_dram(bench, keys))


def test_a_demotion_writes_whatever_admission_says(benches: Any) -> None:
    """Two uses are asked for and the blocks have one: the operator's word counts more, and DRAM keeps its copies."""
    bench = benches(**WITH_SSD, ssd_hits_min=2)
    keys = saved(bench, 3)
    end = bench.operate(DEMOTE, Tier.SSD)
    assert (end.blocks, end.kept) == (3, 0)
    assert all(bench.copy(key, Tier.SSD) is not None for key in keys)
    assert in_dram(bench, keys) == [True] * 3
    assert bench.operate(DEMOTE, Tier.SSD).blocks == 0


def test_a_demotion_that_fails_says_so(benches: Any) -> None:
    """The disk takes nothing: after some tries the blocks are kept, and why is said in the end."""
    bench = benches(**WITH_SSD, **UNCLEAN)
    saved(bench, 2)
    bench.operate(DEMOTE, Tier.SSD, settle=False)
    for _ in range(100):
        bench.now_ns += SECOND
        bench.tick()
        for move in bench.moves(MoveKind.DEMOTE):
            bench.finish(move.transfer, Fault.IO)
    end = bench.end_of(bench.numbers)
    assert (end.blocks, end.kept) == (0, 2)
    assert "not written" in end.detail


def test_a_prefetch_brings_blocks_back_and_they_stay(benches: Any) -> None:
    """What was evicted is in DRAM again, and is not the next to go."""
    bench = benches(**WITH_SSD, policy="lru")
    keys = saved(bench, 2)
    bench.operate(EVICT, Tier.DRAM)
    saved(bench, 3, "other")
    end = bench.operate(PREFETCH, Tier.DRAM, Choice(keys=(*keys, chain(1, "unknown")[0])))
    assert (end.blocks, end.kept, end.detail) == (2, 1, "1 in no tier")
    bench.operate(DEMOTE, Tier.SSD)  # else room would be made by what needs no write first
    saved(bench, 4, "more")
    assert in_dram(bench, keys) == [True, True]


def test_a_prefetch_while_the_daemon_drains_is_refused(benches: Any) -> None:
    """It admits nothing new until it is resumed."""
    bench = benches(**WITH_SSD)
    keys = saved(bench, 2)
    bench.operate(EVICT, Tier.DRAM)
    bench.post(DrainStarted(bench.now_ns))
    assert bench.operate(PREFETCH, Tier.DRAM, Choice(keys=tuple(keys))).code is ErrorCode.DRAINING
    bench.post(DrainEnded(bench.now_ns))
    assert bench.operate(PREFETCH, Tier.DRAM, Choice(keys=tuple(keys))).blocks == 2


def test_a_deadline_leaves_the_rest(benches: Any) -> None:
    """The disk does not answer: at the deadline the operation ends, and what it waited for is kept and held no more."""
    bench = benches(**WITH_SSD, **UNCLEAN)
    keys = saved(bench, 2)
    bench.operate(DEMOTE, Tier.SSD, deadline_ns=SECOND, settle=False)
    bench.slices()
    bench.now_ns = SECOND
    bench.tick()
    end = bench.end_of(bench.numbers)
    assert (end.blocks, end.kept) == (0, 2)
    assert "deadline" in end.detail
    bench.quiet()
    assert all(bench.state.index(NAMESPACE, 0).blocks[key].holds == 0 for key in keys)


@pytest.mark.parametrize("slices", [0, 1, 2, 3])
def test_a_cancelled_operation_ends_whenever_that_comes(benches: Any, slices: int) -> None:
    """Before, while and after it gathers: one end, nothing held, and the next eviction walks from the start."""
    bench = benches(**WITH_SSD, **UNCLEAN, dram_segments=700, segment_bytes=1 << 14)
    saved(bench, 300)
    bench.operate(EVICT, Tier.DRAM, settle=False)
    for _ in range(slices):
        bench.tick()
    bench.post(OperationCancelled(bench.numbers, bench.now_ns))
    end = bench.end_of(bench.numbers)
    assert "cancelled" in end.detail
    bench.quiet()
    assert all(block.holds == 0 for block in bench.state.index(NAMESPACE, 0).blocks.values())
    assert bench.operate(EVICT, Tier.DRAM).kept == 0
    assert bench.state.frames.used_pages == 0


@pytest.mark.parametrize(
    ("kind", "tier", "code"),
    [
        (EVICT, Tier.S3, ErrorCode.TIER_UNAVAILABLE),
        (EVICT, Tier.HBM, ErrorCode.TIER_UNAVAILABLE),
        (DEMOTE, Tier.DRAM, ErrorCode.TIER_UNAVAILABLE),
    ],
)
def test_an_operation_on_a_tier_that_is_not_there_is_refused(
    benches: Any, kind: OperationKind, tier: Tier, code: ErrorCode
) -> None:
    """The refusal has a code and names the cure."""
    refused = benches(**WITH_SSD).operate(kind, tier)
    assert isinstance(refused, WishRefused)
    assert refused.code is code
    assert "name one it has" in refused.message


def test_while_ssd_is_down_dram_keeps_what_would_be_lost(benches: Any) -> None:
    """An eviction from SSD is refused then, and one from DRAM drops nothing that is nowhere else."""
    bench = benches(**WITH_SSD, **UNCLEAN)
    keys = saved(bench, 2)
    bench.post(TierChanged(Tier.SSD, False, "unplugged", bench.now_ns))
    assert "unplugged" in bench.operate(EVICT, Tier.SSD).message
    assert bench.operate(EVICT, Tier.DRAM).kept == 2
    assert in_dram(bench, keys) == [True, True]


def test_no_more_operations_run_than_the_limit(benches: Any) -> None:
    """The seventeenth at a time is refused."""
    bench = benches(**WITH_SSD, **UNCLEAN)
    saved(bench, 2)
    for _ in range(16):
        assert bench.operate(DEMOTE, Tier.SSD, settle=False) is None
    assert bench.operate(DEMOTE, Tier.SSD).code is ErrorCode.LIMIT_EXCEEDED
    bench.quiet()
