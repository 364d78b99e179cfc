"""What each step needs of DRAM: selections run through the hot buffers, once for all policies.

A row that is not in its hot buffer makes its block *needed*: that chunk must be in DRAM for the step to succeed. What
a hot buffer holds does not depend on DRAM, because a step that fails changes nothing in it. Called by `run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flexkvd.selections import Selection

TOKENS_PER_BLOCK = 64
NEVER = np.iinfo(np.int32).max
Blocks = NDArray[np.int32]


class HotBuffer:
    """Which rows of one request and layer group are in HBM: exact LRU over `slots` rows, updated a step at a time."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._order = np.empty(0, np.int32)  # positions in slots, the one to go first in front
        self._resident = np.zeros(0, np.bool_)

    def step(self, positions: Blocks, token_count: int) -> Blocks:
        """Select these positions (int32, ascending, distinct). Returns those that were not resident."""
        if token_count > self._resident.size:
            self._resident = np.concatenate([self._resident, np.zeros(token_count, np.bool_)])
        misses = positions[~self._resident[positions]]
        selected = np.zeros(self._resident.size, np.bool_)
        selected[positions] = True
        used = selected[self._order]
        order = np.concatenate([self._order[~used], misses, self._order[used]])
        self._resident[misses] = True
        self._resident[order[: -self._slots]] = False
        self._order = order[-self._slots :]
        return misses


@dataclass(slots=True)
class GroupStep:
    """One layer group in one step. `next_needs`: for each needed block the step that needs it next, or NEVER."""

    needed: Blocks
    selected: Blocks
    counts: NDArray[np.int32]
    hits: int
    misses: int
    next_needs: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(slots=True)
class Step:
    """One step of one request. `due`: the engine's step in which it would run if nobody ever waited."""

    due: int
    token_count: int
    groups: list[GroupStep]


@dataclass(slots=True)
class RequestNeeds:
    """All steps of one request, and for each group which step needs each block first."""

    steps: list[Step]
    blocks: int
    """Full blocks at the end."""
    first_needs: list[NDArray[np.int32]]


def needs_of(selections: Iterable[Selection], hot_slots: int) -> list[RequestNeeds]:
    """Run all selections through hot buffers of `hot_slots` rows; requests in order of appearance."""
    steps: dict[int | str, dict[int, Step]] = {}
    buffers: dict[tuple[int | str, int], HotBuffer] = {}
    for selection in selections:
        of_request = steps.setdefault(selection.request, {})
        step = of_request.setdefault(selection.step, Step(selection.step, selection.token_count, []))
        buffer = buffers.setdefault((selection.request, selection.layer), HotBuffer(hot_slots))
        step.groups.append(_group_step(buffer, selection, hot_slots))
    return [_with_future(list(of_request.values())) for of_request in steps.values()]


def _group_step(buffer: HotBuffer, selection: Selection, hot_slots: int) -> GroupStep:
    positions = selection.positions[selection.positions < selection.token_count - 1]  # the newest has its own slot
    fits = selection.token_count <= hot_slots
    misses = positions[:0] if fits else buffer.step(positions, selection.token_count)
    selected, counts = np.unique(positions // TOKENS_PER_BLOCK, return_counts=True)
    needed = np.unique(misses // TOKENS_PER_BLOCK)
    full = selection.token_count // TOKENS_PER_BLOCK  # a block that is being written stays in HBM
    kept = selected < full
    return GroupStep(
        needed[needed < full].astype(np.int32),
        selected[kept].astype(np.int32),
        counts[kept].astype(np.int32),
        positions.size - misses.size,
        misses.size,
    )


def _with_future(steps: list[Step]) -> RequestNeeds:
    blocks = steps[-1].token_count // TOKENS_PER_BLOCK
    following = [np.full(blocks, NEVER, np.int32) for _ in steps[0].groups]
    for number in range(len(steps) - 1, -1, -1):
        for group, soonest in zip(steps[number].groups, following, strict=True):
            group.next_needs = soonest[group.needed]
            soonest[group.needed] = number
    return RequestNeeds(steps, blocks, following)
