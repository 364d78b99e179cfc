"""The link: who goes first, how much goes in a tick, and when it is there."""

from __future__ import annotations

from flexkv_py.rows.policy import Place, RequestId
from flexkvd.rowreplay.link import STALE_TICKS, Link, LinkSpeed, Urgency


def place(block: int) -> Place:
    return Place(RequestId(0), block, 0)


def read_all(link: Link, tick: int) -> list[int]:
    """Begin what the link has time for in this tick."""
    out = []
    link.refill()
    while (found := link.next(tick)) is not None:
        out.append(found[0].block)
        link.begin(found[0], tick)
    return out


def test_who_waits_goes_before_who_is_guessed():
    """Demand, then urgent guesses, then likely ones; and a tick takes no more than its share."""
    link = Link(LinkSpeed(chunks_per_tick=2, latency_ticks=3))
    for block, urgency in ((1, Urgency.LIKELY), (2, Urgency.URGENT), (3, Urgency.DEMAND), (4, Urgency.DEMAND)):
        link.ask(place(block), urgency, 0)
    assert read_all(link, 0) == [3, 4]
    assert read_all(link, 1) == [2, 1]
    assert [link.landed(tick) for tick in (2, 3, 4)] == [[], [place(3), place(4)], [place(2), place(1)]]


def test_a_guess_becomes_demand_and_is_read_once():
    """A chunk asked for twice is read once, as soon as somebody waits for it."""
    link = Link(LinkSpeed(chunks_per_tick=1, latency_ticks=1))
    for block in (1, 2):
        link.ask(place(block), Urgency.LIKELY, 0)
    link.ask(place(2), Urgency.DEMAND, 0)
    assert [read_all(link, tick) for tick in range(3)] == [[2], [1], []]


def test_an_old_guess_is_dropped():
    """Nobody reads for a step that is long over."""
    link = Link(LinkSpeed(chunks_per_tick=1, latency_ticks=1))
    link.ask(place(1), Urgency.URGENT, 0)
    link.ask(place(2), Urgency.DEMAND, 0)
    assert read_all(link, STALE_TICKS + 1) == [2]
    assert read_all(link, STALE_TICKS + 2) == []


def test_a_slow_link_takes_several_ticks_for_one_chunk():
    """Half a chunk a tick: a read begins every other tick."""
    link = Link(LinkSpeed(chunks_per_tick=0.5, latency_ticks=1))
    for block in range(3):
        link.ask(place(block), Urgency.DEMAND, 0)
    assert [len(read_all(link, tick)) for tick in range(6)] == [1, 0, 1, 0, 1, 0]
