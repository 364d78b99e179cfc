"""The sparse policy by itself: what leaves first, what is guessed, and how guesses are judged."""

from __future__ import annotations

import random

import pytest

from flexkv_py.rows.hunches import PAYS_MIN, WATCHED_MAX, Kind, Watch
from flexkv_py.rows.messages import AbsentEntry, HeatEntry
from flexkv_py.rows.policy import Place, Reason, RequestId
from flexkv_py.rows.sparse import FAVOUR_HALF_LIVES, OPEN_MAX, SparseRows

ONE, TWO = RequestId(1), RequestId(2)
REPORT_NS = 400_000_000


@pytest.fixture
def policy() -> SparseRows:
    return SparseRows()


def grant(policy: SparseRows, *blocks: int, request: RequestId = ONE, chunk: int = 0, now_ns: int = 0) -> None:
    for block in blocks:
        policy.granted(Place(request, block, chunk), now_ns)


def report(policy: SparseRows, counts: dict[int, int], now_ns: int, request: RequestId = ONE, chunk: int = 0) -> None:
    policy.reported(request, [HeatEntry(request, block, chunk, n) for block, n in counts.items()], now_ns)


def absent(policy: SparseRows, block: int, now_ns: int, request: RequestId = ONE, chunk: int = 0) -> None:
    policy.absent(request, [AbsentEntry(request, block, chunk)], now_ns)


def known(policy: SparseRows, blocks: int, chunks: int) -> None:
    """Granted once and revoked: the policy knows of these chunks, and none is granted."""
    for chunk in range(chunks):
        grant(policy, *range(blocks), chunk=chunk)
        for block in range(blocks):
            policy.revoked(Place(ONE, block, chunk))


def ahead(policy: SparseRows, now_ns: int) -> list[tuple[int, int, Reason]]:
    return [(place.block, place.chunk, reason) for place, reason in policy.ahead(now_ns)]


def test_the_coldest_leaves_first(policy):
    """What was selected least of late is offered first, over all requests."""
    grant(policy, 0, 1)
    grant(policy, 0, request=TWO)
    report(policy, {0: 200, 1: 5}, REPORT_NS)
    report(policy, {0: 60}, REPORT_NS, TWO)
    assert [(place.request, place.block) for place in policy.coldest(REPORT_NS)] == [(ONE, 1), (TWO, 0), (ONE, 0)]


def test_a_failed_step_brings_the_other_chunks_of_its_block(policy):
    """Later layer groups resemble the one that failed: their chunks of the same block are asked for, urgently."""
    known(policy, 8, 4)
    absent(policy, 5, REPORT_NS, chunk=1)
    guesses = ahead(policy, REPORT_NS)
    assert [each for each in guesses if each[2].urgent] == [(5, 2, Reason.SIBLING), (5, 3, Reason.SIBLING)]
    assert policy.predicted[Reason.SIBLING] == 2
    assert ahead(policy, REPORT_NS) == []


def test_a_likely_guess_is_watched_until_it_was_shown_to_pay(policy):
    """While rising chunks are not needed none is asked for, and their share falls; once they are, it rises."""
    known(policy, 4096, 1)
    now_ns, asked = REPORT_NS, []
    for block in range(0, 1200, 6):  # selected, and never needed
        report(policy, {block: 4}, now_ns)
        asked.append(len(ahead(policy, now_ns)))
        now_ns += REPORT_NS
    assert set(asked) == {0}
    [rising] = {name for name in policy.shares() if name[0] is Reason.RISING}
    assert policy.shares()[rising] < 0.2
    for block in range(1200, 4000, 3):  # now each is needed a little later
        report(policy, {block: 4}, now_ns)
        absent(policy, block, now_ns)
        grant(policy, block, now_ns=now_ns)
        now_ns += REPORT_NS
    assert policy.shares()[rising] > 0.6


def test_what_came_and_was_selected_came_true(policy):
    """A chunk that came because of a guess and is in a later report counts as right; one that is not, as wrong."""
    known(policy, 8, 2)
    for block in (1, 6):
        absent(policy, block, REPORT_NS)
    [sibling] = policy.shares()
    share = policy.shares()[sibling]
    assert {(1, 1, Reason.SIBLING), (6, 1, Reason.SIBLING)} <= set(ahead(policy, REPORT_NS))
    grant(policy, 1, 6, chunk=1, now_ns=REPORT_NS)
    report(policy, {1: 4}, 2 * REPORT_NS, chunk=1)
    assert policy.came_true[Reason.SIBLING] == 1
    better = policy.shares()[sibling]
    policy.revoked(Place(ONE, 6, 1))
    assert share < better
    assert policy.shares()[sibling] < better


def test_a_sibling_that_was_cold_for_long_must_first_show_that_it_is_needed(policy):
    """Hot lately, itself or beside it, it is asked for at once; else it is only watched, until such ones have paid."""
    known(policy, 900, 2)
    late_ns = 20 * REPORT_NS
    for turn in range(1, 21):
        report(policy, {700: 9}, turn * REPORT_NS, chunk=1)
    for block in (100, 700, 701):
        absent(policy, block, late_ns)
    assert [guess[:2] for guess in ahead(policy, late_ns)] == [(700, 1), (701, 1)]
    for block in range(200, 600, 2):
        absent(policy, block, late_ns)
        absent(policy, block, late_ns, chunk=1)
    list(policy.ahead(late_ns))
    absent(policy, 800, late_ns)
    assert [guess[:2] for guess in ahead(policy, late_ns)] == [(800, 1)]


def test_what_came_because_of_a_guess_stays_for_some_steps(policy):
    """It has no heat yet; others are offered first until the step that it came for had its chance."""
    known(policy, 8, 2)
    absent(policy, 3, REPORT_NS)
    assert (3, 1, Reason.SIBLING) in ahead(policy, REPORT_NS)
    grant(policy, 3, chunk=1, now_ns=REPORT_NS)
    grant(policy, 5, now_ns=2 * REPORT_NS)
    assert [place.block for place in policy.coldest(REPORT_NS)] == [5, 3]
    assert [place.block for place in policy.coldest(2 * REPORT_NS)] == [3, 5]


def test_a_new_turn_brings_back_what_was_hottest(policy):
    """What left while the request was idle is asked for when its next turn is attached, the hottest first."""
    grant(policy, 0, 1, 2)
    report(policy, {0: 4, 1: 400, 2: 40}, REPORT_NS)
    idle_ns = 100 * REPORT_NS
    for place in list(policy.coldest(idle_ns)):
        policy.revoked(place)
    assert ahead(policy, idle_ns) == []
    policy.resumed(ONE, idle_ns)
    assert ahead(policy, idle_ns) == [(1, 0, Reason.TURN), (2, 0, Reason.TURN), (0, 0, Reason.TURN)]


def test_heat_does_not_fade_while_a_request_is_idle(policy):
    """Back from a pause, a request's chunks are as hot, against those of others, as they were before it."""
    grant(policy, 0)
    grant(policy, 0, request=TWO)
    report(policy, {0: 400}, REPORT_NS)
    for turn in range(2, 40):
        report(policy, {0: 4}, turn * REPORT_NS, TWO)
    assert next(iter(policy.coldest(40 * REPORT_NS))).request == ONE
    policy.resumed(ONE, 40 * REPORT_NS)
    assert next(iter(policy.coldest(40 * REPORT_NS))).request == TWO


def thrash(policy: SparseRows, now_ns: int) -> None:
    """Whatever leaves is missed at once."""
    for turn in range(100):
        block = turn % 50
        policy.revoked(Place(ONE, block, 0))
        absent(policy, block, now_ns)
        grant(policy, block, now_ns=now_ns)


def test_where_nothing_is_cold_it_notices(policy):
    """When most of what leaves is missed soon after, mere likelihood brings nothing back any more."""
    grant(policy, *range(200))
    assert not policy.nothing_is_cold or policy.missed_share > PAYS_MIN
    thrash(policy, REPORT_NS)
    assert policy.nothing_is_cold
    list(policy.ahead(REPORT_NS))
    policy.revoked(Place(ONE, 150, 0))
    absent(policy, 151, REPORT_NS)
    assert [each for each in ahead(policy, REPORT_NS) if not each[2].urgent] == []


def test_where_nothing_is_cold_one_request_at_a_time_is_spared(policy):
    """The one whose step fails keeps its chunks while others have some; after a while it is another's turn."""
    grant(policy, *range(50))
    grant(policy, *range(50), request=TWO)
    thrash(policy, REPORT_NS)
    report(policy, dict.fromkeys(range(50), 400), REPORT_NS, TWO)
    assert next(iter(policy.coldest(REPORT_NS))).request == TWO  # hotter, and still the first to go
    later_ns = REPORT_NS + int((FAVOUR_HALF_LIVES + 1) * REPORT_NS)
    absent(policy, 60, later_ns, TWO)
    report(policy, dict.fromkeys(range(50), 400), later_ns, TWO)
    assert next(iter(policy.coldest(later_ns))).request == ONE


def test_a_detached_request_is_forgotten(policy):
    """Nothing of it is offered or asked for, and its number may be used again."""
    grant(policy, *range(10))
    absent(policy, 20, REPORT_NS)
    policy.detached(ONE)
    assert list(policy.coldest(REPORT_NS)) == []
    assert list(policy.ahead(REPORT_NS)) == []
    grant(policy, 3)
    assert list(policy.coldest(REPORT_NS)) == [Place(ONE, 3, 0)]


@pytest.mark.parametrize("seed", range(3))
def test_what_it_offers_is_granted_and_what_it_asks_for_is_not(seed):
    """Over random lives: the order has every granted chunk once, guesses name chunks below, and tables stay bounded."""
    chance, policy, granted, now_ns = random.Random(seed), SparseRows(), set(), 0
    for _ in range(150):
        now_ns += chance.randrange(1, REPORT_NS)
        request = RequestId(chance.randrange(3))
        blocks = [chance.randrange(60) for _ in range(chance.randrange(1, 12))]
        chunk = chance.randrange(3)
        match chance.randrange(6):
            case 0:
                report(policy, {block: chance.randrange(1, 50) for block in blocks}, now_ns, request, chunk)
            case 1:
                missing = [AbsentEntry(request, block, chunk) for block in set(blocks)]
                policy.absent(request, [each for each in missing if Place(*each) not in granted], now_ns)
            case 2:
                policy.resumed(request, now_ns)
            case 3 if chance.random() < 0.1:
                for place in [place for place in granted if place.request == request]:
                    policy.revoked(place)
                    granted.discard(place)
                policy.detached(request)
            case 4:
                for place in list(policy.coldest(now_ns))[: chance.randrange(8)]:
                    policy.revoked(place)
                    granted.discard(place)
            case _:
                for place in {Place(request, block, chunk) for block in blocks} - granted:
                    policy.granted(place, now_ns)
                    granted.add(place)
        for place, _ in policy.ahead(now_ns):
            assert place not in granted
            if chance.random() < 0.7:
                policy.granted(place, now_ns)
                granted.add(place)
        offered = list(policy.coldest(now_ns + 100 * REPORT_NS))
        assert len(offered) == len(set(offered))
        assert set(offered) == granted
        now_ns += 100 * REPORT_NS if chance.random() < 0.05 else 0
        assert len(policy._open) <= OPEN_MAX


def test_watching_is_bounded_and_without_favour():
    """Beyond its bound nothing more is watched; what the horizon passes was wrong, what is needed before was right."""
    watch, kind = Watch(), Kind(Reason.RISING)
    kind.learn(right=True)
    for block in range(WATCHED_MAX + 10):
        watch.begin((1, block, 0), kind, 0.0)
    assert watch.end((1, WATCHED_MAX + 1, 0)) is None
    assert watch.end((1, 5, 0)) is kind
    before = kind.share
    watch.expire(100.0)
    assert kind.share < before
    assert watch.end((1, 6, 0)) is None


def test_a_kind_of_urgent_guess_that_is_wrong_is_given_up(policy):
    """What came and left without having been selected counts against its kind, until the kind is not followed."""
    known(policy, 400, 2)
    now_ns, asked = REPORT_NS, []
    for block in range(200):
        absent(policy, block, now_ns)
        guesses = [guess for guess in ahead(policy, now_ns) if guess[2] is Reason.SIBLING]
        asked.append(len(guesses))
        for guessed, chunk, _ in guesses:
            grant(policy, guessed, chunk=chunk, now_ns=now_ns)
            report(policy, {}, now_ns)
            policy.revoked(Place(ONE, guessed, chunk))
    assert asked[0] == 1
    assert asked[-1] == 0
    assert max(policy.shares().values()) < PAYS_MIN
