"""The WEKA format: agentic sessions, run-length coded ids, full blocks of 64 tokens only.

The source has no common clock: sessions start in ascending number with exponential gaps from one
fixed seed, so every reader sees the same merged order. Sorting by time needs all lines at once: they
are held as runs (25,000 requests, a few megabytes) and expanded one request at a time (46 million
blocks).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

import msgspec

from flexkv_py.traces.request import BLOCKS_PER_REQUEST_MAX, TraceRequest, coarseness

LISTED_TOKENS = 64
IDS_PER_SESSION = 1_000_000
GAP_S_MEAN = 60.0
_SEED = 7

Natural = Annotated[int, msgspec.Meta(ge=0)]


class WekaLine(msgspec.Struct):
    """One model call: `t` seconds after its session's start, `runs` of (first id, count)."""

    session: Natural
    t: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Natural
    runs: list[tuple[Natural, Natural]]

    def __post_init__(self) -> None:
        blocks = sum(count for _, count in self.runs)
        if blocks > BLOCKS_PER_REQUEST_MAX:
            raise ValueError(f"'runs' lists more than {BLOCKS_PER_REQUEST_MAX} blocks")
        if blocks != self.input_length // LISTED_TOKENS:
            raise ValueError(
                f"'runs' lists {blocks} full blocks of {LISTED_TOKENS} tokens, "
                f"but 'input_length' is {self.input_length}"
            )
        if any(first + count > IDS_PER_SESSION for first, count in self.runs):
            raise ValueError(f"'runs' holds an id of {IDS_PER_SESSION} or more, which would belong to another session")


def weka_requests(lines: Iterator[WekaLine], tokens_per_block: int) -> Iterator[TraceRequest]:
    """Requests of all sessions merged by time. Raises FlexKVError (`bad_argument`) for an impossible block size."""
    step = coarseness(tokens_per_block, LISTED_TOKENS)
    return _merged(lines, step)


def _merged(lines: Iterator[WekaLine], step: int) -> Iterator[TraceRequest]:
    calls = list(lines)
    starts = _session_starts(sorted({call.session for call in calls}))
    calls.sort(key=lambda call: starts[call.session] + call.t)
    for call in calls:
        time_s = starts[call.session] + call.t
        yield TraceRequest(time_s, _expand(call, step), call.input_length, partial=False, session=call.session)


def _session_starts(sessions: list[int]) -> dict[int, float]:
    chance = random.Random(_SEED)  # noqa: S311 - part of the format's definition
    starts, now_s = {}, 0.0
    for session in sessions:
        now_s += chance.expovariate(1 / GAP_S_MEAN)
        starts[session] = now_s
    return starts


def _expand(call: WekaLine, step: int) -> list[int]:
    """Global ids of every `step`-th listed block, each the last of one coarser block."""
    base = call.session * IDS_PER_SESSION
    ids: list[int] = []
    position = 0
    for first, count in call.runs:
        skip = (step - 1 - position) % step
        ids.extend(range(base + first + skip, base + first + count, step))
        position += count
    return ids
