"""The world of the ailing bucket: bounded in every seed, and every planted bug is caught."""

from __future__ import annotations

import pytest

from tests.sim.s3health.campaign import PLANTS, run
from tests.sim.simulation import SimulationFailed

STEPS = 500


def test_no_promise_is_broken() -> None:
    """Five buckets: the breaker closes again, retries are paid for, the limit on the rate goes away."""
    for seed in range(1, 6):
        run(seed, STEPS)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    """With the bug planted some run of twenty fails, and says how to see it again."""
    with PLANTS[name].planted(), pytest.raises(SimulationFailed, match=f"--world s3-health .* --plant {name}"):
        _run_all(name)


def test_a_seed_replays_itself() -> None:
    """Running a seed twice gives the same digest."""
    assert run(5, STEPS).digest == run(5, STEPS).digest != run(6, STEPS).digest


def _run_all(plant: str) -> None:
    for seed in range(1, 21):
        run(seed, STEPS, plant)
