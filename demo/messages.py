"""What the runner and a worker say to each other: one JSON object per line."""

from __future__ import annotations

import msgspec


class WorkRequest(msgspec.Struct):
    """Generate `new_tokens` tokens after `prompt`, with the daemon or without it."""

    prompt: list[int]
    new_tokens: int
    seed: int
    use_cache: bool


class WorkResult(msgspec.Struct):
    """What one request gave and cost. `hits` counts loaded blocks by the tier they came from."""

    tokens: list[int]
    logits_digest: str
    ttft_s: float
    total_s: float
    blocks: int
    hits: dict[str, int]
    recomputed: bool
    saved: dict[str, int]
    errors: list[str]


class WorkerReady(msgspec.Struct):
    """The first line of a worker: its model is built and its memory mapped."""

    name: str
