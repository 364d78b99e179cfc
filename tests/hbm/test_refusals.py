"""Bad input of every kind is a coded error that names its cure, before the step, and changes nothing."""

from __future__ import annotations

import re

import pytest
import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.budget import page_bytes, page_count, page_count_min, table_bytes
from flexkv_tiers.hbm.granted import VERSIONS_HELD_MAX, PagesChange
from flexkv_tiers.hbm.graph import padded_size
from flexkv_tiers.hbm.newest import SaveOutcome
from flexkv_tiers.hbm.rooms import Admission
from flexkv_tiers.hbm.shape import TableLimits
from flexkv_tiers.hbm.steps import StepTables
from flexkv_tiers.hbm.tables import SEGMENTS_MAX
from flexkv_tiers.hbm.worker import Outcome
from tests.hbm.decoder import CPU, Decoder, shapes

BAD_ARGUMENT, BAD_MESSAGE, LIMIT = ErrorCode.BAD_ARGUMENT, ErrorCode.BAD_MESSAGE, ErrorCode.LIMIT_EXCEEDED


@pytest.fixture
def decoder():
    """One resident request of 20 tokens, saved and granted; whatever is refused, it must go on."""
    decoder = Decoder()
    assert decoder.attach(1, text=1, tokens=20) is Admission.RESIDENT
    yield decoder
    assert decoder.step([1], lambda request, shape, visible: [0, 19, 20]) == [Outcome.DONE]
    decoder.check()


def selection(*ids, size=6, dtype=torch.int32):
    topk = torch.full((3, 1, size), -1, dtype=dtype)
    topk[0, 0, : len(ids)] = torch.tensor(ids)
    return topk


def change(version, granted=(), revoked=(), request=1):
    return PagesChange(request, version, tuple(granted), tuple(revoked))


@pytest.mark.parametrize(
    ("code", "group", "topk"),
    [
        pytest.param(BAD_ARGUMENT, 0, selection(21), id="beyond the sequence and its new token"),
        pytest.param(BAD_ARGUMENT, 0, selection(1 << 30), id="far out of range"),
        pytest.param(BAD_ARGUMENT, 0, selection(-2), id="negative"),
        pytest.param(BAD_ARGUMENT, 0, selection(size=7), id="more ids than K"),
        pytest.param(BAD_ARGUMENT, 0, selection()[:, :, :3], id="fewer ids than K, not padded"),
        pytest.param(BAD_ARGUMENT, 0, selection(dtype=torch.int64), id="of another type"),
        pytest.param(BAD_ARGUMENT, 0, selection().to("meta"), id="on another device"),
        pytest.param(BAD_ARGUMENT, 7, selection(), id="of a group that does not move by rows"),
        pytest.param(BAD_ARGUMENT, 0, [[[0]]], id="no tensor"),
    ],
)
def test_a_bad_selection_is_refused_before_it_is_planned(decoder, code, group, topk):
    """Nothing is planned, and the step can be broken off and run again."""
    decoder.path.begin([1])
    refused(code, decoder.path.plan, group, topk)
    decoder.path.abort()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        pytest.param(BAD_ARGUMENT, [9], id="a request that is not attached"),
        pytest.param(BAD_ARGUMENT, [1, 1], id="a request twice"),
        pytest.param(LIMIT, [1, 2, 3, 4], id="more requests than rows"),
    ],
)
def test_a_bad_batch_is_refused(decoder, code, wanted):
    """A batch that the tables cannot hold never begins."""
    refused(code, decoder.path.begin, wanted)


@pytest.mark.parametrize(
    ("code", "tokens", "cached", "request_number"),
    [
        pytest.param(BAD_ARGUMENT, 8, 0, 1, id="attached already"),
        pytest.param(BAD_ARGUMENT, 8, 2, 2, id="more cached than there is"),
        pytest.param(LIMIT, 8 * 16 + 1, 0, 2, id="longer than the tables"),
        pytest.param(LIMIT, 0, 0, 2, id="empty"),
        pytest.param(BAD_ARGUMENT, 8.5, 0, 2, id="half a token"),
        pytest.param(BAD_ARGUMENT, "8", 0, 2, id="tokens that are no number"),
        pytest.param(BAD_ARGUMENT, 8, None, 2, id="nobody knows how much is cached"),
        pytest.param(BAD_ARGUMENT, 8, 0, "two", id="a name for a number"),
        pytest.param(BAD_ARGUMENT, 8, 0, -1, id="a number below 0"),
        pytest.param(BAD_ARGUMENT, 8, 0, 1 << 32, id="a number that the socket does not carry"),
    ],
)
def test_a_request_that_can_never_be_is_refused(decoder, code, tokens, cached, request_number):
    """What cannot be admitted at any time is an error, not a wait."""
    refused(code, decoder.path.attach, request_number, tokens, cached)


def test_a_request_cannot_outgrow_its_tables():
    """The step that would need a block too many is refused before it begins."""
    decoder = Decoder(blocks=3)
    decoder.attach(1, text=1, tokens=24)
    refused(LIMIT, decoder.path.begin, [1])
    decoder.check()


def test_a_number_is_not_reused_under_a_running_save(decoder):
    """A save that outlives its request keeps the number, so that its end is told to nobody else."""
    decoder.attach(2, text=2, tokens=8)
    decoder.start_saves()
    decoder.detach(2, save=False)
    refused(BAD_ARGUMENT, decoder.path.attach, 2, 8)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param(BAD_ARGUMENT, change(1, request=9), id="of a request that is not attached"),
        pytest.param(BAD_MESSAGE, change(0), id="an old version"),
        pytest.param(BAD_MESSAGE, change(1, granted=[(0, 2, 0)]), id="a chunk that is not there"),
        pytest.param(BAD_MESSAGE, change(1, granted=[(0, 0, -1)]), id="a negative frame"),
        pytest.param(BAD_MESSAGE, change(1, granted=[(0, 0, 1 << 20)]), id="a frame behind the arena"),
        pytest.param(BAD_MESSAGE, change(2), id="a version after one that was lost"),
        pytest.param(BAD_MESSAGE, change(1, revoked=[(99, 0)]), id="a block beyond the tables"),
    ],
)
def test_pages_that_cannot_be_are_refused(decoder, code, message):
    """The page tables stay as they were."""
    refused(code, decoder.path.apply, message)
    assert decoder.path.take_acks() == []


def test_versions_held_back_are_bounded(decoder):
    """A daemon that sends on and on while the ranks never switch is refused."""
    for version in range(VERSIONS_HELD_MAX):
        decoder.path.receive(change(version + 1))
    refused(BAD_MESSAGE, decoder.path.receive, change(VERSIONS_HELD_MAX + 1))


def test_calls_out_of_turn_are_refused(decoder):
    """What belongs between steps is refused within one, and the other way round."""
    refused(BAD_ARGUMENT, decoder.path.plan, 0, selection())
    refused(BAD_ARGUMENT, decoder.path.collect)
    refused(BAD_ARGUMENT, decoder.path.abort)
    decoder.path.begin([1])
    refused(BAD_ARGUMENT, decoder.path.begin, [1])
    refused(BAD_ARGUMENT, decoder.path.attach, 2, 8)
    refused(BAD_ARGUMENT, decoder.path.switch)
    refused(BAD_ARGUMENT, lambda: decoder.path.detach(1, save=False))
    refused(BAD_ARGUMENT, decoder.path.commit, [1])
    decoder.path.collect()
    refused(BAD_ARGUMENT, decoder.path.collect)
    refused(BAD_ARGUMENT, decoder.path.commit, [2])
    refused(BAD_ARGUMENT, decoder.path.commit, [1, 1])
    refused(BAD_ARGUMENT, decoder.path.commit, [None])
    refused(BAD_ARGUMENT, decoder.path.commit, [1], [True, True])
    decoder.path.abort()


def test_a_group_is_planned_once_and_before_its_layers_are_read(decoder):
    """A second selection could overwrite slots that the first one named; a layer nobody planned has none."""
    [layer, *_], [other, *_] = (shape.layers for shape in decoder.shapes[:2])
    decoder.path.begin([1])
    refused(BAD_ARGUMENT, decoder.path.wait, layer)
    decoder.path.plan(0, selection(3))
    decoder.path.wait(layer)
    refused(BAD_ARGUMENT, decoder.path.plan, 0, selection(4))
    refused(BAD_ARGUMENT, decoder.path.wait, other)
    refused(BAD_ARGUMENT, decoder.path.wait, 99)
    refused(BAD_ARGUMENT, decoder.path.newest_slots, 99)
    refused(BAD_ARGUMENT, decoder.path.tables.rows_of, 99, 0)
    decoder.path.abort()
    refused(BAD_ARGUMENT, decoder.path.wait, layer)
    refused(BAD_ARGUMENT, decoder.path.warm, 1, 99, [3])


def test_ends_of_copies_that_do_not_run_are_refused(decoder):
    """A save ends once and a load as a whole: of one said to have ended in part, half pages would be read."""
    refused(BAD_ARGUMENT, decoder.path.save_ended, 1, 0, SaveOutcome.STORED)
    refused(BAD_ARGUMENT, lambda: decoder.path.load_ended(9, [0], whole=True))
    decoder.save_all()
    assert decoder.path.attach(2, 20, 2) is Admission.RESIDENT
    for blocks in ([], [0], [0, 0], [0, 1, 1], [0, 1, 2]):
        refused(BAD_ARGUMENT, lambda blocks=blocks: decoder.path.load_ended(2, blocks, whole=True))
        assert decoder.path.begin([2]) == []
    decoder.path.load_ended(2, [0, 1], whole=True)
    refused(BAD_ARGUMENT, lambda: decoder.path.load_ended(2, [0, 1], whole=True))
    decoder.path.detach(2, save=False)


def test_one_arena_serves_all_requests(decoder):
    """Frames of two daemons cannot be told apart: the next arena waits until nobody reads of the last one."""
    segment = decoder.store.arena
    decoder.save_all()
    decoder.grant_all(1)
    refused(BAD_ARGUMENT, decoder.path.map_arena, [segment], segment.nbytes)
    refused(BAD_ARGUMENT, decoder.path.point_arena, [segment.ctypes.data], segment.nbytes)
    decoder.path.disown(1)
    decoder.store.detach(1)
    segments = decoder.path.tables.requests.segments
    for buffers, length in (([bytearray(4096)] * (SEGMENTS_MAX + 1), 4096), ([segment], 0), ([segment], 4000)):
        refused(BAD_ARGUMENT, decoder.path.map_arena, buffers, length)
        assert (len(segments.views), segments.frame_count * 4096) == (1, segment.nbytes)  # as before
    decoder.path.map_arena([segment], segment.nbytes)
    decoder.store.attach(1, text=1)


def test_versions_of_an_earlier_life_are_not_acknowledged(decoder):
    """Neither to the next daemon nor for the next request of that number: there they might be versions to come."""
    decoder.path.apply(change(1))
    decoder.path.disown(1)
    assert decoder.path.take_acks() == []
    decoder.attach(2, text=2, tokens=8)
    decoder.path.apply(change(1, request=2))
    decoder.detach(2, save=False)
    decoder.attach(2, text=2, tokens=8)
    assert decoder.path.take_acks() == []
    decoder.detach(2, save=False)


def test_rows_beyond_a_requests_pages_are_refused(decoder):
    """Prefill cannot count tokens for which the request has no pages."""
    refused(BAD_ARGUMENT, decoder.path.prefilled, 1, 5)
    refused(BAD_ARGUMENT, decoder.path.prefilled, 9, 1)


def test_groups_of_one_worker_are_alike():
    """Tables are refused for no group, a group twice, or groups of different limits."""
    _, made = shapes(TableLimits(2, 2, 8))
    _, other = shapes(TableLimits(3, 3, 8))
    for wrong in ([], [made[0], made[0]], [made[0], other[1]]):
        refused(BAD_ARGUMENT, StepTables, wrong, 8, CPU)


def test_hot_buffers_that_cannot_be_are_refused():
    """Fewer pages at first than one step's selection takes, or more than the tables have slots for."""
    for pages in (0, 3):
        refused(BAD_ARGUMENT, lambda pages=pages: Decoder(start_pages=pages))


def test_a_batch_no_graph_was_captured_for_is_refused():
    """The smallest captured size that holds the batch is used; beyond the largest there is none."""
    assert [padded_size(batch, [1, 4, 8]) for batch in (1, 2, 4, 7)] == [1, 4, 4, 8]
    refused(LIMIT, padded_size, 9, [1, 4, 8])


def test_one_budget_makes_the_pages():
    """Tables and pages together take no more than the budget, and as much of it as whole pages can."""
    _, made = shapes(TableLimits(3, 3, 16))
    fixed = table_bytes(made)
    assert page_count(fixed + 10 * page_bytes(made) + 7, made) == 10
    tables = StepTables(made, 10, CPU)
    rows = sum(rows.nbytes for group in tables.groups.values() for layers in group.all_rows for rows in layers)
    assert rows == 10 * page_bytes(made)
    owners = [tables, tables.requests, tables.requests.segments, tables.resident, *tables.groups.values()]
    found = [value for owner in owners for value in vars(owner).values() if isinstance(value, torch.Tensor)]
    found += [*tables._slots.values()]
    assert sum(
        {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found}.values()
    ) == (table_bytes(made))
    refused(BAD_ARGUMENT, page_count, fixed + page_count_min(made) * page_bytes(made) - 1, made)


def refused(code, call, *arguments):
    """The call raises this code with a sentence that says what would be right."""
    with pytest.raises(FlexKVError) as caught:
        call(*arguments)
    assert caught.value.code is code
    assert re.search(r"[:;,] ", caught.value.message), "cause and cure"
