"""Who gets which room in HBM: decisions without a tensor, every account recounted after each."""

from __future__ import annotations

import random

import pytest

from flexkv_tiers.hbm.pool import GROWTH_PAGES, LENDING_SPARE_PAGES, WIDEN_SPARE_PAGES, HotPool
from flexkv_tiers.hbm.rooms import Admission, PoolLimits, Stage, Use

ROWS, PAGES, BLOCKS = 4, 30, 12
HOT_MIN, HOT_MAX = 1, 3
LIMITS = PoolLimits(ROWS, PAGES, BLOCKS, HOT_MIN, HOT_MAX)


@pytest.fixture
def pool():
    """Four rows and thirty pages, one to three of them for a hot buffer; recounted when the test ends."""
    pool = HotPool(LIMITS)
    yield pool
    pool.check()


def admit(pool, request, blocks, cached=0, covered=True):
    """A request whose loads have ended; by default its blocks are covered, all but the last."""
    admission, _ = pool.admit(request, blocks, cached)
    if admission is not Admission.WAIT:
        pool.load_ended(request, pool.rooms[request].loading, whole=True)
        for block in range(blocks - 1 if covered else 0):
            pool.cover(request, block)
    return admission


def test_as_few_as_possible_go_hot_and_the_longest_first(pool):
    """The newcomer's pages come from the request that frees most; the others stay resident."""
    for request, blocks in ((1, 6), (2, 10), (3, 8)):
        assert admit(pool, request, blocks) is Admission.RESIDENT
    assert admit(pool, 4, 8) is Admission.RESIDENT
    assert [pool.rooms[request].stage for request in (1, 2, 3, 4)] == [
        Stage.RESIDENT,
        Stage.HOT,
        Stage.RESIDENT,
        Stage.RESIDENT,
    ]
    assert list(pool.rooms[2].pages) == [9]  # the block that is being written
    assert len(pool.rooms[2].hot) == HOT_MAX  # of what it gave up
    assert not any(pool.rooms[request].hot for request in (1, 3, 4))


def test_a_request_with_all_its_pages_is_resident_however_full_it_is(pool):
    """Where another rank's step failed too often, this one's request has what it needs, and takes nobody's pages."""
    admit(pool, 1, 2, covered=False)
    admit(pool, 2, 12)
    admit(pool, 3, 12, covered=False)
    pool.grow(1, 4)
    assert pool.make_resident(1) == (True, [])
    assert pool.rooms[2].stage is Stage.RESIDENT


def test_nobody_goes_hot_for_a_request_that_waits_all_the_same(pool):
    """When even every page that could be freed is too few, nothing is changed."""
    admit(pool, 1, 2)
    admit(pool, 2, 12, covered=False)
    admit(pool, 3, 12, covered=False)
    before = pool.pages.free_count
    assert admit(pool, 4, 8) is Admission.WAIT
    assert pool.rooms[1].stage is Stage.RESIDENT
    assert pool.pages.free_count == before


def test_everyone_can_begin_a_next_block(pool):
    """Admission leaves a page per request, so all of them grow by a block whatever comes first."""
    request = 0
    while request < ROWS and admit(pool, request, 7, covered=False) is not Admission.WAIT:
        request += 1
    assert pool.pages.free_count >= GROWTH_PAGES * len(pool.rooms)
    for each in list(pool.rooms):
        grown, _ = pool.grow(each, pool.rooms[each].blocks + 1)
        assert grown


def test_a_request_may_send_itself_hot_to_grow(pool):
    """Where nobody else can give a page up, the one that grows gives up its own covered blocks."""
    admit(pool, 1, 11)
    admit(pool, 2, 11, covered=False)
    admit(pool, 3, 4, covered=False)
    pool.grow(3, 8)
    assert pool.pages.free_count == 0
    grown, changes = pool.grow(1, 12)
    assert grown
    assert [(change.request, change.released, change.taken, change.hot) for change in changes] == [
        (1, tuple(range(10)), (), tuple(pool.rooms[1].hot)),
        (1, (), (11,), None),
    ]


def test_going_hot_needs_no_free_page(pool):
    """The hot buffer is made of what the request gives up, but of no page that a save still reads."""
    admit(pool, 1, 12)
    saved = {pool.copy_started(1, block, Use.SAVE) for block in range(2)}
    taken = [pool.pages.take() for _ in range(pool.pages.free_count)]
    change = pool.go_hot(1)
    assert change.hot == tuple(pool.rooms[1].hot)
    assert len(change.hot) == HOT_MAX
    assert not set(change.hot) & {*saved, *taken}
    assert pool.pages.free_count == 11 - 2 - HOT_MAX
    assert pool.pages.left_count == 2
    for block in range(2):
        pool.copy_ended(1, block, Use.SAVE)
    for page in taken:
        pool.pages.give_back(page)


def test_who_has_nothing_to_give_up_stays_resident(pool):
    """Pages for a hot buffer come from the free ones only where the others can still grow."""
    admit(pool, 1, 12, covered=False)
    admit(pool, 2, 12, covered=False)
    admit(pool, 3, 3, covered=False)
    assert pool.pages.free_count == GROWTH_PAGES * len(pool.rooms)
    assert pool.go_hot(3) is None
    assert pool.rooms[3].stage is Stage.RESIDENT
    pool.remove(2)
    assert len(pool.go_hot(3).hot) == HOT_MIN


def test_hot_buffers_shrink_when_nobody_is_left_to_go_hot(pool):
    """The one that missed least per page gives first, and none gives the least that a step needs."""
    for request in (1, 2, 3):
        admit(pool, request, 8)
        pool.go_hot(request)
    pool.steer({1: 50, 2: 10, 3: 90})
    assert [len(pool.rooms[request].hot) for request in (1, 2, 3)] == [HOT_MAX] * 3
    taken = [pool.pages.take() for _ in range(pool.pages.free_count - 5)]
    assert admit(pool, 4, 4, covered=False) is Admission.RESIDENT  # with a page for each to grow it takes eight
    assert [len(pool.rooms[request].hot) for request in (1, 2, 3)] == [HOT_MAX - 1, HOT_MIN, HOT_MAX]
    grown = 0
    while pool.grow(4, 5 + grown)[0]:
        grown += 1
    assert [len(pool.rooms[request].hot) for request in (1, 2, 3)] == [HOT_MIN] * 3
    assert pool.pages.free_count == 0
    for page in taken:
        pool.pages.give_back(page)


def test_a_request_that_cannot_grow_waits(pool):
    """Without a page to be had a request's step waits, and a page that comes free lets it go on."""
    for request in (1, 2):
        admit(pool, request, 11, covered=False)
    admit(pool, 3, 4, covered=False)
    pool.grow(3, 8)
    assert pool.grow(1, 12) == (False, [])
    assert pool.rooms[1].blocks == 11
    pool.remove(3)
    assert pool.grow(1, 12)[0]


def test_widening_leaves_room_for_the_others(pool):
    """Who misses most per page is widened, but not into pages the others are about to need, nor for nothing."""
    for request in (1, 2):
        admit(pool, request, 8)
        pool.go_hot(request)
    assert pool.choose_wider({}) is None
    assert pool.choose_wider({1: 5, 2: 9}) == 2
    pool.widen(2)
    assert pool.choose_wider({1: 5, 2: 9}) == 1
    admit(pool, 3, 3)
    assert pool.pages.free_count < WIDEN_SPARE_PAGES * 3 + 7
    assert pool.choose_wider({1: 5}) is None
    pool.load_ended(2, pool.rooms[2].loading, whole=True)
    assert not pool.rooms[2].hot  # all its rows are in pages now
    assert pool.rooms[2].stage is Stage.RESIDENT


def test_a_hot_request_that_becomes_resident_makes_room_for_itself(pool):
    """Its own hot pages count among those it needs."""
    admit(pool, 1, 12)
    pool.go_hot(1)
    admit(pool, 2, 12, covered=False)
    taken = [pool.pages.take() for _ in range(pool.pages.free_count - 10)]
    assert pool.make_resident(1)[0]  # eleven, and a page for each to grow
    assert not pool.rooms[1].hot
    assert pool.pages.free_count == GROWTH_PAGES * 2
    for page in taken:
        pool.pages.give_back(page)


def test_free_pages_go_to_who_misses(pool):
    """Spare pages enlarge the hot buffer that misses most per page, and leave the others room to grow."""
    for request in (1, 2):
        admit(pool, request, 4)
        pool.go_hot(request)
    assert [len(pool.rooms[request].hot) for request in (1, 2)] == [HOT_MIN] * 2  # half of three pages
    taken = [pool.pages.take() for _ in range(pool.pages.free_count - LENDING_SPARE_PAGES * 2 - 1)]
    wider, [change] = pool.steer({1: 5, 2: 9})
    assert wider is None
    assert change.request == 2
    assert len(change.hot) == HOT_MIN + 1
    assert pool.steer({1: 5, 2: 9}) == (None, [])
    for page in taken:
        pool.pages.give_back(page)
    assert pool.steer({2: 9})[0] == 2  # now it may have all its rows in pages


@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_events_loses_a_page(seed):
    """Ten thousand random decisions: rows, pages and copies are exact after each, and all is free at the end."""
    chance = random.Random(seed)
    pool = HotPool(LIMITS)
    copies: list[tuple[int, int, Use]] = []
    loads: list[tuple[int, tuple[int, ...]]] = []
    seen: set[object] = set()
    for request in range(2_500):
        if not pool.is_fenced(request):
            blocks = chance.randint(1, BLOCKS)
            admission, _ = pool.admit(request, blocks, chance.choice((0, 0, chance.randint(0, blocks))))
            seen.add(admission)
            if admission is not Admission.WAIT and pool.rooms[request].loading:
                loads.append((request, pool.rooms[request].loading))
        for _ in range(4):
            act(pool, chance, copies, loads)
            pool.check()
        seen |= {room.stage for room in pool.rooms.values()}
    for owner in list(pool.rooms):
        pool.remove(owner)
    for copy in copies:
        pool.copy_ended(*copy)
    for owner, blocks_loaded in loads:
        pool.load_ended(owner, blocks_loaded, whole=False)
    pool.check()
    assert pool.pages.free_count == PAGES
    assert seen == {*Admission, *Stage}


def act(pool, chance, copies, loads):
    """One thing that may happen between two steps."""
    if copies and chance.random() < 0.3:
        pool.copy_ended(*copies.pop(chance.randrange(len(copies))))
    if loads and chance.random() < 0.3:
        owner, blocks = loads.pop(chance.randrange(len(loads)))
        pool.load_ended(owner, blocks, whole=chance.random() < 0.7)
    if not pool.rooms:
        return
    request = chance.choice(list(pool.rooms))
    choice = chance.randrange(8)
    if choice == 7:
        wider, _ = pool.steer({owner: chance.randrange(200) for owner in pool.rooms})
        if wider is not None:
            loads.append((wider, pool.rooms[wider].loading))
    else:
        act_on(pool, chance, copies, loads, request, choice)


def act_on(pool, chance, copies, loads, request, choice):
    """One thing that may happen to this request."""
    room = pool.rooms[request]
    block = chance.randrange(room.blocks)
    if choice == 0 and room.blocks < BLOCKS:
        pool.grow(request, room.blocks + 1)
    elif choice in {1, 2}:
        pool.cover(request, block)
    elif choice == 3:
        pool.uncover(request, block)
    elif choice == 4 and block in room.pages and (request, block, Use.SAVE) not in copies:
        pool.copy_started(request, block, Use.SAVE)
        copies.append((request, block, Use.SAVE))
    elif choice == 5 and room.stage is Stage.HOT:
        if pool.choose_wider({request: 1}) == request:
            pool.widen(request)
            loads.append((request, room.loading))
        elif pool.make_resident(request)[0] and room.loading:
            loads.append((request, room.loading))
    elif choice == 6 and chance.random() < 0.5:
        pool.remove(request)
