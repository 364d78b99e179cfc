"""Every eviction policy keeps its promise, and LRU is the order it says it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.blocks import Block, Copy, Index
from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES, LeastRecentlyUsed
from tests.core.conftest import NAMESPACE, chain

STEPS = st.lists(st.tuples(st.sampled_from(("add", "cool", "remove", "evict")), st.integers(0, 7)))


def copies(count: int) -> list[Copy]:
    """DRAM copies of unrelated blocks."""
    index = Index(NAMESPACE, 0)
    return [Copy(Block(key, key, index), Tier.DRAM, b"") for key in chain(count)]


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
            policy.remove(copy)
            standing.remove(at)
        elif what == "evict" and (coldest := policy.coldest()) is not None:
            policy.remove(coldest)
            standing.remove(all_copies.index(coldest))
        assert policy.count == len(standing)
        assert (policy.coldest() is None) == (not standing)
    while (coldest := policy.coldest()) is not None:
        policy.remove(coldest)
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
            policy.remove(copy)
            order.remove(copy)
        assert policy.coldest() is (order[0] if order else None)
    assert policy.count == len(order)


def test_a_copy_stands_in_one_order_only():
    """Putting a copy where it already stands is a bug, and so is taking it out twice."""
    policy, [copy] = LeastRecentlyUsed(), copies(1)
    policy.add(copy)
    with pytest.raises(AssertionError):
        policy.add(copy)
    policy.remove(copy)
    with pytest.raises(AssertionError):
        policy.remove(copy)
