"""The simulator catches what it is for: every planted bug within sixty seeds, with a command that replays it."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.plant import assert_caught
from tests.sim.simulation import run
from tests.sim.worlds import DEFAULT, WORLDS

SEEDS = range(1, 61)
STEPS = 2000
PLANTS = WORLDS[DEFAULT].plants
CAUGHT_LATE = {"never-moved": 20, "damage-of-another-copy": 36}
"""By the first seed that catches it. Each takes more than five seconds, so only the long campaign plants it."""


def in_the_long_campaign_if_late(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.full if name in CAUGHT_LATE else ())


@pytest.mark.parametrize("name", [in_the_long_campaign_if_late(name) for name in PLANTS])
def test_a_planted_bug_is_caught(name: str) -> None:
    """With the bug planted some run of sixty fails, and its message replays exactly that failure."""
    runs = (partial(run, seed, STEPS, name) for seed in SEEDS)
    assert_caught(PLANTS[name], name, runs, "scripts/simulate")


def test_a_plant_leaves_nothing_behind() -> None:
    """After all plants have come and gone, the simulated cache is sound again."""
    for plant in PLANTS.values():
        with plant.planted():
            pass
    run(1, STEPS)


def test_the_five_bugs_every_cache_must_be_tested_for_are_planted() -> None:
    """The five named in the style guide are there, the five of the tiers below DRAM, and more."""
    below = {
        "short-read-accepted",
        "footer-trusted-without-checksum",
        "reclaim-of-a-pinned-record",
        "breaker-stuck",
        "durability-acknowledged-before-it-holds",
    }
    assert below <= PLANTS.keys()
    five = {"source-not-pinned", "waiter-forgotten", "hit-while-filling", "release-of-another", "failure-as-success"}
    assert five <= PLANTS.keys()
    assert len(PLANTS) >= 30
