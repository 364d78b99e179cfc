"""`scripts/simulate`: replays a seed, runs a range of seeds, or plants a bug and waits for it to be caught."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from flexkvd.cli.arguments import positive
from tests.sim.simulation import SimulationFailed
from tests.sim.worlds import DEFAULT, WORLDS, World, world_of


def seed_range(word: str) -> range:
    """`7` or `1..200` → the seeds, the last one included."""
    first, _, last = word.partition("..")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{word!r} is no range of seeds: write A..B with A at most B")
    return seeds


def main() -> int:
    """0 when every run held (with a plant: when it was caught)."""
    plants = [plant for world in WORLDS.values() for plant in world.plants]
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--world", choices=[*WORLDS], help=f"what is simulated (default {DEFAULT}, or the plant's)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of one run (default 1)")
    parser.add_argument("--seeds", type=seed_range, metavar="A..B", help="run every seed from A to B instead")
    parser.add_argument("--steps", type=positive, default=4000, help="events of each run (default 4000)")
    parser.add_argument("--plant", choices=plants, metavar="NAME", help="plant this bug first")
    parser.add_argument("--list-plants", action="store_true", help="say which bugs can be planted")
    chosen = parser.parse_args()
    if chosen.list_plants:
        for name, world in WORLDS.items():
            for plant_name, plant in world.plants.items():
                print(f"{name:10} {plant_name:40} {plant.about}")
        return 0
    name = chosen.world or (world_of(chosen.plant) if chosen.plant else DEFAULT)
    if chosen.plant and chosen.plant not in WORLDS[name].plants:
        parser.error(f"{chosen.plant} is planted in the world {world_of(chosen.plant)}, not in {name}")
    return _run(WORLDS[name], chosen.seeds or [chosen.seed], chosen.steps, chosen.plant or "")


def _run(world: World, seeds: Sequence[int], steps: int, plant: str) -> int:
    with world.plants[plant].planted() if plant else nullcontext():
        for seed in seeds:
            try:
                report = world.run(seed, steps, plant)
            except SimulationFailed as failure:
                print(failure)
                return 0 if plant else 1
            print(f"seed {seed}: {report.steps} steps, digest {report.digest}", flush=True)
    if plant:
        print(f"the planted bug {plant} was not caught")
    return 1 if plant else 0


if __name__ == "__main__":
    sys.exit(main())
