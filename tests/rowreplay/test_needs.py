"""What a step needs of DRAM: the hot buffer against a plain model, and the future of every chunk."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flexkvd.rowreplay.needs import NEVER, HotBuffer, needs_of
from flexkvd.selections import Selection


class PlainBuffer:
    """The published order in plain Python: what stays old, then what was loaded, then what was hit."""

    def __init__(self, slots: int) -> None:
        self.slots, self.order = slots, []

    def step(self, positions: list[int]) -> list[int]:
        hits = [position for position in self.order if position in positions]
        misses = [position for position in positions if position not in self.order]
        stale = [position for position in self.order if position not in positions]
        self.order = [*stale, *misses, *hits][-self.slots :]
        return misses


@pytest.mark.parametrize("seed", range(4))
def test_the_hot_buffer_is_an_exact_lru(seed):
    """Over random steps of a growing sequence the misses are those of a plain model, one by one."""
    chance, buffer, plain = random.Random(seed), HotBuffer(24), PlainBuffer(24)
    for step in range(120):
        count = 60 + step
        positions = sorted(chance.sample(range(count), chance.randrange(1, 13)))
        assert buffer.step(np.array(positions, np.int32), count).tolist() == plain.step(positions)


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
