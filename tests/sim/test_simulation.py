"""Whole worlds: no broken promise in any seed, and the same run whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import run

ROOT = Path(__file__).parents[2]
STEPS = 2000
SEEDS_PER_TEST = 5
FULL_STEPS = 4000


@pytest.mark.parametrize("first", range(1, 21, SEEDS_PER_TEST))
def test_no_promise_is_broken(first: int) -> None:
    """Twenty worlds of two thousand steps: no wrong byte, no phantom, no lost acknowledgement, nothing unanswered."""
    for seed in range(first, first + SEEDS_PER_TEST):
        run(seed, STEPS)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, 201, SEEDS_PER_TEST))
def test_no_promise_is_broken_in_the_long_campaign(first: int) -> None:
    """The same for two hundred worlds of four thousand steps."""
    for seed in range(first, first + SEEDS_PER_TEST):
        run(seed, FULL_STEPS)


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds say and do exactly the same."""

    def lines(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join((".", "tiers", "service")),
        }
        command = [sys.executable, "-m", "tests.sim", "--seeds", "1..4", "--steps", "1000"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=100
        )
        return done.stdout

    first = lines("1")
    assert first.count("digest") == 4
    assert lines("2") == first


def test_a_seed_replays_itself() -> None:
    """Running a seed twice in one process gives the same digest, another seed another one."""
    assert run(5, STEPS).digest == run(5, STEPS).digest != run(6, STEPS).digest


def test_the_worlds_reach_what_they_are_for() -> None:
    """Among forty seeds there are hits, promotions, demotions and evictions in every tier, and faults of each kind."""
    counted: set[tuple[str, str]] = set()
    for seed in range(1, 41):
        counted |= {at for at, count in run(seed, STEPS).counters.items() if count}
    for tier in ("dram", "ssd", "s3"):
        assert {("hits", tier), ("evictions", tier)} <= counted
    assert {("promotions", "ssd"), ("promotions", "s3"), ("demotions", "ssd"), ("demotions", "s3")} <= counted
    assert {("faults", f"ssd_{fault}") for fault in ("corrupt", "missing", "io", "full", "late", "down")} <= counted
    assert ("faults", "worker_memory") in counted
