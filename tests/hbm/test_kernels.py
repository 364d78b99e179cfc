"""The kernels under Triton's interpreter against the torch oracle: every tensor equal after every step."""

from __future__ import annotations

import pytest
import torch

from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.gather import Kernels
from tests.hbm.cases import CASES, LARGE_CASES
from tests.hbm.test_checks import TOO_MANY, selection, with_two_slots
from tests.hbm.world import CPU, Case, World

STEPS = 12

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a device, it runs the kernels")


def differing(world: World) -> list[str]:
    """Names of the tensors in which the implementations differ."""
    first, second = (copyist.tensors() for copyist in world.copyists)
    return [name for name in first if not torch.equal(first[name], second[name])]


def take_steps(world: World, steps: int) -> None:
    """Steps with absent pages, refused ids and rejected tokens, compared one by one."""
    for number in range(steps):
        step = world.draw()
        if step.batch and world.chance.random() < 0.15:
            world.lose_pages(step.batch)
        if step.batch and world.chance.random() < 0.05:
            step.topk[0, 0, 0] = world.chance.choice([-2, 100_000])
        world.settle(step.batch)
        world.take(step)
        assert differing(world) == [], f"step {number}"
        assert world.misplaced(step) == [], f"step {number}"
        world.commit(step)
        assert differing(world) == [], f"commit of step {number}"
        world.rearm(step.batch)


def a_world(case: Case, seed: int, batch: int) -> World:
    world = World(case, seed, batch)
    world.let(reference)
    world.let(Kernels([world.shape], CPU, programs=1))
    return world


@interpreted
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_equal_the_oracle(case):
    """Slots, tables, order, rows, counters, ok and heat are equal after every random step, and every row is right."""
    take_steps(a_world(case, 11, batch=2), STEPS)


@interpreted
@pytest.mark.parametrize("case", LARGE_CASES, ids=lambda case: case.name)
def test_kernels_equal_the_oracle_at_full_size(case):
    """The same where a selection and the slots fill one tile, or several."""
    take_steps(a_world(case, 12, batch=1), 6)


@interpreted
@pytest.mark.parametrize("chosen", [chosen for chosen, _ in TOO_MANY])
def test_kernels_refuse_what_has_no_slot(chosen):
    """As the oracle does, for the same count of reasons."""
    (requests, group), (oracle_requests, oracle) = with_two_slots(chosen), with_two_slots(chosen)
    Kernels([group.shape], CPU, programs=1).plan(requests, group, selection(*chosen))
    reference.plan(oracle_requests, oracle, selection(*chosen))
    assert torch.equal(requests.ok, oracle_requests.ok)
    for name in ("slots", "newest_slot", "miss_count", "counters", "slot_position", "order"):
        assert torch.equal(getattr(group, name), getattr(oracle, name)), name


@interpreted
@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", [*CASES, *LARGE_CASES], ids=lambda case: case.name)
def test_kernels_equal_the_oracle_for_long(case):
    """The same over 160 steps of other seeds: more than 1,000 in all."""
    for seed in range(4):
        take_steps(a_world(case, 20 + seed, batch=3), 40)
