"""Chains of blocks: parents, children, and orphans that wait for a parent to return."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexkv_py.core.blocks import PLAIN, CopyState, Rank, Rule, SsdCopy, children_of
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import NamespaceSpec, Tier
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Demand
from flexkv_py.geometry import align_up
from flexkv_py.keys import ROOT
from tests.core.conftest import CHUNKS, NAMESPACE, chain, make_index


def tree() -> dict[bytes, bytes]:
    """Parents by key: one trunk of four blocks, and a branch at each of them."""
    trunk = chain(4)
    parents = dict(zip(trunk, [ROOT, *trunk], strict=False))
    return parents | {chain(1, f"branch{at}")[0]: key for at, key in enumerate(trunk)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=40))
def test_children_are_known_whatever_comes_and_goes(order):
    """Blocks appear and vanish in any order; each is always its parent's child, or waits for the parent by key."""
    parents = tree()
    keys, index = list(parents), make_index()
    for at in order:
        key = keys[at]
        if key in index.blocks:
            index.remove(index.blocks[key])
        else:
            index.add(key, parents[key])
        for present, block in index.blocks.items():
            wanted = {child for child in index.blocks if parents[child] == present}
            assert {child.key for child in children_of(block.children)} == wanted
        for missing, waiting in index.awaiting.items():
            assert missing not in index.blocks
            assert {child.key for child in children_of(waiting)} == {
                child for child in index.blocks if parents[child] == missing
            }
            assert waiting


def test_a_block_with_a_copy_is_not_forgotten():
    """A block leaves its index only when it is in no tier."""
    index = make_index()
    block = index.add(chain(1)[0], ROOT)
    block.ssd = SsdCopy(block, 5)
    with pytest.raises(AssertionError):
        index.remove(block)
    block.ssd = None
    index.remove(block)
    assert not index.blocks


def test_an_entry_of_the_index_stays_small():
    """A block and its copy on SSD take 208 bytes together: eight more in either would be sixteen, a million times."""
    index = make_index()
    block = index.add(chain(1)[0], ROOT)
    block.ssd = SsdCopy(block, 5)
    assert [align_up(sys.getsizeof(each), 16) for each in (block, block.ssd)] == [112, 96]


def test_what_few_blocks_have_is_kept_beside_them():
    """The rule of a save's hints is the block's own until it changes or the block is forgotten, and leaves nothing."""
    index = make_index()
    first, second = (index.add(key, ROOT) for key in chain(2))
    first.rule, second.rule = Rule(skip_below=True), Rule(rank=Rank.HIGH)
    assert (first.rule, second.rule) == (Rule(skip_below=True), Rule(rank=Rank.HIGH))
    first.rule = Rule()
    index.remove(second)
    assert first.rule == PLAIN
    assert not index.rules


def test_the_first_to_tell_says_how_blocks_are_cut():
    """The cut of a namespace never changes: its digest covers it."""
    index = make_index()
    index.introduce(NamespaceSpec(NAMESPACE, CHUNKS))
    index.introduce(NamespaceSpec(NAMESPACE, (4096,)))
    assert index.chunk_count == len(CHUNKS)
    assert index.full_mask == 0b11
    assert index.frame_pages == 2


def test_only_a_filling_copy_is_waited_for():
    """Nobody would ever tell someone who waits on a copy that has ended."""
    state = State(PlannerConfig())
    block = make_index().add(chain(1)[0], ROOT)
    copy = SsdCopy(block, 0)
    state.wait_on(copy, Demand(block, Tier.SSD, None, 0))
    copy.state = CopyState.READY
    with pytest.raises(AssertionError):
        state.wait_on(copy, Demand(block, Tier.SSD, None, 0))
