"""Faulty worlds of the simulator through the recorder: every life replays to the state it ended in.

Facts of the planners are read all the while, of which no event tells: who looks must change nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flexkvd.recorder.replay import Verdict, replay
from tests.recorder.recorded import recorded_worlds
from tests.sim.plants import PLANTS
from tests.sim.simulation import SimulationFailed, run

ROOT = Path(__file__).parents[2]
STEPS = 800
SEEDS = (2, 5, 9)
FULL_SEEDS = range(1, 201)


def replayed(seed: int, steps: int) -> list[str]:
    """A line for each life of a world that was replayed, which is all but those that drew chance."""
    with recorded_worlds() as planners:
        run(seed, steps)
        lines = []
        for life, planner in enumerate(planners, 1):
            if planner.by_chance:
                continue
            recording = planner.recording()
            end = replay(recording)
            assert (end.verdict, end.number) == (Verdict.SAME, recording.events), f"seed {seed}, life {life}: {end}"
            assert end.digest == recording.digest
            lines.append(f"{seed} {life} {end.number} {end.digest}")
    return lines


def main() -> None:
    """Print the lines of some seeds."""
    for seed in SEEDS:
        sys.stdout.write("".join(f"{line}\n" for line in replayed(seed, STEPS)))


def test_every_life_of_a_faulty_world_replays_to_its_digest_whatever_the_hash_seed() -> None:
    """Two processes with different hash seeds record, replay and end in the same digests."""

    def lines(hash_seed: str) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT}/tiers:{ROOT}/service"}
        command = [sys.executable, "-m", "tests.recorder.test_worlds"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = lines("1")
    assert len(first) >= len(SEEDS)
    assert lines("2") == first


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_hundred_faulty_worlds_replay_to_their_digests() -> None:
    """The same for every world of the long campaign, in one process."""
    assert sum(len(replayed(seed, 4 * STEPS)) for seed in FULL_SEEDS) > len(FULL_SEEDS)


def test_a_planted_bug_replays_to_the_same_assertion() -> None:
    """An assertion in the middle of a run is met again by the replay, at the same event, with the same words."""
    with PLANTS["source-not-pinned"].planted(), recorded_worlds() as planners:
        with pytest.raises(SimulationFailed, match="AssertionError"):
            run(2, STEPS)
        recording = planners[-1].recording()
        end = replay(recording)
    assert recording.failure.startswith("AssertionError")
    assert re.search(r"flexkv_py/core/\w+\.py:\d+", recording.failure)
    assert (end.verdict, end.failure, end.number) == (Verdict.FAILED_THE_SAME, recording.failure, recording.events)
    assert end.digest == recording.digest
    assert end.key is not None
    assert end.story
    assert replay(recording).verdict is Verdict.DIFFERS, "without the bug the same events lead elsewhere"


if __name__ == "__main__":
    main()
