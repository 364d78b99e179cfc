"""Multi-turn agent sessions: what is asked, in which order, on which worker.

Owns the shape of the load; pure and deterministic. The runner plays it, with the daemon and without.

The statistics are those of 25,226 model calls in 350 real coding-agent sessions (the trace
`weka_agentic_a`), at 1/48 of their length: half of all calls have a context of 66 to 135 thousand tokens
(median 102); a call adds to the one before it 0.7 % (median) or 2.5 % (mean) of the context; the median
answer has 217 tokens; 7 % of the calls rewrite the end of their history, some of it far; calls after a session's first
find on average 96.6 % of their blocks in the call before. Tools and system prompt, the same for all
sessions here, are two thirds of the median first call of 24 thousand tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from demo.shape import CHUNK_TOKENS, ModelShape
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces import TraceRequest, open_trace
from flexkv_py.traces.weka import IDS_PER_SESSION

POSITIONS_MAX = 4096
"""Longest context of the demo's model, and the room of a worker's paged KV."""

_VOCABULARY = ModelShape().vocabulary
_SCALE = 48
_SHARED_TOKENS = 16_300 // _SCALE
_CONTEXT_MEDIAN, _CONTEXT_SIGMA = 102_000 // _SCALE, 0.53
_CONTEXT_MIN, _CONTEXT_MAX = 10 * CHUNK_TOKENS, 48 * CHUNK_TOKENS
_GROWTH_MEDIAN, _GROWTH_SIGMA = 0.007, 1.6
_GROWTH_MAX = 0.25
_REWRITE_CHANCE = 0.07
_REWRITE_SHARE_MAX = 0.4
_NEW_TOKENS = 8
"""217 scaled would be 5; a few more make the comparison stricter."""


@dataclass(frozen=True)
class Turn:
    """One call: its prompt is the first `kept` tokens of the session's history, then `added`."""

    session: int
    number: int
    kept: int
    added: tuple[int, ...]
    new_tokens: int

    def prompt(self, history: Sequence[int]) -> list[int]:
        assert self.kept <= len(history)
        return [*history[: self.kept], *self.added]

    def worker(self, worker_count: int) -> int:
        """The worker this call lands on: never the one that served the session's turn before."""
        return (self.session + self.number) % worker_count

    @property
    def prompt_tokens(self) -> int:
        return self.kept + len(self.added)

    @property
    def seed(self) -> int:
        """Seed of this call's sampling."""
        return self.session * 1000 + self.number


def agent_sessions(sessions: int, turns: int, seed: int) -> list[list[Turn]]:
    """`sessions` sessions of `turns` calls each, drawn from `seed`."""
    shared = _tokens(f"{seed}/shared", _SHARED_TOKENS)
    return [list(_agent_session(session, turns, seed, shared)) for session in range(sessions)]


def _agent_session(session: int, turns: int, seed: int, shared: tuple[int, ...]) -> Iterator[Turn]:
    """A session met in its middle: the first call brings a grown context, the others add to it."""
    chance = random.Random(f"{seed}/{session}")  # noqa: S311 - a workload, not a secret
    context = round(_CONTEXT_MEDIAN * math.exp(chance.gauss(0.0, _CONTEXT_SIGMA)))
    context = min(max(context, _CONTEXT_MIN), _CONTEXT_MAX)
    own = _tokens(f"{seed}/{session}/0", context - len(shared))
    yield Turn(session, 0, 0, shared + own, _NEW_TOKENS)
    history = context + _NEW_TOKENS
    for number in range(1, turns):
        share = min(_GROWTH_MEDIAN * math.exp(chance.gauss(0.0, _GROWTH_SIGMA)), _GROWTH_MAX)
        rewritten = chance.random() * _REWRITE_SHARE_MAX if chance.random() < _REWRITE_CHANCE else 0.0
        added = max(4, round(history * (share + rewritten)) - _NEW_TOKENS)
        kept = min(round(history * (1 - rewritten)), POSITIONS_MAX - _NEW_TOKENS - added)
        yield Turn(session, number, kept, _tokens(f"{seed}/{session}/{number}", added), _NEW_TOKENS)
        history = kept + added + _NEW_TOKENS


def _tokens(name: str, count: int) -> tuple[int, ...]:
    chance = random.Random(name)  # noqa: S311 - a workload, not a secret
    return tuple(chance.randrange(_VOCABULARY) for _ in range(count))


# ------------------------------------------------------------ a real trace


def trace_sessions(path: Path, sessions: int, turns: int) -> list[list[Turn]]:
    """The first sessions of a WEKA-format trace that have `turns` calls and fit the model, at 1/48 of their length.

    One block here stands for 48 of the trace: ids are chained by prefix, so every 48th names all before
    it. The trace's prompts are given, so what is generated here is compared but does not come back in
    the next prompt. Raises FlexKVError (`bad_trace`).
    """
    chosen: list[list[Turn]] = []
    calls: dict[int, list[TraceRequest]] = {}
    for call in open_trace(path, _SCALE * CHUNK_TOKENS):
        if not call.full_ids:
            continue
        of_session = calls.setdefault(call.full_ids[0] // IDS_PER_SESSION, [])
        of_session.append(call)
        if len(of_session) == turns and all(_fits(one) for one in of_session):
            chosen.append(list(_replayed(len(chosen), of_session)))
        if len(chosen) == sessions:
            return chosen
    raise FlexKVError(
        ErrorCode.BAD_TRACE,
        f"{path} has only {len(chosen)} sessions with {turns} calls that fit the demo's model: "
        f"lower --sessions or --turns, or give an agentic trace in WEKA form",
    )


def _fits(call: TraceRequest) -> bool:
    return (len(call.full_ids) + 1) * CHUNK_TOKENS + _NEW_TOKENS <= POSITIONS_MAX


def _replayed(session: int, calls: Sequence[TraceRequest]) -> Iterator[Turn]:
    before: Sequence[int] = ()
    for number, call in enumerate(calls):
        blocks = call.full_ids
        agreed = [one == other for one, other in zip(before, blocks, strict=False)]
        common = agreed.index(False) if False in agreed else len(agreed)
        added = [token for block in blocks[common:] for token in _tokens(f"block {block}", CHUNK_TOKENS)]
        tail = call.tokens // _SCALE % CHUNK_TOKENS or 1
        added += _tokens(f"tail {blocks[-1]}/{number}", tail)
        yield Turn(session, number, common * CHUNK_TOKENS, tuple(added), _NEW_TOKENS)
        before = blocks


def block_reuse(sessions: Sequence[Sequence[Turn]]) -> float:
    """Share of a follow-up call's full blocks that the prompt before it had, as the trace counts it."""
    reused = total = 0
    for session in sessions:
        for before, turn in pairwise(session):
            reused += min(turn.kept, before.prompt_tokens) // CHUNK_TOKENS
            total += turn.prompt_tokens // CHUNK_TOKENS
    return reused / total


def working_set_blocks(sessions: Sequence[Sequence[Turn]]) -> int:
    """Different blocks that a whole run computes and saves, the shared prompt once per session."""
    count = 0
    for session in sessions:
        for turn in session:
            count += (turn.prompt_tokens + turn.new_tokens) // CHUNK_TOKENS - turn.kept // CHUNK_TOKENS
    return count
