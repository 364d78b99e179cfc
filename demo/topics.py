"""Prompts that are about something: runs of tokens of one topic, as selections of a real model have it.

Owns the shape of the row path's load; pure and deterministic. Called by the runs of the row path.
"""

from __future__ import annotations

import random

from demo.shape import CHUNK_TOKENS, ModelShape
from demo.weights import TOPICS, topic_tokens

_RUN_MIN, _RUN_MAX = CHUNK_TOKENS, 4 * CHUNK_TOKENS
"""Tokens of one run."""

_TAIL_MAX = 8
"""Tokens after the last whole block: those are fed step by step."""


def topic_prompt(shape: ModelShape, blocks: int, number: int, seed: int) -> list[int]:
    """A prompt of `blocks` whole blocks and a few tokens more; `number` tells prompts of one seed apart."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - a workload, not a secret
    length = blocks * CHUNK_TOKENS + chance.randint(1, _TAIL_MAX)
    tokens: list[int] = []
    while len(tokens) < length:
        topic = topic_tokens(shape, chance.randrange(TOPICS))
        tokens += (chance.choice(topic) for _ in range(chance.randint(_RUN_MIN, _RUN_MAX)))
    return tokens[:length]
