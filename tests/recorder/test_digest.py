"""What makes two states different, and what does not."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    NamespaceSpec,
    SaveAsked,
    SaveHints,
    SessionOpened,
    StartCopies,
    Tier,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.planner import Planner
from flexkv_py.core.state import State
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkvd.recorder.digest import digest_of, witness_of

KEYS = [BlockKey(bytes([number]) * 16) for number in range(1, 5)]


def saved() -> Planner:
    """A planner with four READY blocks in DRAM, saved one after the other; every object of it is its own."""
    planner = Planner(PlannerConfig(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 30, dram_segments=1))
    planner.handle(SessionOpened(1, NamespaceSpec(NamespaceDigest(bytes(32)), (4096,) * 2), 0, 0))
    for number, key in enumerate(KEYS, 1):
        out = planner.handle(SaveAsked(1, number, [key], ROOT, 1 << 62, Tier.DRAM, SaveHints(), number))
        [copies] = [each for each in out if isinstance(each, StartCopies)]
        done = [TransferResult(block.transfer, chunks=3) for block in copies.blocks]
        planner.handle(TransfersFinished(done, number))
    return planner


def test_planners_that_were_told_the_same_have_one_digest() -> None:
    """Objects of their own at other addresses: the digest and the witness are the same."""
    one, other = saved(), saved()
    assert digest_of(one.state) == digest_of(other.state)
    assert witness_of(one.state) == witness_of(other.state)


def _swap_eviction_order(state: State) -> None:
    [shelf] = state.dram.shelves
    order = shelf.policy.once
    copy = order.oldest
    assert copy is not None
    order.remove(copy)
    order.push_newest(copy)


def _reorder(kept: dict[Any, Any]) -> None:
    first = next(iter(kept))
    kept[first] = kept.pop(first)


def _block(state: State) -> object:
    [index] = state.indexes.values()
    return index.blocks[KEYS[0]]


CHANGES: dict[str, Callable[[State], object]] = {
    "an order of eviction": _swap_eviction_order,
    "a count of uses": lambda state: setattr(_block(state), "uses", 7),
    "a reader": lambda state: setattr(_block(state).dram, "readers", 1),
    "the next number": lambda state: next(state.numbers),
    "a frame": lambda state: state.frames.take(1, 1),
    "a timer": lambda state: state.timers.append((1, 1, "ticket", 1)),
    "an order of blocks": lambda state: _reorder(next(iter(state.indexes.values())).blocks),
    "what a block is remembered for": lambda state: state.history.remember(KEYS[0], 0, 3, 4),
    "a name in a set": lambda state: state.below[0].let_go.add(_block(state).name),
    "a part added by others": lambda state: setattr(state, "chores", [deque([1]).append]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_whatever_decides_is_in_the_digest(change: Callable[[State], object]) -> None:
    """One change of one thing, orders and queues included, makes another digest."""
    planner = saved()
    before = digest_of(planner.state)
    change(planner.state)
    assert digest_of(planner.state) != before


def test_state_behind_a_bound_method_counts() -> None:
    """A part that the state knows only by a method to call is walked as well, wrapped or not."""

    class Part:
        def __init__(self, value: int) -> None:
            self.value = value

        def work(self) -> None: ...

    digests = set()
    for value in (1, 2):
        for hook in (Part(value).work, partial(Part(value).work)):
            planner = saved()
            planner.state.hook = hook  # type: ignore[attr-defined]
            digests.add(digest_of(planner.state))
    assert len(digests) == 4


def test_values_that_cannot_change_are_one_whether_shared_or_not() -> None:
    """Two sessions with one spec, or with equal ones: nobody can tell later, so neither does the digest."""
    shared, apart = saved(), saved()
    spec = shared.state.sessions[1].spec
    shared.handle(SessionOpened(2, spec, 0, 9))
    apart.handle(SessionOpened(2, dataclasses.replace(spec), 0, 9))
    assert digest_of(shared.state) == digest_of(apart.state)


def test_a_set_of_objects_is_refused() -> None:
    """Its order would follow addresses: a planner must not have one, and the digest says so instead of guessing."""
    planner = saved()
    planner.state.friends = {object.__new__(Planner)}  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="no order"):
        digest_of(planner.state)
