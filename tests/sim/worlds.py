"""The worlds that can be simulated, each with the bugs that can be planted in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim import plants, simulation, tenant_plants
from tests.sim.plant import Plant
from tests.sim.s3health import campaign
from tests.sim.simulation import Report
from tests.sim.ssdlog import plants as log_plants
from tests.sim.ssdlog import simulation as log_simulation

DEFAULT = "planner"


@dataclass(frozen=True)
class World:
    """How a seed is run (seed, steps, planted bug), and what can be planted."""

    run: Callable[[int, int, str], Report]
    plants: dict[str, Plant]


WORLDS = {
    DEFAULT: World(simulation.run, plants.PLANTS | tenant_plants.PLANTS),
    "ssd-log": World(log_simulation.run, log_plants.PLANTS),
    "s3-health": World(campaign.run, campaign.PLANTS),
}


def world_of(plant: str) -> str:
    """The world a bug is planted in. Raises KeyError."""
    for name, world in WORLDS.items():
        if plant in world.plants:
            return name
    raise KeyError(plant)
