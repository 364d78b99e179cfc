"""Large requests are placed a few keys per event: what gets between, and how they end when nobody wants the rest."""

from __future__ import annotations

from typing import Any

import pytest

from flexkv_py.core.messages import (
    Instruction,
    LoadAsked,
    NamespaceReset,
    Outcome,
    PrefetchAsked,
    SaveAsked,
    SaveHints,
    SessionClosed,
    SessionOpened,
    StartCopies,
    TicketCancelled,
    Tier,
    TimePassed,
)
from flexkv_py.keys import ROOT
from tests.core.conftest import NAMESPACE, SPEC, chain

SLICE = 4
KEYS = 10


@pytest.fixture
def bench(benches: Any) -> Any:
    """A planner that places four keys per event, with room for sixty-four blocks and two sessions."""
    bench = benches(keys_per_event_max=SLICE, dram_segments=64)
    bench.post(SessionOpened(2, SPEC, 0, 0))
    return bench


def ask_to_save(bench: Any, count: int = KEYS, session: int = 1, branch: str = "") -> list[Instruction]:
    """The first event of a save; no more slices than that."""
    bench.tickets += 1
    keys = chain(count, branch)
    out: list[Instruction] = bench.post(
        SaveAsked(session, bench.tickets, keys, ROOT, 0, Tier.DRAM, SaveHints(), bench.now_ns)
    )
    return out


def placed(instructions: list[Instruction]) -> dict[int, int]:
    """Keys that are to be copied, by session."""
    counts: dict[int, int] = {}
    for one in instructions:
        if isinstance(one, StartCopies):
            counts[one.session] = counts.get(one.session, 0) + len(one.blocks)
    return counts


@pytest.mark.parametrize("event", [LoadAsked, PrefetchAsked, SaveAsked])
def test_no_event_takes_more_keys_than_its_slice(bench: Any, event: type) -> None:
    """Ten keys are looked at in three events, each asked for at once, whatever is to be done with them."""
    if event is not SaveAsked:
        bench.save(chain(KEYS))
        bench.settle()
    seen: list[int] = []
    if event is SaveAsked:
        ask_to_save(bench)
    elif event is LoadAsked:
        bench.post(LoadAsked(1, 77, chain(KEYS), 0, bench.now_ns))
    else:
        bench.post(PrefetchAsked(1, 77, chain(KEYS), 0, Tier.DRAM, bench.now_ns))
    while bench.planner.state.arrivals:
        assert bench.planner.next_deadline_ns() == bench.now_ns
        [session] = bench.planner.state.arrivals
        seen.append(session.arrived[0].seen)
        bench.tick()
    assert seen == [4, 8]
    assert bench.planner.next_deadline_ns() is None
    bench.settle()
    [outcome] = set(bench.told[-1].outcomes)
    assert outcome in (Outcome.STORED, Outcome.LOADED, Outcome.PRESENT)
    assert len(bench.told[-1].outcomes) == KEYS


def test_others_get_between_the_slices_of_a_large_request(bench: Any) -> None:
    """While a save is in its first slice a match is answered, and another session's keys are the next to be placed."""
    assert placed(ask_to_save(bench)) == {1: 4}
    assert bench.match(chain(3)).length == 0
    assert placed(ask_to_save(bench, 2, session=2, branch="b")) == {2: 2, 1: 2}
    while bench.planner.state.arrivals:
        bench.tick()
    bench.settle()
    assert [told.ticket for told in bench.told if told.outcomes == [Outcome.STORED] * 2] == [2]
    assert bench.match(chain(KEYS)).length == KEYS


def test_a_request_does_not_overtake_its_sessions_earlier_one(bench: Any) -> None:
    """A load of what the session's own save has not placed yet waits for it, instead of finding nothing."""
    ask_to_save(bench)
    load = bench.load(chain(KEYS)[8:])
    bench.settle()
    assert bench.outcomes(load) == [Outcome.LOADED] * 2


def test_a_save_cancelled_between_slices_starts_no_more(bench: Any) -> None:
    """A save that is cancelled after its first slice is answered at once, and its other keys get no frames."""
    ask_to_save(bench)
    bench.post(TicketCancelled(1, 1, bench.now_ns))
    assert bench.outcomes(1) == [Outcome.CANCELLED] * KEYS
    bench.tick()
    assert len(bench.running) == SLICE
    assert not bench.planner.state.arrivals
    bench.settle()
    assert bench.planner.state.frames.used_pages == 0


def test_a_session_that_dies_between_slices_leaves_nothing(bench: Any) -> None:
    """Its large save and the request behind it start no more copies, and another session's request takes its turn."""
    ask_to_save(bench)
    ask_to_save(bench, 5, branch="b")
    bench.post(SessionClosed(1, bench.now_ns))
    assert placed(ask_to_save(bench, 2, session=2, branch="c")) == {2: 2}
    while bench.planner.state.arrivals:
        bench.tick()
    assert len(bench.running) == 2 * SLICE + 2
    bench.settle()
    assert bench.copy(chain(1)[0], Tier.DRAM) is None
    assert bench.copy(chain(1, "c")[0], Tier.DRAM) is not None


def test_a_reset_between_slices_refuses_the_rest(bench: Any) -> None:
    """Nothing of a save becomes visible whose namespace is reset while it is placed, and each key is told so."""
    ask_to_save(bench)
    bench.post(NamespaceReset(1, 50, NAMESPACE, bench.now_ns))
    bench.settle()
    while bench.planner.state.arrivals:
        bench.tick()
    bench.settle()
    assert bench.outcomes(1) == [Outcome.REFUSED] * KEYS
    assert bench.match(chain(KEYS)).length == 0


def test_keys_that_waited_for_room_are_placed_in_slices_too(benches: Any) -> None:
    """Room for eight blocks comes free at once: those who wait get it four keys per event, without another cause."""
    bench = benches(keys_per_event_max=SLICE, dram_segments=8)
    bench.save(chain(8))
    bench.settle()
    lease = bench.match(chain(8), hold_ns=1_000_000).lease
    assert lease
    waits = bench.save(chain(8, "b"))
    assert not bench.running
    bench.now_ns += 1_000_000
    counts = []
    while not counts or bench.planner.next_deadline_ns() == bench.now_ns:
        counts.append(sum(placed(bench.post(TimePassed(bench.now_ns))).values()))
    assert max(counts) == SLICE
    assert sum(counts) == 8
    bench.settle()
    assert bench.outcomes(waits) == [Outcome.STORED] * 8
