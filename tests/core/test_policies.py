"""Every eviction policy keeps its promise, and LRU is the order it says it is."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.blocks import Block, Copy, DramCopy
from flexkv_py.core.history import History
from flexkv_py.core.policies import POLICIES, Adaptive, LeastRecentlyUsed, Policy, SmallMainFifo
from flexkv_py.keys import BlockKey
from tests.core.conftest import chain, make_index

STEPS = st.lists(st.tuples(st.sampled_from(("add", "cool", "remove", "evict")), st.integers(0, 7)))


def copies(count: int) -> list[Copy]:
    """DRAM copies of unrelated blocks."""
    index = make_index()
    return [DramCopy(Block(key, key, index), b"") for key in chain(count)]


def take_out(copy: Copy) -> None:
    assert copy.queue is not None
    copy.queue.remove(copy)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_policy_orders_exactly_what_stands_in_it(name, steps):
    """Whatever happens, the coldest is one that was put in and not taken out, and the count is right."""
    policy, all_copies, standing = POLICIES[name](), copies(8), set()
    for what, at in steps:
        copy = all_copies[at]
        if what in ("add", "cool") and at not in standing:
            (policy.add if what == "add" else policy.cool)(copy)
            standing.add(at)
        elif what == "remove" and at in standing:
            take_out(copy)
            standing.remove(at)
        elif what == "evict" and (coldest := policy.coldest()) is not None:
            take_out(coldest)
            standing.remove(all_copies.index(coldest))
        assert policy.count == len(standing)
        assert (policy.coldest() is None) == (not standing)
    while (coldest := policy.coldest()) is not None:
        take_out(coldest)
        standing.remove(all_copies.index(coldest))
    assert not standing


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_lru_is_a_list(steps):
    """LRU against a Python list: added at the warm end, cooled at the cold one, evicted from there."""
    policy, all_copies = LeastRecentlyUsed(), copies(8)
    order: list[Copy] = []
    for what, at in steps:
        copy = all_copies[at]
        if what == "add" and copy not in order:
            policy.add(copy)
            order.append(copy)
        elif what == "cool" and copy not in order:
            policy.cool(copy)
            order.insert(0, copy)
        elif what == "remove" and copy in order:
            take_out(copy)
            order.remove(copy)
        assert policy.coldest() is (order[0] if order else None)
    assert policy.count == len(order)


def test_a_copy_stands_in_one_order_only():
    """Putting a copy where it already stands is a bug, and so is taking it out twice."""
    policy, [copy] = LeastRecentlyUsed(), copies(1)
    policy.add(copy)
    with pytest.raises(AssertionError):
        policy.add(copy)
    take_out(copy)
    with pytest.raises(AssertionError):
        take_out(copy)


# ------------------------------------------------- whole caches, against reference models


def misses(policy: Policy, references: list[int], room: int) -> int:
    """A cache of `room` blocks in this order of eviction, with the planner's history, and what it missed."""
    index, history = make_index(), History()
    cached: dict[int, Copy] = {}
    missed = 0
    for number in references:
        copy = cached.get(number)
        if copy is not None:
            take_out(copy)
        else:
            missed += 1
            if len(cached) == room:
                victim = policy.coldest()
                take_out(victim)
                del cached[int.from_bytes(victim.block.parent, "little")]
                history.remember(victim.block.key, 0, victim.block.uses, room)
            key = BlockKey(hashlib.sha256(number.to_bytes(8, "little")).digest()[:16])
            block = Block(key, BlockKey(number.to_bytes(16, "little")), index)
            block.uses = history.recall(key, 0)
            copy = cached[number] = DramCopy(block, b"")
        copy.block.uses += 1
        policy.add(copy)
    return missed


def flooded(seed: int, count: int) -> list[int]:
    """Half of it a set that returns, in turn; half of it blocks used once: LRU keeps neither."""
    chance = random.Random(seed)
    fresh = iter(range(1000, 1 << 30))
    return [chance.randrange(300) if chance.random() < 0.5 else next(fresh) for _ in range(count)]


def drifting(seed: int, count: int) -> list[int]:
    """What was used lately is used again, and what was used often is not: LRU's own kind."""
    chance = random.Random(seed)
    return [at // 10 - int(chance.expovariate(1 / 120)) + 1_000_000 for at in range(count)]


def looping(seed: int, count: int) -> list[int]:
    """A loop a little larger than the cache, at another place every few thousand references."""
    return [at % 480 + at // 6000 * 1000 + seed for at in range(count)]


@pytest.mark.parametrize("make", [flooded, drifting, looping])
@pytest.mark.parametrize("seed", [1, 2])
def test_adaptive_has_lru_as_its_floor(make, seed):
    """On traffic that suits LRU, that suits another order, or that suits none: not 1 % more misses than LRU."""
    references = make(seed, 24_000)
    floor = misses(LeastRecentlyUsed(), references, 400)
    assert misses(Adaptive(), references, 400) <= 1.01 * floor


def test_adaptive_and_s3fifo_withstand_a_flood():
    """A flood of blocks used once pushes out less of what returns than under LRU: a tenth fewer misses at least."""
    references = flooded(3, 24_000)
    floor = misses(LeastRecentlyUsed(), references, 250)
    assert misses(Adaptive(), references, 250) <= 0.9 * floor
    assert misses(SmallMainFifo(), references, 250) <= 0.9 * floor


def test_adaptive_turns_back_when_the_traffic_does():
    """After a flood the order follows another candidate; when LRU is best again it follows LRU."""
    policy = Adaptive()
    misses(policy, flooded(4, 12_000), 250)
    assert policy.duel.best.share < 1.0
    policy = Adaptive()
    misses(policy, [*flooded(4, 12_000), *drifting(4, 24_000)], 250)
    assert policy.duel.best.share == 1.0


def test_s3fifo_gives_a_used_block_another_round():
    """New blocks beyond the small share go first; in the main queue a use earns a round, and rounds run out."""
    policy, [first, second, *fresh] = SmallMainFifo(), copies(6)
    for copy in (first, second):
        copy.block.uses = 2
        policy.add(copy)
    for copy in fresh:
        copy.block.uses = 1
        policy.add(copy)
    for copy in fresh[:-1]:
        assert policy.coldest() is copy
        take_out(copy)
    take_out(fresh[-1])
    first.block.uses += 1
    assert policy.coldest() is second
    take_out(second)
    assert policy.coldest() is first


def test_the_history_forgets_the_oldest_first():
    """Of many more blocks than it has places the newest are remembered with their uses, the oldest are not."""
    history = History()
    keys = [BlockKey(hashlib.sha256(bytes([at % 256, at // 256])).digest()[:16]) for at in range(8_000)]
    for at, key in enumerate(keys):
        history.remember(key, 0, 1 + at % 9, 1000)
    assert [history.recall(key, 0) for key in keys[-500:]] == [1 + at % 9 for at in range(7_500, 8_000)]
    assert not any(history.recall(key, 0) for key in keys[:1_000])
    assert not history.recall(keys[-1], 1), "another shard's block is another block"


def test_the_history_grows_and_forgets_nothing_by_it():
    """Entries made while it was small are found after it has doubled several times."""
    history = History()
    keys = [BlockKey(hashlib.sha256(bytes([at % 256, 9])).digest()[:16]) for at in range(100)]
    for key in keys:
        history.remember(key, 0, 3, 100)
    history.remember(BlockKey(b"x" * 16), 0, 1, 100_000)
    assert [history.recall(key, 0) for key in keys] == [3] * 100


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_was_written_last_is_not_the_next_victim(name):
    """Among blocks used often, a block that is new is not the first to go, whatever its share of the room."""
    policy, standing = POLICIES[name](), copies(9)
    for number, copy in enumerate(standing):
        copy.block.uses = 3 if number < 8 else 1
        policy.add(copy)
    assert policy.coldest() is not standing[-1]
