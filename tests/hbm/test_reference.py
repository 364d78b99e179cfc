"""The torch oracle against a plain-Python model, and both against the bytes of the arena."""

from __future__ import annotations

import pytest

from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.tables import ABSENTS, EMPTY, HITS, MISSES, REFUSED, UNMANAGED
from tests.hbm.cases import CASES
from tests.hbm.model import Answer, Model
from tests.hbm.world import Step, World

STEPS = 160


class Pair:
    """A world with the oracle in it, and a model that follows."""

    def __init__(self, case, seed: int) -> None:
        self.world = World(case, seed)
        self.world.let(reference)
        shape = self.world.shape
        self.model = Model(
            shape.newest_at,
            shape.newest,
            shape.limits.queries,
            shape.ids_per_block,
            shape.tokens_per_id,
            shape.partial_ids,
        )
        self.requests, self.group = self.world.copyists[0].requests, self.world.copyists[0].group

    def follow(self) -> None:
        """What happened between steps: requests opened anew or resized, pages that came and went."""
        for request, count, stay in self.world.changes:
            if stay is None:
                self.model.open(request, self.world.lengths[request], count)
            else:
                self.model.resize(request, count, stay)
        for request in self.world.lengths:
            self.model.requests[request].newest_there = EMPTY not in self.world.newest[request]
            first = int(self.requests.newest_first[request])
            self.model.requests[request].newest_first = 1 << 31 if first == UNMANAGED else first
            self.model.pages[request] = [
                None if frame == EMPTY else frame for frame in self.group.page_table[request].tolist()
            ]

    def check_answer(self, row: int, request: int, answer: Answer) -> None:
        def slots(cells: list[int | None]) -> list[int]:
            return [EMPTY if cell is None else self.world.place(request, cell) for cell in cells]

        assert self.group.slots[row].tolist() == [slots(cells) for cells in answer.slots]
        assert self.group.newest_slot[row].tolist() == slots(answer.newest)
        count = int(self.group.miss_count[row])
        assert self.group.miss_id[row, :count].tolist() == [each for each, _ in answer.loads]
        assert self.group.miss_slot[row, :count].tolist() == slots([slot for _, slot in answer.loads])

    def check_state(self) -> None:
        for request, state in self.model.requests.items():
            if request not in self.world.lengths:
                continue
            held = [EMPTY if each is None else each for each in state.held]
            assert self.group.slot_position[request, : len(held)].tolist() == held
            assert self.group.order[request, : len(held)].tolist() == state.order
            assert bool(self.requests.ok[request]) == state.ok
            counters = self.group.counters[request]
            assert counters[[HITS, MISSES, ABSENTS, REFUSED]].tolist() == [
                state.hits,
                state.misses,
                state.absents,
                state.refused,
            ]
            heat = self.group.heat[request]
            assert {block: int(heat[block]) for block in heat.nonzero().flatten().tolist()} == state.heat

    def step(self, step: Step) -> None:
        self.follow()
        self.world.settle(step.batch)
        self.world.take(step)
        for row, request in enumerate(step.batch):
            self.check_answer(row, request, self.model.step(request, step.topk[row].tolist()))
        assert (self.group.slots[len(step.batch) :] == EMPTY).all()
        self.check_state()
        assert self.world.misplaced(step) == []
        assert self.world.trampled() == []


def run(pair: Pair, steps: int) -> dict[str, int]:
    """Steps with absents and rejected tokens; returns how often what happened."""
    seen = {"absent": 0, "refused": 0, "short": 0, "long": 0}
    world = pair.world
    for _ in range(steps):
        step = world.draw()
        if step.batch and world.chance.random() < 0.15:
            world.lose_pages(step.batch)
        if step.batch and world.chance.random() < 0.05:
            step.topk[0, 0, 0] = world.chance.choice([-2, 100_000])
        pair.step(step)
        failed = [request for request in step.batch if not pair.requests.ok[request]]
        for request in failed:
            count = int(pair.requests.absent_count[request])
            assert pair.requests.absent_ids[request, :count].tolist() == pair.model.requests[request].absent_ids
            seen["absent"] += count > 0
            seen["refused"] += count == 0
        for row, request in enumerate(step.batch):
            seen["short" if world.fits(request) else "long"] += 1
            pair.model.commit(request, step.accepted[row])
        world.commit(step)
        world.rearm(step.batch)
        for request in failed:
            pair.model.requests[request].ok = True
        for request in step.batch:
            assert int(pair.requests.length[request]) == world.lengths[request]
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_oracle_equals_the_model(case):
    """Slots, tables, order, heat, counters and ok are equal after every random step, and every row is right."""
    seen = run(Pair(case, seed=1), STEPS)
    assert min(seen.values()) > 0, seen


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_oracle_equals_the_model_for_long(case):
    """The same over 2,000 steps of other seeds."""
    for seed in range(2, 6):
        run(Pair(case, seed), 500)
