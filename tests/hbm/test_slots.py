"""Hot buffers change their size between steps: in all groups of a worker at once, and what stays in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flexkv_tiers.hbm.shape import TableLimits
from flexkv_tiers.hbm.steps import StepTables
from flexkv_tiers.hbm.tables import EMPTY
from tests.hbm.decoder import CPU, shapes

PAGES = 12
LONG = 100
"""Tokens of a request that fits into no hot buffer here."""


@pytest.fixture
def tables():
    """Two groups, H = 20 slots of 8 to a page, and one request of `LONG` tokens, all rows in one frame of zeros."""
    geometry, made = shapes(TableLimits(2, 2, 16), slots=20)
    tables = StepTables(made, PAGES, CPU)
    tables.requests.segments.map([bytearray(geometry.frame_bytes)], geometry.frame_bytes)
    tables.open(0, LONG)
    for group in tables.groups.values():
        group.page_table[0] = 0
    return tables


def select(tables: StepTables, *ids: int) -> list[int]:
    """Slots of the ids in the first group, EMPTY where the plan refused them."""
    tables.begin([0])
    group = next(iter(tables.groups))
    topk = torch.full_like(tables.groups[group].slots, EMPTY)
    topk[0, 0, : len(ids)] = torch.tensor(ids)
    slots = tables.plan(group, topk)[0, 0, : len(ids)].tolist()
    tables.end()
    return slots


def counted(tables: StepTables) -> tuple[int, int]:
    """Hits and misses of the first group since the last call."""
    return tables.take_counts(0)[0][1:]


def test_slots_lie_in_the_pages_a_request_has(tables):
    """With two pages its sixteen slots are theirs, in this order; the third page brings only what H allows."""
    tables.resize(0, [7, 3])
    assert select(tables, 50, 51, 52) == [56, 57, 58]
    group = next(iter(tables.groups.values()))
    assert [int(slot) for slot in group.place(0, torch.tensor([7, 8, 15, 16]))] == [63, 24, 31, EMPTY]
    tables.resize(0, [7, 3, 9])
    tables.check(0, LONG, {}, {(block, chunk): 0 for block in range(16) for chunk in range(2)}, hot=[7, 3, 9])
    assert group.slot_count.tolist() == [20, 0]
    assert select(tables, 50) == [56]


def test_what_stays_keeps_its_rows_and_what_comes_is_empty(tables):
    """A page less takes its rows along; a page more is filled before anything is replaced."""
    tables.resize(0, [0, 1])
    for first in range(40, 56, 4):
        select(tables, *range(first, first + 4))
    assert counted(tables) == (0, 16)
    tables.resize(0, [0])
    tables.resize(0, [0, 2])
    assert select(tables, *range(60, 64)) == list(range(16, 20))
    assert select(tables, *range(40, 44)) == list(range(4))
    assert counted(tables) == (4, 4)
    assert all(slot >= 16 for slot in select(tables, *range(48, 52)))
    assert counted(tables) == (0, 4)


def test_another_page_in_an_old_place_is_empty(tables):
    """Rows of a page that was given away are not looked for in the page that took its place."""
    tables.resize(0, [0, 1])
    select(tables, 40, 41)
    tables.resize(0, [5, 1])
    select(tables, 40, 41)
    assert counted(tables) == (0, 4)


def test_no_row_is_in_two_slots_when_a_request_comes_to_fit(tables):
    """Its rows become their own slots, so those of the time before are forgotten."""
    tables.set_length(0, 18)
    tables.resize(0, [0])
    select(tables, 17, 16)
    tables.resize(0, [0, 1, 2])
    assert select(tables, 17) == [17]
    held = next(iter(tables.groups.values())).slot_position[0]
    assert held[held >= 0].tolist() == [17]


def test_what_a_step_wrote_lies_in_no_slot(tables):
    """In a worker the step's own rows go to an HBM page, so a request that fits must fetch them once they left it."""
    tables.set_length(0, 17)
    tables.resize(0, [0, 1, 2])
    select(tables, 3)
    tables.set_length(0, 18)
    select(tables, 17)
    assert counted(tables) == (0, 2)


def test_a_request_without_slots_is_refused_what_lies_in_no_page(tables):
    """A selection that the hot buffer has no room for names no row; with room for it, it is planned."""
    assert select(tables, 50) == [EMPTY]
    assert not tables.requests.ok[0]
    tables.requests.rearm(0)
    tables.resize(0, [4])
    assert select(tables, 50) == [32]
    tables.close(0)
    assert next(iter(tables.groups.values())).slot_page[0].tolist() == [EMPTY] * 4


def test_any_selection_fits_into_the_fewest_pages(tables):
    """Six ids of one query fit into a page of eight, H = 20 slots into three pages."""
    assert (tables.hot_pages_min, tables.hot_pages_max) == (1, 3)
    tables.resize(0, [0])
    assert EMPTY not in select(tables, 50, 40, 30, 20, 10, 60)
    assert counted(tables) == (0, 6)


def test_groups_of_other_sizes_use_what_they_need_of_the_same_pages():
    """A group of twelve slots has them in two pages, whatever the others need; each sees its own pages alone."""
    _, made = shapes(TableLimits(2, 2, 16), slots=20)
    tables = StepTables([made[0], replace(made[1], slots=12)], PAGES, CPU)
    tables.open(1, LONG)
    tables.resize(1, [4, 2, 6])
    first, second = tables.groups.values()
    assert (tables.hot_pages_min, tables.hot_pages_max) == (1, 3)
    assert (first.slot_count.tolist(), second.slot_count.tolist()) == ([0, 20], [0, 12])
    assert first.slot_page[1].tolist() == [4, 2, 6, EMPTY]
    assert second.slot_page[1].tolist() == [4, 2, EMPTY]
