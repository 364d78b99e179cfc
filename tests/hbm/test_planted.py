"""Bugs planted in the row path: a worker's turnover, or random steps, must catch each, or they show nothing."""

from __future__ import annotations

import pytest

from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.newest import NewestBlocks
from flexkv_tiers.hbm.pages import PagePool
from flexkv_tiers.hbm.resident import ResidentPages
from flexkv_tiers.hbm.steps import StepTables
from flexkv_tiers.hbm.tables import GroupTables
from tests.hbm.cases import CASES
from tests.hbm.test_turnover import KINDS, Turnover
from tests.hbm.world import World


def reuse_a_page_under_its_copy(monkeypatch):
    def give_back(self, page):
        self._free.append(page)

    def copy_ended(self, page):
        self._copies[page] -= 1
        if not self._copies[page]:
            del self._copies[page]

    monkeypatch.setattr(PagePool, "give_back", give_back)
    monkeypatch.setattr(PagePool, "copy_ended", copy_ended)
    monkeypatch.setattr(PagePool, "check", lambda *_: None)  # only the bytes may tell


def save_what_is_not_accepted(monkeypatch):
    monkeypatch.setattr(NewestBlocks, "full_blocks", property(lambda self: (self.length + 3) // 8))


def believe_a_step_that_broke_off(monkeypatch):
    monkeypatch.setattr(StepTables, "forget_resident", lambda *_: None)


def read_pages_that_were_given_up(monkeypatch):
    monkeypatch.setattr(ResidentPages, "leave", lambda *_: None)
    monkeypatch.setattr(StepTables, "check", lambda *_: None)


PLANTS = [
    (reuse_a_page_under_its_copy, "tokens", 2),
    (save_what_is_not_accepted, "tokens", 5),
    (believe_a_step_that_broke_off, "tokens", 3),
    (read_pages_that_were_given_up, "tokens", 4),
]
"""Each with a run that is known to meet it early."""


@pytest.mark.parametrize(("plant", "kind", "seed"), PLANTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_bug_is_caught(plant, kind, seed, monkeypatch):
    """With the bug planted a row comes back that is not its text's."""
    plant(monkeypatch)
    turnover = Turnover(seed, **KINDS[kind])
    with pytest.raises(AssertionError, match="a wrong row"):
        turnover.run(150)


def keep(monkeypatch, name: str) -> None:
    """Let `resize` leave a tensor of the request as it was, in slots that it still has."""
    resize = GroupTables.resize

    def planted(self, request, pages, count, visible):
        now = getattr(self, name)[request].view(-1)
        before = now.clone()
        resize(self, request, pages, count, visible)
        now[:count] = before[:count]

    monkeypatch.setattr(GroupTables, "resize", planted)


def leave_rows_in_pages_that_went(monkeypatch):
    keep(monkeypatch, "slot_position")


def bind_what_another_size_wrote(monkeypatch):
    keep(monkeypatch, "planned_length")


def read_pages_that_were_taken(monkeypatch):
    keep(monkeypatch, "slot_page")


@pytest.mark.parametrize(
    "plant", [leave_rows_in_pages_that_went, bind_what_another_size_wrote, read_pages_that_were_taken]
)
def test_a_bug_in_a_resize_is_caught(plant, monkeypatch):
    """With the bug planted a selected id is given a slot with other rows, or a page of nobody is written to."""
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="a wrong row"):
        take_steps(World(CASES[2], seed=1), 150)


def take_steps(world: World, steps: int) -> None:
    """Random steps of the oracle alone."""
    world.let(reference)
    for _ in range(steps):
        step = world.draw()
        world.settle(step.batch)
        world.take(step)
        assert not world.misplaced(step), "a wrong row"
        assert not world.trampled(), "a wrong row"
        world.commit(step)
        world.rearm(step.batch)
