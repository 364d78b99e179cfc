"""What is to be generated, and what one selection is: plain values, checked when they are made.

Owns the presets and every limit of a workload; draws nothing. Used by `generator`, `exchange`, `statistics`
and whoever consumes selections: the policy bench, benchmarks, `flexkv selections`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexkv_py.errors import ErrorCode, FlexKVError

TOKENS_MAX = 1 << 24
"""Positions are int32, and the fields of one request take 8 bytes a token."""

FIELD_TOKENS_MAX = 1 << 30
"""Of all requests and groups of a workload together: 8 GiB."""

STEPS_MAX = 1 << 20
LAYERS_MAX = 4096
REQUESTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Selection:
    """What the indexer of one layer group selected in one step of one request.

    `step` counts the engine's steps: a gap in it is a time in which the request was idle. `layer` is the
    group's first layer and names the group; its other layers use the same positions. `token_count` is the
    length of the sequence, the token being decoded included. `positions`: int32 [K], ascending, each once,
    below `token_count`; an array of its own, never written again.
    """

    step: int
    request: int | str
    layer: int
    token_count: int
    positions: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Preset:
    """Locality of one kind of layer: score = static · Gumbel + drift · AR1(correlation) + noise · white.

    Weights multiply raw fields: a standard Gumbel drawn once, an AR1 process of unit variance with this
    correlation from step to step, and white noise of unit variance drawn afresh each step.
    """

    correlation: float
    static: float
    drift: float
    noise: float


PRESETS = {
    "layer-0": Preset(0.90, 0.10, 0.40, 1.00),
    "poor": Preset(0.98, 0.35, 0.60, 0.72),
    "mid": Preset(0.985, 0.48, 0.70, 0.58),
    "high": Preset(0.985, 0.50, 0.72, 0.53),
    "good": Preset(0.985, 0.60, 0.80, 0.42),
    "easy": Preset(0.995, 0.80, 0.90, 0.12),
}
"""From the least local to the most. `mid` and `high` are what was published of middle and late layers."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything the selections follow from: equal workloads give equal selections.

    Raises FlexKVError (`bad_argument`) for values out of range or contradicting each other.
    """

    preset: Preset = PRESETS["mid"]
    tokens: int = 65_536
    """Length of each sequence before its first step; it grows by one per step."""

    top_k: int = 2048
    steps: int = 200
    """Of the engine; a request that is idle for some makes fewer."""

    cluster: int = 1
    """Tokens over which the static and the AR1 field are smoothed; 1: neighbours know nothing of each other."""

    requests: int = 1
    """Interleaved: each engine step is one of every request that is not idle, in order of their numbers."""

    groups: int = 1
    layers_per_group: int = 1
    group_overlap: float = 0.85
    """Share of the tokens whose score a group takes from the group before it."""

    topic_steps: int = 0
    """Steps of a request from one switch of topic to the next; 0: never."""

    topic_share: float = 0.5
    """Share of the AR1 field, one stretch of it, that a switch draws afresh."""

    turn_steps: int = 0
    """Steps from the start of a turn to its end; 0: one turn without end."""

    idle_steps: int = 0
    """Engine steps between two turns of a request. Requests take their turns one after another as far as they can."""

    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "steps": (1, STEPS_MAX),
            "tokens": (1, TOKENS_MAX - self.steps),
            "top_k": (1, self.tokens),
            "cluster": (1, self.tokens),
            "requests": (1, REQUESTS_MAX),
            "groups": (1, LAYERS_MAX),
            "layers_per_group": (1, LAYERS_MAX // max(1, self.groups)),
            "group_overlap": (0, 1),
            "topic_steps": (0, STEPS_MAX),
            "topic_share": (0, 1),
            "turn_steps": (0, STEPS_MAX),
            "idle_steps": (0, STEPS_MAX),
            "seed": (0, 2**63 - 1),
        }
        for name, (lowest, highest) in limits.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise _bad(f"{name} is {value}: choose it from {lowest} to {highest}")
        if bool(self.turn_steps) != bool(self.idle_steps):
            raise _bad("turn_steps and idle_steps make turns only together: give both, or neither")
        fields = self.requests * (self.tokens + self.steps) * (1 + (self.groups - 1) * (1 - self.group_overlap))
        if fields > FIELD_TOKENS_MAX:
            raise _bad(
                f"{self.requests} requests, {self.tokens} tokens and {self.groups} groups need "
                f"{8 * fields / 2**30:.1f} GiB, more than {8 * FIELD_TOKENS_MAX >> 30}: choose fewer of them"
            )

    def active(self, request: int, step: int) -> bool:
        """Whether this request takes part in this step of the engine."""
        if not self.turn_steps:
            return True
        period = self.turn_steps + self.idle_steps
        return (step + request * period // self.requests) % period < self.turn_steps

    def count(self) -> int:
        """How many selections this workload gives: one per step, active request and group."""
        steps = range(self.steps)
        return self.groups * sum(self.active(request, step) for request in range(self.requests) for step in steps)


def _bad(sentence: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, f"selections: {sentence}")
