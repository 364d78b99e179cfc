"""What each step needs of DRAM: selections run through the hot buffers, once for all policies.

A row that is not in its hot buffer makes its block *needed*: that chunk must be in DRAM for the step to succeed. What
a hot buffer holds does not depend on DRAM, because a step that fails changes nothing in it. Recordings may have gaps: a
layer that was not recorded in a step needs nothing there. Called by `run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.selections import Selection
from flexkvd.selections.lru import HotSlots, Marks, Newest, grown

TOKENS_PER_BLOCK = 64

GAP_STEPS_MAX = 4096
"""In which no request steps. Longer ones are played as so many: recorders number steps by positions."""

CHUNKS_MAX = 1 << 25
"""Of all requests: about 25 bytes each, so less than a gigabyte."""

KEPT_MAX = 1 << 28
"""Numbers that all steps together keep: a gigabyte."""

NEVER = np.iinfo(np.int32).max
Blocks = NDArray[np.int32]


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
    """One step of one request. `due`: the engine's step in which it would run if nobody ever waited.

    `token_count` never falls: what was given up again, as after a speculation, is still counted.
    """

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
    """Run all selections through hot buffers of `hot_slots` rows; requests in order of appearance.

    Those of one request and layer come in the order of their steps, all else in any order. Raises FlexKVError
    (`limit_exceeded`) beyond KEPT_MAX and CHUNKS_MAX.
    """
    recordings: dict[int | str, _Recording] = {}
    kept, marks = 0, np.zeros(1, np.bool_)
    for selection in selections:
        marks = grown(marks, selection.token_count)
        kept += recordings.setdefault(selection.request, _Recording(hot_slots)).add(selection, marks)
        if kept > KEPT_MAX:
            raise _too_much(f"steps keep more than {KEPT_MAX} numbers in memory")
    chunks = sum(recording.chunks for recording in recordings.values())
    if chunks > CHUNKS_MAX:
        raise _too_much(f"there are {chunks} chunks, more than {CHUNKS_MAX}")
    clock = _without_long_gaps(step for recording in recordings.values() for step in recording.steps)
    return [recording.needs(clock) for recording in recordings.values()]


def _too_much(cause: str) -> FlexKVError:
    return FlexKVError(ErrorCode.LIMIT_EXCEEDED, f"selections: {cause}: give fewer requests, layer groups or steps")


def _without_long_gaps(steps: Iterable[int]) -> dict[int, int]:
    """The engine's steps → when they are played."""
    clock: dict[int, int] = {}
    before = played = 0
    for step in sorted(set(steps)):
        played += min(step - before, GAP_STEPS_MAX)
        before, clock[step] = step, played
    return clock


class _Recording:
    """One request's selections, as far as they are read."""

    def __init__(self, hot_slots: int) -> None:
        self._hot_slots = hot_slots
        self._buffers: dict[int, HotSlots] = {}
        self._token_counts: dict[int, int] = {}
        self.steps: dict[int, dict[int, GroupStep]] = {}
        """By the engine's step, then by layer."""

    @property
    def chunks(self) -> int:
        return len(self._buffers) * (max(self._token_counts.values()) // TOKENS_PER_BLOCK)

    def add(self, selection: Selection, marks: Marks) -> int:
        """Returns how many numbers are kept of it; `marks` is scratch of all requests."""
        step, layer, kept = selection.step, selection.layer, 0
        if layer not in self._buffers:
            self._buffers[layer] = HotSlots(self._hot_slots, Newest.HITS)
            kept = min(self._hot_slots, selection.token_count)
        made = self.steps.setdefault(step, {})[layer] = _group_step(self._buffers[layer], selection, marks)
        self._token_counts[step] = max(self._token_counts.get(step, 0), selection.token_count)
        return kept + 2 * (made.needed.size + made.selected.size)

    def needs(self, clock: dict[int, int]) -> RequestNeeds:
        """Steps in their order, each with all layers in theirs."""
        steps, token_count = [], 0
        for step, of_layers in sorted(self.steps.items()):
            token_count = max(token_count, self._token_counts[step])
            groups = [of_layers.get(layer) or _nothing() for layer in sorted(self._buffers)]
            steps.append(Step(clock[step], token_count, groups))
        return _with_future(steps)


def _nothing() -> GroupStep:
    none = np.empty(0, np.int32)
    return GroupStep(none, none, none, 0, 0)


def _group_step(buffer: HotSlots, selection: Selection, marks: Marks) -> GroupStep:
    positions = selection.positions[selection.positions < selection.token_count - 1]  # the newest has its own slot
    misses = buffer.step(positions, selection.token_count, marks)
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
