"""Rules that change while the planner runs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES
from flexkv_py.operating.messages import Rules
from flexkv_py.operating.rules import MOVED_PER_EVENT_MAX, Moving
from tests.core.conftest import chain
from tests.operating.test_operations import WITH_SSD, in_dram, saved

BLOCKS = 2 * MOVED_PER_EVENT_MAX + 10


def many(benches: Any, **config: Any) -> tuple[Any, list[Any]]:
    bench = benches(dram_segments=BLOCKS, segment_bytes=1 << 14, **config)
    return bench, saved(bench, BLOCKS)


@pytest.mark.parametrize("old", POLICIES)
@pytest.mark.parametrize("new", POLICIES)
def test_all_copies_move_into_the_new_order(benches: Any, old: str, new: str) -> None:
    """In slices, from each policy into each: in the end every copy stands in the new one, none is lost, all match."""
    bench, keys = many(benches, policy=old)
    bench.change(Rules(policy=new))
    if old != new:
        assert isinstance(bench.order, Moving)
        bench.tick()
        assert bench.match(keys).length == BLOCKS
        assert bench.order.count == BLOCKS
    bench.quiet()
    assert type(bench.order) is POLICIES[new]
    assert bench.order.count == BLOCKS
    assert bench.match(keys).length == BLOCKS


def test_the_order_of_use_survives(benches: Any) -> None:
    """From LRU to LRU-like and back, with uses in between: victims go in the order of last use."""
    bench, keys = many(benches, policy="lru")
    bench.change(Rules(policy="adaptive"))
    bench.tick()
    used = random.Random(1).sample(keys, 40)
    for key in used:
        bench.load([key])
        bench.settle()
    bench.quiet()
    expected = [key for key in reversed(keys) if key not in used]  # a chain's tail is touched first
    policy, order = bench.order, []
    while (copy := policy.coldest()) is not None:
        copy.queue.remove(copy)
        order.append(copy)
    for copy in order:
        policy.add(copy)
    assert [copy.block.key for copy in order if copy.block.key in set(expected)] == expected
    assert set(used) <= {copy.block.key for copy in order[-41:]}  # `NEW_MIN`: one used once may stay among them


def test_room_is_made_while_copies_move(benches: Any) -> None:
    """Half of the copies have moved, and DRAM is full: new blocks find room all the same, the coldest go."""
    bench, keys = many(benches, policy="lru")
    bench.change(Rules(policy="s3fifo"))
    bench.tick()
    new = chain(5, "new")
    bench.save(new)
    bench.settle()
    bench.quiet()
    assert all(in_dram(bench, new))
    assert sum(in_dram(bench, keys)) == BLOCKS - 5
    assert not any(in_dram(bench, keys[-5:]))


def test_a_second_change_comes_after_the_first(benches: Any) -> None:
    """The wish is changed while copies still move: the last one holds in the end."""
    bench, _ = many(benches, policy="lru")
    bench.change(Rules(policy="s3fifo"))
    bench.change(Rules(policy="adaptive"))
    bench.quiet()
    assert type(bench.order) is POLICIES["adaptive"]


def test_gates_and_watermarks_hold_from_now_on(benches: Any) -> None:
    """Nothing is written with ssd_hits_min = 2; with 1 and a watermark the coldest are."""
    bench = benches(**WITH_SSD, ssd_hits_min=2)
    keys = saved(bench, 8)
    bench.quiet()
    assert not any(bench.copy(key, Tier.SSD) for key in keys)
    bench.change(Rules(ssd_hits_min=1, dram_clean_ahead=0.9, retry_after_ns=7))
    saved(bench, 2, "more")
    bench.quiet()
    assert any(bench.copy(key, Tier.SSD) for key in keys)
    assert bench.state.config.retry_after_ns == 7


def test_an_endurance_budget_holds_from_now_on(benches: Any) -> None:
    """With next to nothing a day one record is written, and then no more."""
    bench = benches(**WITH_SSD, dram_clean_ahead=0.9)
    bench.change(Rules(ssd_bytes_per_day=1))
    saved(bench, 8)
    bench.quiet()
    assert bench.state.levels[Tier.SSD].used_bytes <= 20_480
