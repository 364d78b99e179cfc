"""The row path's half of the session: what changed, what is owed, and what becomes of it. No socket, no clock."""

import os
import struct

import pytest

from flexkv_py.client.requests import report_of
from flexkv_py.client.rows import PAGES_PENDING_MAX, REPORTS_UNSENT_MAX, AttachedRequest
from flexkv_py.errors import ErrorCode
from flexkv_py.wire import messages
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import REPORT_PAGES_MAX, Ack, Attach, Attached, Detach, LetGo, MapArena, Pages, Report

from .test_session import FakeLink, refused

GRANT = struct.pack("<3I", 0, 1, 2)


@pytest.fixture
def link() -> FakeLink:
    link = FakeLink()
    link.open()
    return link


def attach(link: FakeLink, request: int = 7) -> AttachedRequest:
    session = link.session
    return session.rows.open(request, session.life, session.greeted.session)


def owed(link: FakeLink) -> list[messages.ClientMessage]:
    """What goes out by itself now."""
    return link.arrived(link.session.posts())


def test_changes_are_taken_in_order_and_up_to_a_version(link: FakeLink) -> None:
    """A rank takes what its peers have seen too, and the rest later; nothing twice."""
    row = attach(link)
    link.say(*(Pages(0, 7, version, GRANT) for version in (1, 2, 3)))
    assert [pages.version for pages in link.session.rows.take(row, 2)] == [1, 2]
    assert [pages.version for pages in link.session.rows.take(row)] == [3]
    assert link.session.rows.take(row) == []
    assert row.taken == 3


def test_changes_of_all_requests_come_together(link: FakeLink) -> None:
    """One look serves an engine with many requests."""
    attach(link, 7)
    attach(link, 8)
    link.say(Pages(0, 8, 1, GRANT), Pages(0, 7, 1, GRANT), Pages(0, 8, 2))
    assert [(pages.request, pages.version) for pages in link.session.rows.take_all()] == [(8, 1), (8, 2), (7, 1)]
    assert link.session.rows.take_all() == []


def test_only_the_newest_ack_goes_out_and_only_once(link: FakeLink) -> None:
    """Acknowledging each version costs one message; repeating one costs none; one never taken is refused."""
    row = attach(link)
    link.say(*(Pages(0, 7, version) for version in (1, 2, 3)))
    rows = link.session.rows
    with refused(ErrorCode.BAD_ARGUMENT):
        rows.acknowledge(row, 1)
    rows.take(row, 2)
    for version in (1, 2, 1, 2):
        rows.acknowledge(row, version)
    [ack] = owed(link)
    assert (type(ack), ack.request, ack.version) == (Ack, 7, 2)
    rows.acknowledge(row, 2)
    assert not link.session.owing


def test_a_refusal_that_nobody_waits_for_is_told_at_the_next_look(link: FakeLink) -> None:
    """An ack or report that the daemon refuses is no secret: the next look at page changes raises it, once.

    Whoever waits for changes looks at once.
    """
    attach(link)
    link.session.rows.report(Report(0, GRANT))
    [report] = owed(link)
    waiting = link.session.await_news()
    link.say(messages.Failed(report.id, ErrorCode.BAD_ARGUMENT.value, "no such block"))
    assert waiting.ended
    with refused(ErrorCode.BAD_ARGUMENT):
        link.session.rows.take_all()
    assert link.session.rows.take_all() == []


def test_changes_of_a_detached_request_are_dropped(link: FakeLink) -> None:
    """What was on its way when a request was detached concerns nobody, and its number can be used again."""
    link.session.rows.forget(attach(link))
    link.say(Pages(0, 7, 1, GRANT))
    assert link.session.rows.take_all() == []
    assert attach(link).newest == 0


def test_a_number_is_used_once_at_a_time(link: FakeLink) -> None:
    """Two running requests with one number would read each other's rows."""
    attach(link)
    for number in (7, -1, 1 << 32, "7"):
        with refused(ErrorCode.BAD_ARGUMENT):
            attach(link, number)  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", [Pages(0, 7, 0), Pages(0, 7, 1, GRANT[1:]), Pages(0, 7, 1, b"", GRANT)])
def test_a_change_that_makes_no_sense_ends_the_connection(link: FakeLink, pages: Pages) -> None:
    """A version that does not grow, or half an entry: this is no daemon of ours."""
    attach(link)
    with refused(ErrorCode.BAD_MESSAGE):
        link.say(pages)


def test_changes_that_nobody_takes_are_bounded(link: FakeLink) -> None:
    """An engine that never looks loses its connection, not its memory."""
    attach(link)
    link.say(*(Pages(0, 7, version) for version in range(1, PAGES_PENDING_MAX + 1)))
    with refused(ErrorCode.LIMIT_EXCEEDED):
        link.say(Pages(0, 7, PAGES_PENDING_MAX + 1))


def test_reports_that_find_no_room_are_bounded(link: FakeLink) -> None:
    """The oldest report goes first, and is counted."""
    for count in range(REPORTS_UNSENT_MAX + 2):
        link.session.rows.report(Report(0, struct.pack("<4I", 7, 0, 0, count)))
    assert [struct.unpack("<4I", report.entries)[3] for report in owed(link)] == [2, 3, 4, 5]
    assert link.session.rows.reports_dropped == 2


def test_of_a_report_too_long_the_largest_counts_go() -> None:
    """4,096 entries are the limit, and what was selected most is what matters."""
    counts = [*range(REPORT_PAGES_MAX), 9_000, 8_000]
    report = report_of(b"".join(struct.pack("<4I", 7, 0, at, count) for at, count in enumerate(counts)), b"", b"", b"")
    kept = [entry[3] for entry in struct.iter_unpack("<4I", report.entries)]
    assert kept == sorted(counts, reverse=True)[:REPORT_PAGES_MAX]
    for torn in (b"x", "text"):
        with refused(ErrorCode.BAD_ARGUMENT):
            report_of(torn, b"", b"", b"")  # type: ignore[arg-type]
    with refused(ErrorCode.LIMIT_EXCEEDED):
        report_of(b"", bytes(12 * (REPORT_PAGES_MAX + 1)), b"", b"")


def test_a_lost_request_says_why(link: FakeLink) -> None:
    """What the daemon said before it closed the connection is what every call on the request raises."""
    row = attach(link)
    link.say(messages.Failed(0, ErrorCode.ACK_OVERDUE.value, "version 3 was not acknowledged in time"))
    link.session.lose("it closed the connection")
    with refused(ErrorCode.ACK_OVERDUE) as refusal:
        link.session.rows.take(row)
    assert "version 3" in refusal.value.message


def test_a_lost_session_is_let_go_of_when_its_last_request_is(link: FakeLink) -> None:
    """The same daemon hears after a reconnect that nothing is read for the old session any more, and not before."""
    first, second = attach(link, 1), attach(link, 2)
    link.session.lose("it closed the connection")
    link.session.rows.forget(first)
    link.open()
    assert not link.session.owing
    link.session.rows.forget(second)
    [let_go] = owed(link)
    assert (type(let_go), let_go.session) == (LetGo, 1)


def test_nothing_is_let_go_of_in_another_life_of_the_daemon(link: FakeLink) -> None:
    """A restarted daemon knows no session of before, and might have given its number to somebody else."""
    row = attach(link)
    link.session.lose("it was killed")
    link.open(boot=b"second")
    link.session.rows.forget(row)
    assert not link.session.owing


def test_nothing_goes_out_before_the_greeting(link: FakeLink) -> None:
    """What is owed from before a loss waits until the new connection has been greeted."""
    row = attach(link)
    link.session.lose("it closed the connection")
    link.session.rows.forget(row)
    assert not link.session.owing
    link.open()
    assert link.session.owing


def test_an_attach_answered_too_late_is_detached(link: FakeLink) -> None:
    """Nobody reads what a call attached that had given up; an extension that comes late is counted instead."""
    call = link.session.start(Attach(0, 7, bytes(16)), Attached)
    link.session.abandon(call)
    link.say(Attached(call.id, 7, 0, 1))
    [detach] = owed(link)
    assert (type(detach), detach.request) == (Detach, 7)
    row = attach(link, 8)
    call = link.session.start(Attach(0, 8, bytes(16), 1), Attached)
    link.session.abandon(call)
    link.say(Attached(call.id, 8, 0, 2))
    assert row.block_count == 2
    assert owed(link) == []


def test_descriptors_that_come_too_late_are_closed(link: FakeLink) -> None:
    """A reply that nobody waits for leaks no descriptor, whether it comes or its connection goes."""
    call = link.session.start(MapArena(0), messages.Segments)
    link.session.abandon(call)
    late, unclaimed = os.memfd_create("late"), os.memfd_create("unclaimed")
    link.session.receive(encode(messages.Segments(call.id, 0, 1, 1, 4096, 4096, False)), [late, unclaimed])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(late)
    link.session.lose("it closed the connection")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(unclaimed)
