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


class DecodeOrder(msgspec.Struct):
    """Decode `count` requests at once, all-resident or over the row path; prompts follow from numbers and seed.

    Requests are numbered from `first`, in the life of a worker each number once; a request's seat and prompt
    follow from its place in the order.
    """

    tiered: bool
    count: int
    first: int
    blocks: int
    new_tokens: int
    seed: int
    statistics: bool = False
    """Say how local the selections are; costs time."""


class DecodeResult(msgspec.Struct):
    """What an order gave and cost. The second half is the row path's, zero for all-resident runs."""

    tokens: list[list[int]]
    logits_digests: list[str]
    wall_s: float
    busy_s: float
    """CPU seconds of the decoding thread, and what it waited for the daemon, without admissions."""
    steps: int
    turns: int
    running_most: int
    replays: int
    handed_back: int
    budget: str = ""
    admissions: dict[str, int] = msgspec.field(default_factory=dict)
    refusals: dict[str, int] = msgspec.field(default_factory=dict)
    absent: int = 0
    on_demand: int = 0
    ahead: int = 0
    ahead_used: int = 0
    revoked: int = 0
    widened: int = 0
    """Requests that became resident in between."""
    warmed: int = 0
    """Rows fetched into hot buffers that were about to be read for the first time."""
    hits: int = 0
    misses: int = 0
    row_bytes: int = 0
    """Copied from DRAM rows into hot buffers."""
    overlaps: dict[int, float] = msgspec.field(default_factory=dict)
    """Lag in steps → share of a selection that was also in the one so many steps before; all-resident runs only."""
    pages_touched: dict[int, float] = msgspec.field(default_factory=dict)
    """Window in steps → share of the sequence's blocks selected from within it."""
