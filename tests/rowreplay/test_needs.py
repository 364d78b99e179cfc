"""What a step needs of DRAM, the future of every chunk, and recordings with gaps."""

from __future__ import annotations

import numpy as np
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.rowreplay import needs as reading
from flexkvd.rowreplay.needs import GAP_STEPS_MAX, NEVER, needs_of
from flexkvd.selections import Selection


def select(step: int, positions: list[int], token_count: int, layer: int = 0, request: int = 0) -> Selection:
    return Selection(step, request, layer, token_count, np.array(positions, np.int32))


def test_only_full_blocks_are_needed_of_dram():
    """The newest token, and the rows of the block that is being written, are in HBM whatever the hot buffer holds."""
    [request] = needs_of([select(0, [1, 70, 130, 140], 141), select(1, [1, 71, 141], 142)], hot_slots=3)
    assert [step.groups[0].needed.tolist() for step in request.steps] == [[0, 1], [1]]  # row 1 is resident by then
    assert request.steps[0].groups[0].selected.tolist() == [0, 1]
    assert request.blocks == 2


def test_a_sequence_that_fits_needs_nothing():
    """Up to H tokens every row has its own slot."""
    [request] = needs_of([select(0, [1, 70, 130], 141)], hot_slots=141)
    assert request.steps[0].groups[0].needed.size == 0


def test_the_future_of_every_chunk_is_known():
    """Each step says when what it needs is needed next, and the request when each block is needed first."""
    steps = [select(0, [1], 200), select(1, [64], 201), select(5, [2, 128], 202), select(6, [65], 203)]
    [request] = needs_of(steps, hot_slots=1)
    assert request.first_needs[0].tolist() == [0, 1, 2]
    nexts = [step.groups[0].next_needs.tolist() for step in request.steps]
    assert nexts == [[2], [3], [NEVER, NEVER], [NEVER]]
    assert [step.due for step in request.steps] == [0, 1, 5, 6]


def test_a_sequence_that_outgrows_its_slots_is_still_in_them():
    """All rows were resident up to H tokens; then the oldest slots go first."""
    steps = [select(0, [1], 128), select(1, [70, 100], 129), select(2, [71], 130), select(3, [0], 131)]
    [request] = needs_of(steps, hot_slots=128)
    assert [step.groups[0].misses for step in request.steps] == [0, 0, 0, 0]


def test_a_layer_that_was_not_recorded_in_a_step_needs_nothing_there():
    """Layers keep their places, in whatever order lines come; steps are in theirs."""
    lines = [select(0, [1], 200, layer=3), select(4, [2], 201, layer=3), select(0, [64], 200), select(2, [65], 200)]
    [request] = needs_of(lines, hot_slots=1)
    assert [step.due for step in request.steps] == [0, 2, 4]
    assert [[group.needed.tolist() for group in step.groups] for step in request.steps] == [
        [[1], [0]],
        [[1], []],
        [[], [0]],
    ]
    assert [first.tolist() for first in request.first_needs] == [[NEVER, 0, NEVER], [0, NEVER, NEVER]]


def test_a_sequence_that_becomes_shorter_keeps_its_blocks():
    """As after a rejected speculation, or where layers disagree: the length of a step never falls."""
    steps = [select(0, [1], 260), select(1, [64], 140), select(2, [2, 200], 270), select(2, [3], 400, layer=1)]
    [request] = needs_of(steps, hot_slots=2)
    assert [step.token_count for step in request.steps] == [260, 260, 400]
    assert request.blocks == 6


def test_a_time_in_which_nobody_steps_is_played_only_so_long():
    """A gap within one request's steps stays as long as another steps in it."""
    lines = [select(step, [1], 200, request=0) for step in (10, 10**9)]
    lines += [select(step, [1], 200, request=1) for step in (20, 10**9 + 1)]
    dues = [[step.due for step in request.steps] for request in needs_of(lines, hot_slots=1)]
    assert dues == [[10, 20 + GAP_STEPS_MAX], [20, 21 + GAP_STEPS_MAX]]


@pytest.mark.parametrize(
    ("limit", "cause"), [("KEPT_MAX", "more than 5 numbers"), ("CHUNKS_MAX", "9 chunks, more than 5")]
)
def test_what_is_kept_is_bounded(monkeypatch, limit, cause):
    """A recording too large for memory ends with a coded error."""
    monkeypatch.setattr(reading, limit, 5)
    lines = [select(0, [1], 200, layer=layer) for layer in range(3)]
    with pytest.raises(FlexKVError, match=cause) as refused:
        needs_of(lines, hot_slots=1)
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
