"""`scripts/simulate`: replays a seed, runs a range of seeds, or plants a bug and waits for it to be caught."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from flexkvd.cli.arguments import positive
from tests.sim.plants import PLANTS
from tests.sim.simulation import SimulationFailed, run


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
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the seed of one run (default 1)")
    parser.add_argument("--seeds", type=seed_range, metavar="A..B", help="run every seed from A to B instead")
    parser.add_argument("--steps", type=positive, default=4000, help="events given to the planner (default 4000)")
    parser.add_argument("--plant", choices=[*PLANTS], default=None, metavar="NAME", help="plant this bug first")
    parser.add_argument("--list-plants", action="store_true", help="say which bugs can be planted")
    chosen = parser.parse_args()
    if chosen.list_plants:
        for name, plant in PLANTS.items():
            print(f"{name:32} {plant.about}")
        return 0
    with PLANTS[chosen.plant].planted() if chosen.plant else nullcontext():
        for seed in chosen.seeds or [chosen.seed]:
            try:
                report = run(seed, chosen.steps, chosen.plant)
            except SimulationFailed as failure:
                print(failure)
                return 0 if chosen.plant else 1
            print(f"seed {seed}: {report.steps} steps, digest {report.digest}", flush=True)
    if chosen.plant:
        print(f"the planted bug {chosen.plant} was not caught")
    return 1 if chosen.plant else 0


if __name__ == "__main__":
    sys.exit(main())
