"""Generates selections: for each step, request and layer group the K tokens of the highest score.

Owns the interleaving of requests, groups that resemble their neighbours, and the choice of the top K; the
scores come from `fields`. Called by the policy bench, benchmarks and `flexkv selections`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from flexkvd.selections.fields import Floats, ScoreField
from flexkvd.selections.workload import Selection, Workload

RECENT_TOKENS = 128
RECENT_BONUS = 6 * np.linspace(0.3, 1, RECENT_TOKENS, dtype=np.float32)
"""The newest tokens are nearly always selected."""

FIRST_TOKENS = 4
FIRST_BONUS = np.float32(20)
"""Attention sinks: always selected."""

FLOOR_MARGIN = np.float32(0.1)
"""How far the score of the K-th token falls from one step to the next at most, nearly always."""


class Selections:
    """The selections of a workload in the order the engine would make them: by step, request, layer group.

    Can be iterated any number of times, each time with the same selections (for one version of numpy).
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __len__(self) -> int:
        return self.workload.count()

    def __iter__(self) -> Iterator[Selection]:
        workload = self.workload
        requests = [_Request(workload, number) for number in range(workload.requests)]
        for step in range(workload.steps):
            for request in requests:
                if workload.active(request.number, step):
                    yield from request.step(step)


class _Request:
    """One request's fields and how far it has come."""

    def __init__(self, workload: Workload, number: int) -> None:
        self.number = number
        self._workload = workload
        self._steps_done = 0
        self._chance = _chance(workload.seed, number, 0)
        capacity = workload.tokens + workload.steps
        self._groups: list[tuple[NDArray[np.int64] | slice, ScoreField]] = []
        """Of each group: the tokens whose scores are its own, and their scores."""
        for group in range(workload.groups):
            chance = _chance(workload.seed, number, group + 1)
            own = slice(0, capacity) if group == 0 else _own_tokens(workload, capacity, chance)
            count = capacity if isinstance(own, slice) else own.size
            self._groups.append((own, ScoreField(workload.preset, count, workload.cluster, chance)))
        self._floors = [np.float32(-np.inf)] * workload.groups

    def step(self, step: int) -> Iterator[Selection]:
        """The selections of all groups in one step of the engine."""
        workload = self._workload
        self._steps_done += 1
        if workload.topic_steps and self._steps_done % workload.topic_steps == 0:
            start = self._chance.random()
            for _, field in self._groups:
                field.switch_topic(start, workload.topic_share)
        token_count = workload.tokens + self._steps_done
        scores = self._groups[0][1].step()
        for group, (own, field) in enumerate(self._groups):
            if group:
                scores[own] = field.step()
            with bonuses(scores[:token_count]) as raised:
                positions = top_positions(raised, workload.top_k, self._floors[group] - FLOOR_MARGIN)
                self._floors[group] = raised[positions].min()
            yield Selection(step, self.number, group * workload.layers_per_group, token_count, positions)


@contextmanager
def bonuses(scores: Floats) -> Iterator[Floats]:
    """Within it `scores` [N] have what the newest and the first tokens are given on top: only the ends are copied."""
    recent = slice(max(0, scores.size - RECENT_TOKENS), None)
    newest, first = scores[recent].copy(), scores[:FIRST_TOKENS].copy()
    scores[recent] += RECENT_BONUS[RECENT_TOKENS - newest.size :]
    scores[:FIRST_TOKENS] += FIRST_BONUS
    yield scores
    scores[recent], scores[:FIRST_TOKENS] = newest, first


def top_positions(scores: Floats, count: int, floor: np.float32) -> NDArray[np.int32]:
    """Positions of the `count` highest of `scores` [N], ascending, int32.

    `floor` is a guess below the lowest of them. A good one leaves few candidates to partition; a wrong one
    costs a pass over all and changes nothing.
    """
    candidates = np.flatnonzero(scores >= floor)
    if candidates.size < count:
        candidates = np.arange(scores.size)
    top = np.argpartition(scores[candidates], candidates.size - count)[candidates.size - count :]
    return np.sort(candidates[top]).astype(np.int32)


def _own_tokens(workload: Workload, capacity: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Tokens whose scores a group does not take from the group before it: whole runs of `cluster` tokens."""
    runs = -(-capacity // workload.cluster) + 1
    own_runs = np.repeat(chance.random(runs) >= workload.group_overlap, workload.cluster)
    offset = int(chance.integers(workload.cluster))
    return np.flatnonzero(own_runs[offset : offset + capacity])


def _chance(seed: int, request: int, stream: int) -> np.random.Generator:
    """Chance of one stream of one request: what others draw, and in which order, does not touch it."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(request, stream))))
