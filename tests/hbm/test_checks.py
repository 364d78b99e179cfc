"""What is refused before a step, and what a step itself refuses: a coded error or no row, never a wrong one."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.checks import check_attached, check_step
from flexkv_tiers.hbm.shape import TableLimits, group_shape, metadata_bytes
from flexkv_tiers.hbm.steps import StepTables
from flexkv_tiers.hbm.tables import EMPTY, REFUSED, GroupTables, RequestTables, Segments
from tests.hbm.world import CPU

LIMITS = TableLimits(requests_max=4, batch_max=2, blocks_max=8, queries=2)


def geometry(row_bytes: int = 656, tokens_per_row: int = 1, tokens_per_block: int = 64) -> Geometry:
    return Geometry((Plane("kv", (0, 1), row_bytes, tokens_per_row), Plane("late", (1,), 64)), tokens_per_block)


def shape(row_bytes: int = 656, **sizes):
    sizes = {"slots": 32, "selected": 8, "newest": 4} | sizes
    return group_shape(geometry(row_bytes), 0, ["kv"], LIMITS, **sizes)


def selection(*ids: int) -> torch.Tensor:
    chosen = torch.full((2, 2, 8), EMPTY, dtype=torch.int32)
    chosen[0, 0, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return chosen


def refusal(code: ErrorCode, words: str):
    return pytest.raises(FlexKVError, match=rf"\[{code.value}\].*{re.escape(words)}")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"selected": 0}, "selected (K) is 0: use 1 to 2048"),
        ({"selected": 2049, "slots": 8192}, "selected (K) is 2049"),
        ({"slots": 8193}, "slots (H) is 8193: use 1 to 8192"),
        ({"slots": 15}, "give it at least queries × selected slots"),
        ({"newest": 1}, "newest is 1: use 2 to 1024"),
        ({"newest": 1025}, "newest is 1025"),
        ({"tokens_per_id": 0}, "is not whole rows"),
        ({"tokens_per_id": 3}, "does not divide a block of 64"),
        ({"row_bytes": 652}, "pad the rows to a multiple of 16"),
        ({"row_bytes": 9}, "pad the rows to a multiple of 16"),
    ],
)
def test_sizes_beyond_limits_are_refused(sizes, words):
    """K, H, newest slots, ids and row bytes out of range end in a sentence that names the cure."""
    with refusal(ErrorCode.BAD_ARGUMENT, words):
        shape(**sizes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 1, 1, 1), "requests_max is 0"),
        ((4, 5, 1, 1), "batch_max is 5: use 1 to 4"),
        ((4, 4, 0, 1), "blocks_max is 0"),
        ((4, 4, 1, 5), "queries (Q) is 5: use 1 to 4"),
        ((4, 4, 1.5, 1), "blocks_max is 1.5"),
    ],
)
def test_limits_of_the_tables_are_refused(sizes, words):
    """Requests, batch, blocks and queries have limits of their own."""
    with refusal(ErrorCode.BAD_ARGUMENT, words):
        TableLimits(*sizes)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda size: torch.zeros((size[0] - 1, size[1]), dtype=torch.uint8), id="too small"),
        pytest.param(lambda size: torch.zeros(size, dtype=torch.int8), id="of another type"),
        pytest.param(lambda size: torch.zeros((size[0], 2 * size[1]), dtype=torch.uint8)[:, ::2], id="with gaps"),
        pytest.param(
            lambda size: torch.zeros(size[0] * size[1] + 8, dtype=torch.uint8)[8:].view(size), id="off by 8 bytes"
        ),
    ],
)
def test_memory_that_rows_cannot_be_copied_to_is_refused(make):
    """An embedder's own memory is looked at once, when the tables are made."""
    geometry = Geometry((Plane("kv", (0,), 64),), 64)
    shape = group_shape(geometry, 0, ["kv"], LIMITS, slots=32, selected=8, newest=4)
    with refusal(ErrorCode.BAD_ARGUMENT, "make contiguous uint8"):
        StepTables([shape], 4, torch.device("cpu"), make)
    with refusal(ErrorCode.BAD_ARGUMENT, "-1 HBM pages"):
        StepTables([shape], -1, torch.device("cpu"))


def test_a_plane_or_group_the_geometry_has_not_is_refused():
    """A group number, a plane's name, a plane without this layer, and an id of half a row name what is wrong."""
    one = Geometry((Plane("kv", (0,), 64, tokens_per_row=4), Plane("late", (1,), 64)), 64)
    sizes = {"slots": 32, "selected": 8, "newest": 4}
    with refusal(ErrorCode.BAD_ARGUMENT, "group is 2"):
        group_shape(one, 2, ["kv"], LIMITS, **sizes)
    with refusal(ErrorCode.BAD_ARGUMENT, "no plane 'v'"):
        group_shape(one, 0, ["v"], LIMITS, **sizes)
    with refusal(ErrorCode.BAD_ARGUMENT, "no rows in layer 0"):
        group_shape(one, 0, ["late"], LIMITS, **sizes)
    with refusal(ErrorCode.BAD_ARGUMENT, "not whole rows"):
        group_shape(one, 0, ["kv"], LIMITS, tokens_per_id=2, **sizes)
    for planes in ([], ["kv", "kv"]):
        with refusal(ErrorCode.BAD_ARGUMENT, "name at least one, and each once"):
            group_shape(one, 0, planes, LIMITS, tokens_per_id=4, **sizes)
    odd = Geometry((Plane("kv", (0, 1), 584),), 1, ((0, 1),))
    with refusal(ErrorCode.BAD_ARGUMENT, "must start on 16 bytes"):
        group_shape(odd, 0, ["kv"], LIMITS, **sizes)


@pytest.mark.parametrize(
    ("requests", "lengths", "code", "words"),
    [
        ([0, 1, 2], [9, 9, 9], ErrorCode.LIMIT_EXCEEDED, "room for 2"),
        ([1, 1], [9, 9], ErrorCode.BAD_ARGUMENT, "once"),
        ([1], [9, 9], ErrorCode.BAD_ARGUMENT, "with its length"),
        ([4], [9], ErrorCode.BAD_ARGUMENT, "request 4 has no row"),
        ([0], [511], ErrorCode.LIMIT_EXCEEDED, "raise blocks_max"),
        ([0], [-1], ErrorCode.LIMIT_EXCEEDED, "-1 tokens"),
    ],
)
def test_batches_that_cannot_be_are_refused(requests, lengths, code, words):
    """More requests than rows, one twice, one without a row, one too long for its page table."""
    with refusal(code, words):
        check_step(shape(), selection(), requests, lengths)


def test_selections_that_cannot_be_are_refused():
    """Another type, another shape, ids beyond the sequence and below -1."""
    with refusal(ErrorCode.BAD_ARGUMENT, "give contiguous int32"):
        check_step(shape(), selection().long(), [0], [9])
    with refusal(ErrorCode.BAD_ARGUMENT, "give contiguous int32"):
        check_step(shape(), selection()[:1], [0], [9])
    with refusal(ErrorCode.BAD_ARGUMENT, "id 11 is selected and the sequence has 11: use 0 to 10"):
        check_step(shape(), selection(0, 11), [0], [9])
    with refusal(ErrorCode.BAD_ARGUMENT, "id -2 is selected"):
        check_step(shape(), selection(-2), [0], [9])
    check_step(shape(), selection(0, 10, EMPTY), [0], [9])


def test_more_unsaved_rows_than_newest_slots_are_refused():
    """Two rows would share a slot: the step is refused, on the host and by the plan itself."""
    with refusal(ErrorCode.LIMIT_EXCEEDED, "5 rows are in no saved page and there are 4"):
        check_step(shape(), selection(), [0], [40], newest_first=[37])
    check_step(shape(), selection(), [0], [40], newest_first=[38])


@pytest.mark.parametrize(("bad", "newest_first"), [(-2, 100), (102, 100), (5, 90)])
def test_a_plan_refuses_what_nobody_checked(bad, newest_first):
    """On a device nobody looks at the ids before: the request loses its ok, and no cell names a row."""
    requests, group = RequestTables(LIMITS, 16, CPU), GroupTables(shape(), CPU)
    for request in (0, 1):
        requests.open(request, 100)
        group.open(request)
        group.page_table[request] = 0
    requests.newest_first[1] = newest_first
    requests.batch.fill_(2)
    requests.request.copy_(torch.tensor([1, 0]))
    chosen = selection(7, bad)
    chosen[1, 0, 0] = 7
    reference.plan(requests, group, chosen)
    assert requests.ok.tolist() == [1, 0, 0, 0]
    assert (group.slots[0] == EMPTY).all()
    assert int(group.miss_count[0]) == 0
    assert int(group.counters[1, REFUSED]) == 1
    assert group.slots[1, 0, 0] == 0  # the other request of the batch is served


TOO_MANY = [((7, 8, 9), 1), ((7, 101), 0), ((7, 8, 101, 100), 2)]
"""Ids selected by a request with two slots, and how many of its cells, or all of them at once, have no slot."""


def with_two_slots(chosen: tuple[int, ...]) -> tuple[RequestTables, GroupTables]:
    """A request of 100 tokens; its newest slots are in no page where id 100 is `chosen`."""
    requests, group = RequestTables(LIMITS, 16, CPU), GroupTables(shape(), CPU)
    requests.open(0, 100)
    group.page_table[0] = 0
    group.resize(0, [0], 2, visible=102)
    requests.batch.fill_(1)
    if 100 in chosen:
        group.slot_page[0, shape().hot_columns :] = EMPTY
    return requests, group


@pytest.mark.parametrize(("chosen", "wrong"), TOO_MANY)
def test_a_plan_refuses_what_has_no_slot(chosen, wrong):
    """More distinct rows than the request has slots now, and each newest one where newest slots have no page."""
    requests, group = with_two_slots(chosen)
    reference.plan(requests, group, selection(*chosen))
    assert int(group.counters[0, REFUSED]) == wrong
    assert bool(requests.ok[0]) == (wrong == 0)
    assert bool((group.slots[0] != EMPTY).any()) == (wrong == 0)


def test_pages_of_a_request_that_is_not_attached_are_refused():
    """A change to a page table names the request and the cure."""
    check_attached(3, [1, 3])
    with refusal(ErrorCode.BAD_ARGUMENT, "request 2 is not attached: attach it"):
        check_attached(2, [1, 3])


def test_segments_are_whole_pages():
    """An arena that frame numbers could not count is refused."""
    with refusal(ErrorCode.BAD_ARGUMENT, "whole 4 KiB pages"):
        Segments(CPU).map([np.zeros(6000, dtype=np.uint8)], 6000)


def test_metadata_is_what_the_tables_take():
    """The documented bytes are those of the tensors."""
    one = shape()
    group = GroupTables(one, CPU)
    told = metadata_bytes(one)
    slots = (group.slot_count, group.slot_page, group.slot_position, group.order)
    per_request = (*slots, group.heat, group.counters, group.planned_length)
    assert sum(tensor[0].nbytes for tensor in per_request) == told["per_request"]
    per_row = (group.newest_slot, group.miss_count, group.miss_id, group.miss_slot, group.miss_frame)
    assert sum(tensor[0].nbytes for tensor in per_row) == told["per_batch_row"]
    assert group.page_table[0].nbytes == told["page_table"]
