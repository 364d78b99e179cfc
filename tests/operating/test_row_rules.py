"""Another row policy while requests run."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import AttachAnswered, RequestAttached, RequestDetached, Tier
from flexkv_py.operating.messages import Rules
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.policy import Place
from flexkv_py.rows.succession import Succession
from tests.core.conftest import chain
from tests.operating.test_operations import WITH_SSD, saved

REQUEST = 70
BLOCKS = 600


def decoding(benches: Any, policy: str) -> tuple[Any, list[Any]]:
    """One running request with more blocks than one slice tells of."""
    bench = benches(**WITH_SSD, dram_segments=BLOCKS, segment_bytes=1 << 14, dram_clean_ahead=0.0)
    bench.change(Rules(row_policy=policy))
    bench.quiet()
    keys = saved(bench, BLOCKS)
    bench.post(RequestAttached(1, 900, REQUEST, 0, keys, bench.now_ns))
    assert any(isinstance(told, AttachAnswered) for told in bench.told)
    bench.quiet()
    return bench, keys


def granted(bench: Any) -> set[Place]:
    return set(bench.state.rows.policy.coldest(bench.now_ns))


@pytest.mark.parametrize("old", ROW_POLICIES)
@pytest.mark.parametrize("new", ROW_POLICIES)
def test_the_new_policy_knows_all_that_is_granted(benches: Any, old: str, new: str) -> None:
    """From each into each: while it learns the old decides, in the end it offers what is granted, and no other."""
    bench, _ = decoding(benches, old)
    before = granted(bench)
    assert len(before) == 2 * BLOCKS
    bench.change(Rules(row_policy=new))
    assert isinstance(bench.state.rows.policy, Succession)
    assert granted(bench) == before
    bench.quiet()
    assert type(bench.state.rows.policy) is ROW_POLICIES[new]
    assert bench.state.rows.limits.policy == new
    assert granted(bench) == before


def test_what_leaves_meanwhile_is_known_to_have_left(benches: Any) -> None:
    """The request is detached after the first slice: the new policy offers nothing of it."""
    bench, _ = decoding(benches, "lru")
    bench.change(Rules(row_policy="lfu"))
    bench.post(RequestDetached(1, 901, REQUEST, bench.now_ns))
    bench.quiet()
    assert granted(bench) == set()


def test_a_pinned_block_stays_under_running_requests(benches: Any) -> None:
    """DRAM is full of one running request, and a save needs room: what is revoked for it is not what is pinned."""
    bench = benches(**WITH_SSD, dram_segments=4, dram_clean_ahead=0.0)
    keys = saved(bench, 4)
    bench.post(RequestAttached(1, 900, REQUEST, 0, keys, bench.now_ns))
    bench.quiet()
    bench.pin(keys[:2], 1 << 60)
    bench.save(chain(1, "new"))
    bench.quiet()
    assert {copy.block.key for copy in bench.state.rows.going} <= set(keys[2:])
    assert all(bench.copy(key, Tier.DRAM).lacks == 0 for key in keys[:2])
