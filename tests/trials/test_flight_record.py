"""A faulty life of a daemon replays from its flight record (`scripts/trials flight-record` runs it at any length)."""

from pathlib import Path

import pytest

from .flight_record import flight_record


def test_a_faulty_life_replays_to_the_same_state(tmp_path: Path) -> None:
    """S3 fails, records are damaged, a worker is killed: the dump ends in its digest, under two hash seeds."""
    flight_record(tmp_path, rounds=1)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_long_faulty_lives_replay_to_the_same_state(tmp_path: Path) -> None:
    """Five lives of ten rounds, each with its own order of faults."""
    for seed in range(2, 7):
        (folder := tmp_path / str(seed)).mkdir()
        flight_record(folder, rounds=10, seed=seed)
