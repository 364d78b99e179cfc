"""The object a worker embeds: the life of a request, with real bytes and every row looked at."""

from __future__ import annotations

import random

import pytest

from flexkv_tiers.hbm.newest import SAVES_RUNNING_MAX, SaveOutcome
from flexkv_tiers.hbm.replay import agree_oks, agree_versions
from flexkv_tiers.hbm.requests import HotCount
from flexkv_tiers.hbm.rooms import Admission, Stage
from flexkv_tiers.hbm.worker import Outcome
from tests.hbm.decoder import BLOCK_TOKENS, Decoder, select_some
from tests.hbm.store import Store


@pytest.fixture
def decoder():
    """Three rows, 24 pages of 8 tokens; recounted when the test ends."""
    decoder = Decoder()
    yield decoder
    decoder.check()


def fill(request, shape, visible):
    """The first ids of the request, as many as a selection holds."""
    return list(range(min(visible, shape.picks)))


def test_a_resident_request_decodes_without_the_daemon(decoder):
    """A request that fits in HBM pages reads every row from there: nothing is fetched, granted or waited for."""
    assert decoder.attach(1, text=1, tokens=20) is Admission.RESIDENT
    chance = random.Random(1)
    for _ in range(30):
        assert decoder.step([1], select_some(chance)) == [Outcome.DONE]
    assert decoder.lengths[1] == 50
    assert all(not group.counters.any() for group in decoder.path.tables.groups.values())
    assert all(not group.slot_count.any() for group in decoder.path.tables.groups.values())  # it has no hot buffer


def test_under_pressure_the_longest_goes_hot_without_a_pause(decoder):
    """A newcomer sends the longest request hot; both take part in the very next step, every row right."""
    assert decoder.attach(1, text=1, tokens=100) is Admission.RESIDENT
    decoder.save_all()
    decoder.grant_all(1)
    given_up = set(decoder.path.pages(1).values())
    assert decoder.attach(2, text=2, tokens=80) is Admission.RESIDENT
    assert decoder.path.pool.rooms[1].stage is Stage.HOT
    assert set(decoder.path.pool.rooms[1].hot) <= given_up  # its hot buffer is made of its own pages
    chance = random.Random(2)
    for _ in range(10):
        assert decoder.step([1, 2], select_some(chance)) == [Outcome.DONE, Outcome.DONE]


def test_a_newcomer_that_is_cached_and_longest_starts_hot(decoder):
    """A request whose history is in the cache needs no pages for it when others would have to give theirs up."""
    decoder.attach(1, text=1, tokens=100)
    decoder.save_all()
    decoder.detach(1, save=False)
    decoder.attach(2, text=2, tokens=100)
    decoder.save_all()
    decoder.grant_all(2)
    assert decoder.attach(3, text=1, tokens=110) is Admission.HOT
    assert decoder.path.pool.rooms[2].stage is Stage.RESIDENT


def test_what_fits_nowhere_waits_and_takes_nothing(decoder):
    """Without a free row, or pages that could be had, a request is told to wait; nothing changes."""
    decoder.attach(1, text=1, tokens=100)  # nothing is saved, so it cannot give a page up
    before = decoder.path.pool.pages.free_count
    assert decoder.attach(2, text=2, tokens=100) is Admission.WAIT
    assert decoder.path.pool.pages.free_count == before
    assert decoder.attach(2, text=2, tokens=8) is Admission.RESIDENT
    assert decoder.attach(3, text=3, tokens=8) is Admission.RESIDENT
    assert decoder.attach(4, text=4, tokens=8) is Admission.WAIT  # pages are free, rows are not


def test_an_absent_step_is_replayed_once_when_its_pages_are_in(decoder):
    """An absent row costs the sample; after its page came in the same step runs once more and counts."""
    decoder.start_hot(1, text=1, tokens=60)
    assert decoder.step([1], fill) == [Outcome.REPLAY]
    asks = decoder.path.take_asks()
    assert asks == [(1, (0, 0))]  # block 0 holds all six ids; group 0 lies in chunk 0
    assert decoder.path.begin([1]) == []  # it waits
    decoder.path.apply(decoder.store.grant(1, [(0, 0)]))
    assert decoder.step([1], fill) == [Outcome.REPLAY]  # group 1 is absent in its turn
    assert decoder.path.take_asks() == [(1, (0, 1))]
    decoder.path.apply(decoder.store.grant(1, [(0, 1)]))
    assert decoder.path.take_replayed() == []
    assert decoder.step([1], fill) == [Outcome.DONE]
    assert decoder.lengths[1] == 61
    assert decoder.path.take_replayed() == [1]  # what was pinned for it may go
    heat = [int(group.heat.sum()) for group in decoder.path.tables.groups.values()]
    assert heat == [6, 6]  # once for the step: group 0 found its rows at the second run already
    assert decoder.step([1], fill) == [Outcome.DONE]
    assert [int(group.heat.sum()) for group in decoder.path.tables.groups.values()] == [12, 12]


def test_a_page_that_leaves_before_the_replay_is_asked_for_again(decoder):
    """Revoked between its coming and the replay, a page is asked for again and the step does not run without it."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.step([1], fill)
    decoder.path.take_asks()
    decoder.path.apply(decoder.store.grant(1, [(0, 0), (0, 1)]))
    decoder.path.apply(decoder.store.grant(1, [], revoked=[(0, 0)]))
    decoder.acknowledge()
    assert decoder.path.begin([1]) == []
    assert decoder.path.take_asks() == [(1, (0, 0))]
    decoder.path.apply(decoder.store.grant(1, [(0, 0)]))
    assert decoder.step([1], fill) == [Outcome.DONE]


def test_a_failed_step_leaves_no_heat_and_no_residency(decoder):
    """The failing group and those behind it count no heat, load nothing, and give no slot to what came of garbage."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.path.apply(decoder.store.grant(1, [(1, 0), (1, 1)]))
    decoder.step([1], lambda request, shape, visible: [8, 9, 0])
    for group in decoder.path.tables.groups.values():
        assert not group.heat.any()
        assert not group.counters[:, :2].any()
        assert (group.slot_position < 0).all()


def test_replays_end_in_residence_or_in_handing_back():
    """After `replays_max` replays the request gets HBM pages for everything, or is handed back where there are none."""
    for pages, outcome in ((24, Outcome.LOAD), (9, Outcome.HAND_BACK)):
        decoder = Decoder(pages=pages, replays_max=2)
        decoder.start_hot(1, text=1, tokens=60)
        decoder.attach(2, text=2, tokens=8)
        outcomes = []
        while not outcomes or outcomes[-1] is Outcome.REPLAY:
            outcomes += decoder.step([1], fill)
            # A daemon that breaks its word: it says that pages came, and they are not there at the replay.
            decoder.path._attached[1].replays.granted([part for _, part in decoder.path.take_asks()])
        assert len(outcomes) == 3
        assert outcomes[-1] is outcome
        if outcome is Outcome.LOAD:
            decoder.end_load(0)
            assert decoder.step([1], fill) == [Outcome.DONE]
        decoder.check()


def test_a_refused_page_is_the_end_of_waiting(decoder):
    """What the daemon cannot bring in is made up for at once; a refusal that comes too late does nothing."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.step([1], fill)
    assert decoder.path.refuse(1) is Outcome.LOAD
    assert decoder.path.refuse(1) is None
    assert decoder.path.refuse(7) is None
    decoder._start_load(1)
    decoder.end_load(0)
    assert decoder.step([1], fill) == [Outcome.DONE]


def test_a_block_that_others_saved_first_leaves_when_it_is_full(decoder):
    """Granted while this request still writes it, a block stays in its page until its last token counts."""
    decoder.attach(1, text=1, tokens=64)
    decoder.save_all()
    decoder.detach(1, save=False)
    decoder.start_hot(2, text=1, tokens=60)  # the same text, one block and four tokens behind
    decoder.path.apply(decoder.store.grant(2, [(7, 0), (7, 1)]))
    assert 7 in decoder.path.pages(2)
    decoder.grant_all(2)
    for _ in range(4):
        assert decoder.step([2], lambda request, shape, visible: [visible - 1, 56]) == [Outcome.DONE]
    assert 7 not in decoder.path.pages(2)
    decoder.start_saves()
    assert decoder.saves == []
    assert decoder.step([2], lambda *_: [63, 56, 64]) == [Outcome.DONE]


def test_requests_outlive_their_daemon(decoder):
    """On the old frames a request decodes on; attached to the next daemon it reads only what that one grants."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    assert decoder.step([1], fill) == [Outcome.DONE]
    blocks, decoder.store = decoder.store.blocks, Store(decoder.path, 2, 64, decoder.store.frame_bytes)
    decoder.store.blocks = blocks  # from SSD; the frames are others, and hold nothing yet
    decoder.store.attach(1, 1)
    decoder.path.disown(1)
    decoder.path.joined(1, 3)
    decoder.store.grants[1].version = 3
    assert decoder.step([1], lambda *_: [20, 21, 40]) == [Outcome.REPLAY]
    decoder.grant_all(1)
    assert decoder.step([1], lambda *_: [20, 21, 40]) == [Outcome.DONE]


def test_ranks_that_disagree_replay_together():
    """One rank lacks a row: both discard the sample, both replay, and their tables switch on the same step."""
    near, far = Decoder(), Decoder()
    for rank in (near, far):
        rank.start_hot(1, text=1, tokens=60)
        rank.path.receive(rank.store.grant(1, [(0, 0), (0, 1)]))
    near.path.receive(near.store.grant(1, [(1, 0), (1, 1)]))
    versions = agree_versions([near.path.received([1]), far.path.received([1])])
    for rank in (near, far):
        rank.path.switch(dict(zip([1], versions, strict=True)))
        assert rank.path._attached[1].granted.version == 1
    far.path.tables.groups[1].page_table[:, 0] = -1  # this rank's device lost the row, the other's did not
    runs = []
    for rank in (near, far):
        assert rank.path.begin([1]) == [1]
        for shape in rank.shapes:
            rank._group([1], shape, fill)
        runs.append(rank.path.collect())
    assert [run[0].ok for run in runs] == [True, False]
    oks = agree_oks([[run.ok for run in ran] for ran in runs])
    for rank, ran in zip((near, far), runs, strict=True):
        assert rank.finish([1], ran, [1], oks) == [Outcome.REPLAY]
        assert rank.lengths[1] == 60
    far.path.tables.groups[1].page_table[:, 0] = far.store.grants[1].frames[0, 1] * far.store.units
    assert agree_oks([rank.path.ready([1]) for rank in (near, far)]) == [False]  # one is ready, the other waits
    far.path._attached[1].replays.granted([(0, 1)])
    assert agree_oks([rank.path.ready([1]) for rank in (near, far)]) == [True]
    for rank in (near, far):
        assert rank.step([1], fill) == [Outcome.DONE]
        rank.check()


def test_a_page_is_not_reused_before_its_save_ended(decoder):
    """Cancelled in the middle of a save, a request's page goes to nobody until the copy has read it."""
    decoder.attach(1, text=1, tokens=16)
    decoder.start_saves()
    [first, second] = [order.page for order, _ in decoder.saves]
    decoder.detach(1, save=False)
    decoder.attach(2, text=2, tokens=100)
    assert not {first, second} & set(decoder.path.pages(2).values())
    decoder.end_save(0, SaveOutcome.STORED)
    decoder.end_save(0, SaveOutcome.STORED)
    assert decoder.store.cached_blocks(1) == 2
    decoder.detach(2, save=False)
    decoder.attach(3, text=1, tokens=20)  # what was saved is loaded, and compared with its text
    decoder.end_load(0)
    assert decoder.step([3], fill) == [Outcome.DONE]


def test_rejected_tokens_are_never_saved():
    """With four tokens a step and one kept, a block is saved only when its last kept token is in it."""
    decoder = Decoder(queries=4, slots=24)
    decoder.attach(1, text=1, tokens=5)
    chance = random.Random(3)
    for _ in range(30):
        decoder.step([1], select_some(chance), lambda _: chance.choice((0, 1, 2)))
        decoder.save_all()
        assert decoder.store.cached_blocks(1) == decoder.lengths[1] // BLOCK_TOKENS
    decoder.detach(1, save=False)
    decoder.attach(2, text=1, tokens=8 * decoder.store.cached_blocks(1))
    decoder.end_load(0)
    decoder.step([2], fill)
    decoder.check()


def test_a_finished_request_is_saved_to_its_last_full_block(decoder):
    """Finishing hands out every full block that is not saved yet; the pages are free when these copies ended."""
    decoder.attach(1, text=1, tokens=60)
    decoder.detach(1, save=True)
    assert len(decoder.saves) == 7
    assert decoder.path.pool.is_fenced(1)
    while decoder.saves:
        decoder.end_save(0, SaveOutcome.STORED)
    assert decoder.store.cached_blocks(1) == 7
    assert decoder.path.pool.pages.free_count == 24


def test_a_step_that_broke_off_is_forgotten(decoder):
    """After an error between plan and commit nothing that was planned is believed: the step runs again, rows right."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    assert decoder.break_off([1], fill)
    assert decoder.step([1], fill) == [Outcome.DONE]


def test_warm_rows_are_hits_from_the_first_step(decoder):
    """Rows of prefill's last selection are fetched before the first step; nothing counts as selected for it."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    for shape in decoder.shapes:
        assert decoder.path.warm(1, shape.group, [0, 1, 2, 3, 4, 5, 59]) == 6  # 59 lies in a page
    assert not decoder.path.tables.heat.any()
    assert decoder.step([1], fill) == [Outcome.DONE]
    for group in decoder.path.tables.groups.values():
        assert group.counters[decoder.path.pool.rooms[1].row].tolist() == [6, 0, 0, 0]


def test_nothing_is_warmed_between_a_failed_step_and_its_replay(decoder):
    """The device takes the request for padding until then: nothing is fetched, its heat counts once."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.path.apply(decoder.store.grant(1, [(0, 0)]))
    assert decoder.step([1], lambda *_: [0, 1]) == [Outcome.REPLAY]  # the second group's chunk is absent
    assert decoder.path.warm(1, 0, [2, 3]) == 0
    decoder.grant_all(1)
    assert decoder.step([1], lambda *_: [0, 1]) == [Outcome.DONE]
    assert decoder.path.tables.heat[:, decoder.path.pool.rooms[1].row, 0].tolist() == [2, 2]


def test_the_request_that_misses_most_becomes_resident(decoder):
    """Of two hot requests the one that misses more per page is loaded while it decodes on, then misses no more."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.start_hot(2, text=2, tokens=40)
    decoder.grant_all(1)
    decoder.grant_all(2)
    assert decoder.steer() is None  # nobody has missed anything yet
    chance = random.Random(5)
    for _ in range(6):
        far = [chance.randrange(56) for _ in range(6)]
        decoder.step([1, 2], lambda request, shape, visible, far=far: far if request == 1 else [0, 1])
    assert decoder.steer() == 1
    for _ in range(3):
        assert decoder.step([1, 2], select_some(chance)) == [Outcome.DONE] * 2
    decoder.end_load(0)
    assert decoder.path.pool.rooms[1].stage is Stage.RESIDENT
    decoder.path.take_counts()
    for _ in range(3):
        assert decoder.step([1, 2], select_some(chance)) == [Outcome.DONE] * 2
    assert [count.misses for count in decoder.path.take_counts() if count.request == 1] == [0, 0]
    decoder.path.go_hot(1)
    assert decoder.path.pool.rooms[1].stage is Stage.HOT
    assert decoder.step([1, 2], select_some(chance)) == [Outcome.DONE] * 2


def test_hot_buffers_follow_misses_while_requests_decode():
    """Pages go from the request that always finds its rows to the one that misses, and every row stays right."""
    decoder = Decoder(requests=2, slots=32, start_pages=2)
    for request in (1, 2):
        decoder.start_hot(request, text=request, tokens=60)
        decoder.grant_all(request)
    pools = decoder.path.pool
    taken = [pools.pages.take() for _ in range(pools.pages.free_count - 4)]  # none to spare
    chance, sizes = random.Random(7), []

    def select(request, shape, visible):
        return [0, 1, 2] if request == 1 else [chance.randrange(56) for _ in range(6)]

    for _ in range(6):
        for _ in range(16):
            assert set(decoder.step([1, 2], select, lambda _: 0)) == {Outcome.DONE}
        assert decoder.steer() is None
        sizes.append(tuple(len(pools.rooms[request].hot) for request in (1, 2)))
    assert sizes == [(1, 3)] * 6
    for page in taken:
        pools.pages.give_back(page)
    decoder.check()


def test_a_block_is_loaded_while_its_old_page_is_still_being_saved(decoder):
    """Two copies of one block, each with a page of its own: the save reads the old one to its end."""
    decoder.attach(1, text=1, tokens=64)
    decoder.save_all()
    decoder.detach(1, save=False)
    decoder.start_hot(2, text=1, tokens=60)
    decoder.grant_all(2)  # the eighth block too, that the other request saved
    decoder.path.apply(decoder.store.grant(2, [], revoked=[(7, 0)]))
    for _ in range(4):
        decoder.step([2], fill)
    decoder.start_saves()
    assert [order.block for order, _ in decoder.saves] == [7]
    decoder.grant_all(2)  # it leaves its page, under the save
    decoder.step([2], lambda *_: [56, 57, 58])
    assert decoder.steer() == 2
    decoder.end_load(0)
    decoder.end_save(0, SaveOutcome.STORED)
    assert decoder.step([2], lambda *_: [56, 57, 63]) == [Outcome.DONE]


def test_what_others_saved_is_not_saved_from_the_page_it_is_loaded_into(decoder):
    """A block that left its page unsaved, since others had saved it, is never due again: not even in a new page."""
    tokens = 6 * BLOCK_TOKENS
    decoder.start_hot(1, 0, tokens)
    decoder.detach(1, save=False)
    decoder.attach(2, 0, tokens, cached=0)  # it computed all of it itself
    decoder.start_saves()
    decoder.grant_all(2)
    assert decoder.path.go_hot(2)
    assert decoder.path.steer([HotCount(2, 0, 0, 100)]) == 2
    decoder._start_load(2)
    running = len(decoder.saves)
    while decoder.saves:
        decoder.end_save(0, SaveOutcome.THROTTLED)
    decoder.start_saves()
    decoder.detach(2, save=True)
    assert (running, decoder.saves) == (SAVES_RUNNING_MAX, [])
    decoder.end_load(0)


def test_a_failed_widening_leaves_the_request_hot(decoder):
    """A load that fell short gives its pages back; rows are read through the hot buffer as before."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    decoder.step([1], fill)
    free = decoder.path.pool.pages.free_count
    assert decoder.steer() == 1
    assert decoder.end_load(0, whole=False)
    assert decoder.path.pool.rooms[1].stage is Stage.HOT
    assert decoder.path.pool.pages.free_count == free
    assert decoder.step([1], select_some(random.Random(6))) == [Outcome.DONE]


def test_the_embedder_is_told_that_a_request_needed_what_its_load_did_not_bring(decoder):
    """A step that is given up while its request is widened rests on that load: one that falls short is its end."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    decoder.step([1], fill)
    assert decoder.steer() == 1
    decoder.path.apply(decoder.store.grant(1, [], revoked=[(5, 0)]))
    assert decoder.step([1], lambda *_: [5 * BLOCK_TOKENS]) == [Outcome.REPLAY]
    assert decoder.path.refuse(1) is Outcome.REPLAY  # as soon as the load has ended
    assert not decoder.end_load(0, whole=False)
    assert decoder.path.begin([1]) == []
    decoder.detach(1, save=True)
    assert not decoder.saves


def test_heat_leaves_in_bounded_reports(decoder):
    """A report names each block once per group with its selections, largest first, and is not counted twice."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    for _ in range(3):
        decoder.step([1], lambda request, shape, visible: [0, 1, 8])
    assert decoder.path.take_heat() == []
    decoder.step([1], lambda request, shape, visible: [16])
    found = [(request, entry.group, entry.block, entry.count) for request, entry in decoder.path.take_heat()]
    assert sorted(found) == [(1, 0, 0, 6), (1, 0, 1, 3), (1, 1, 0, 6), (1, 1, 1, 3)]
    assert [count for *_, count in found] == [6, 6, 3, 3]


def start_anew(decoder, request):
    decoder.detach(1, save=False)
    decoder.attach(request, text=2, tokens=8)


def change_daemon(decoder, _request):
    decoder.path.disown(1)
    decoder.store.detach(1)
    decoder.store.attach(1, text=1)


@pytest.mark.parametrize(
    ("end", "request_number"),
    [
        pytest.param(start_anew, 2, id="the next request in its row"),
        pytest.param(start_anew, 1, id="the next request of its number"),
        pytest.param(change_daemon, 1, id="the next daemon"),
    ],
)
def test_heat_is_not_told_of_another_life(decoder, end, request_number):
    """A report on its way names blocks that whoever comes next may not have: the daemon would refuse all of it."""
    decoder.start_hot(1, text=1, tokens=60)
    decoder.grant_all(1)
    decoder.step([1], fill)
    decoder.path.take_heat()
    decoder.step([1], fill)
    end(decoder, request_number)
    assert decoder.path.take_heat() == []
    assert decoder.path.take_heat() == []
