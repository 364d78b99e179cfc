"""The demo's workload: deterministic, within the model's limits, with the statistics it claims."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest

from demo.phases import TURNS_MIN, plan
from demo.shape import CHUNK_TOKENS, ModelShape
from demo.workload import (
    POSITIONS_MAX,
    Turn,
    agent_sessions,
    block_reuse,
    trace_sessions,
)
from flexkv_py.errors import ErrorCode, FlexKVError


def prompts(session: list[Turn]) -> list[list[int]]:
    """The prompts of a session whose every generated token is 0."""
    history: list[int] = []
    made = []
    for turn in session:
        made.append(turn.prompt(history))
        history = made[-1] + [0] * turn.new_tokens
    return made


def test_sessions_follow_from_their_seed_alone() -> None:
    """The same seed gives the same calls, another seed others; more sessions leave the first as they were."""
    assert agent_sessions(3, 6, seed=1) == agent_sessions(3, 6, seed=1)
    assert agent_sessions(3, 6, seed=1) != agent_sessions(3, 6, seed=2)
    assert agent_sessions(5, 6, seed=1)[:3] == agent_sessions(3, 6, seed=1)


def test_calls_fit_the_model() -> None:
    """No call of many long sessions outgrows the model's positions or vocabulary, or adds nothing."""
    for session in agent_sessions(60, 40, seed=3):
        for turn, prompt in zip(session, prompts(session), strict=True):
            assert turn.added
            assert len(prompt) == turn.prompt_tokens
            assert len(prompt) + turn.new_tokens <= POSITIONS_MAX
            assert 0 <= min(prompt) <= max(prompt) < ModelShape().vocabulary


def test_the_statistics_are_those_of_the_trace() -> None:
    """Context, growth and block reuse are near the figures the module names, at their scale."""
    sessions = agent_sessions(300, 9, seed=1)
    assert median(session[0].prompt_tokens for session in sessions) == pytest.approx(102_000 / 48, rel=0.1)
    assert block_reuse(sessions) == pytest.approx(0.966, abs=0.01)
    growth = [
        (turn.prompt_tokens - before.prompt_tokens) / before.prompt_tokens
        for session in sessions
        for before, turn in pairwise(session)
    ]
    assert mean(growth) == pytest.approx(0.025, abs=0.01)


def test_sessions_share_their_first_blocks_and_nothing_else() -> None:
    """Two sessions agree in the system prompt and differ from its end on."""
    one, other = (prompts(session)[0] for session in agent_sessions(2, 1, seed=1))
    common = next(at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    assert 5 * CHUNK_TOKENS <= common < 6 * CHUNK_TOKENS


def test_each_turn_lands_on_another_worker() -> None:
    """No two consecutive turns of a session are served by the same worker, for any number of workers."""
    for workers in (2, 3, 4):
        for session in agent_sessions(4, 8, seed=1):
            placed = [turn.worker(workers) for turn in session]
            assert all(before != after for before, after in pairwise(placed))


def test_phases_share_out_all_turns() -> None:
    """Whatever the number of turns, every phase serves at least one and every turn is served once, in order."""
    for turns in range(TURNS_MIN, 40):
        steps = plan(turns)
        assert [number for step in steps for number in step.turns] == list(range(turns))
        assert all(len(step.turns) for step in steps)


def line(session: int, seconds: float, blocks: list[tuple[int, int]]) -> str:
    length = 64 * sum(count for _, count in blocks) + 5
    call = {"session": session, "agent": "main", "t": seconds, "input_length": length, "output_length": 9}
    return json.dumps(call | {"runs": blocks})


def test_a_trace_keeps_its_prefixes(tmp_path: Path) -> None:
    """Calls share exactly the blocks their ids share, at 1/48; a session too long for the model is left out."""
    path = tmp_path / "trace.jsonl.gz"
    lines = [
        line(1, 0.0, [(0, 480)]),
        line(1, 9.0, [(0, 240), (9000, 480)]),
        line(2, 0.0, [(0, 48 * 64)]),
        line(2, 9.0, [(0, 48)]),
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    [[first, second]] = trace_sessions(path, sessions=1, turns=2)
    assert first.kept == 0
    assert first.prompt_tokens // CHUNK_TOKENS == 10
    assert second.kept == 5 * CHUNK_TOKENS
    assert second.prompt_tokens // CHUNK_TOKENS == 15
    with pytest.raises(FlexKVError, match="only 1 sessions"):
        trace_sessions(path, sessions=2, turns=2)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    """A line that is no call is a coded error that names its place."""
    path = tmp_path / "trace.jsonl"
    path.write_text(line(1, 0.0, [(0, 480)]) + "\nnot json\n")
    with pytest.raises(FlexKVError, match=r"trace\.jsonl:2") as refused:
        trace_sessions(path, 1, 2)
    assert refused.value.code is ErrorCode.BAD_TRACE
