"""The sans-IO session: two ends joined by a fake link, no socket, no clock, no thread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.client.calls import BACKOFF_S_MAX, BACKOFF_S_MIN, Backoff, Handle, Registration
from flexkv_py.client.requests import answers_wait
from flexkv_py.client.session import DAEMON_MESSAGES_MAX, UNDO_MESSAGES_MAX, Session
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import namespace_digest
from flexkv_py.wire import codec, messages
from flexkv_py.wire.framing import FrameDecoder

from .conftest import GEOMETRY

NAMESPACE = namespace_digest(GEOMETRY.fingerprint, "default", 0)


class FakeLink:
    """Both ends of a connection: what the session sends arrives here, what is said here arrives there."""

    def __init__(self) -> None:
        self.session = Session(messages.Hello(0, messages.PROTOCOL_VERSION, GEOMETRY))
        self.far = FrameDecoder()

    def open(self, boot: bytes = b"first") -> None:
        """A new connection, greeted."""
        self.far = FrameDecoder()
        call = self.session.greet()
        [hello] = self.arrived(call.frame)
        self.say(messages.Welcome(hello.id, 1, 1, boot, NAMESPACE, GEOMETRY.chunk_count, 9, 9, 9))
        self.session.accept(call.result())

    def arrived(self, frame: bytearray) -> list[messages.ClientMessage]:
        return [codec.decode_client(body) for body in self.far.feed(frame)]

    def next_request(self) -> list[messages.ClientMessage]:
        """What is sent from now on with the next request."""
        self.far = FrameDecoder()
        frame = self.session.start(messages.Ping(0), messages.Done).frame
        return self.arrived(self.session.posts() + frame)

    def say(self, *said: messages.DaemonMessage, step: int = 1 << 20) -> list[int]:
        """Ids of the calls that ended when these messages arrived, `step` bytes at a time."""
        stream = b"".join(bytes(codec.encode(message)) for message in said)
        pieces = [stream[start : start + step] for start in range(0, len(stream), step)]
        return [call.id for piece in pieces for call in self.session.receive(piece)]


@pytest.fixture
def link():
    link = FakeLink()
    link.open()
    return link


def refused(code: ErrorCode):
    return pytest.raises(FlexKVError, match=rf"^\[{code.value}\]")


@given(st.permutations(range(6)), st.integers(1, 40))
def test_replies_in_any_order_and_any_pieces_end_their_own_calls(order, step):
    """Each call gets the reply with its id, whatever the order and however the bytes are cut."""
    link = FakeLink()
    link.open()
    calls = [link.session.start(messages.Match(0, bytes(16 * number)), messages.Matched) for number in range(6)]
    replies = [messages.Matched(calls[number].id, number, []) for number in order]
    assert link.say(*replies, step=step) == [calls[number].id for number in order]
    assert [call.result().length for call in calls] == list(range(6))


def test_a_refusal_ends_its_call_with_its_code(link):
    """A Failed reply is raised as the coded error it carries, retry time included; others are untouched."""
    refused_call = link.session.start(messages.Ping(0), messages.Done)
    other = link.session.start(messages.Ping(0), messages.Done)
    link.say(messages.Failed(refused_call.id, "throttled", "later", 1500))
    with refused(ErrorCode.THROTTLED) as refusal:
        refused_call.result()
    assert refusal.value.retry_after_s == 1.5
    assert not other.ended


def test_an_unknown_code_reads_as_internal_and_a_wrong_reply_as_bad_message(link):
    """A newer daemon's words end in a coded error, not in a crash."""
    first = link.session.start(messages.Ping(0), messages.Done)
    second = link.session.start(messages.Ping(0), messages.Done)
    link.say(messages.Failed(first.id, "code of the future", "?"), messages.Opened(second.id, 5))
    with refused(ErrorCode.INTERNAL):
        first.result()
    with refused(ErrorCode.BAD_MESSAGE):
        second.result()


def test_a_late_ticket_is_cancelled_with_the_next_request(link):
    """What a late reply opened goes back to the daemon in front of the next request, once."""
    late = link.session.start(messages.Prefetch(0, bytes(16)), messages.Opened)
    leased = link.session.start(messages.Match(0, bytes(16), [], 5), messages.Matched)
    link.session.abandon(late)
    link.session.abandon(leased)
    assert link.say(messages.Opened(late.id, 77), messages.Matched(leased.id, 1, [], 88)) == []
    ping, cancel, release = sorted(link.next_request(), key=lambda message: message.id)
    assert (type(cancel), cancel.ticket) == (messages.Cancel, 77)
    assert (type(release), release.lease) == (messages.Release, 88)
    assert link.say(messages.Done(cancel.id), messages.Done(release.id), messages.Done(ping.id)) == [ping.id]
    assert len(link.next_request()) == 1


def test_what_goes_back_is_bounded(link):
    """However many replies come late, only so many cancels are kept."""
    for _ in range(UNDO_MESSAGES_MAX + 5):
        call = link.session.start(messages.Prefetch(0, b""), messages.Opened)
        link.session.abandon(call)
    link.say(*(messages.Opened(call.id, ticket) for ticket in range(UNDO_MESSAGES_MAX + 5)))
    assert len(link.next_request()) == UNDO_MESSAGES_MAX + 1


def test_a_reply_never_asked_for_is_nonsense(link):
    """An id that was never given out means that the other end is lost in the stream."""
    with refused(ErrorCode.BAD_MESSAGE):
        link.say(messages.Done(1_000_000))
    with refused(ErrorCode.BAD_MESSAGE):
        link.say(messages.Done(0))


def test_a_loss_ends_calls_and_all_that_was_opened(link):
    """Outstanding calls fail, tickets and leases of the old life are void, and the next life believes none of them."""
    handle = Handle(5, link.session.life)
    calls = [link.session.start(messages.Ping(0), messages.Done) for _ in range(3)]
    link.session.lose("it died")
    for call in calls:
        with refused(ErrorCode.DAEMON_LOST) as refusal:
            call.result()
        assert "it died" in refusal.value.message
    link.open(boot=b"second")
    with refused(ErrorCode.DAEMON_LOST):
        link.session.start(messages.Wait(0, 5), messages.Progress, handle)
    assert link.session.greeted.boot == b"second"
    assert link.say(messages.Done(calls[0].id)) == []


def test_each_call_raises_an_error_of_its_own(link):
    """Threads that fail by one loss do not share an exception, whose traceback would mix."""
    calls = [link.session.start(messages.Ping(0), messages.Done) for _ in range(2)]
    link.session.lose("it died")
    errors = []
    for call in calls:
        with refused(ErrorCode.DAEMON_LOST) as refusal:
            call.result()
        errors.append(refusal.value)
    assert errors[0] is not errors[1]


def test_a_half_received_reply_dies_with_its_connection(link):
    """Bytes of an old connection never complete a message of the next."""
    call = link.session.start(messages.Ping(0), messages.Done)
    link.session.receive(bytes(codec.encode(messages.Done(call.id)))[:5])
    link.session.lose("torn")
    link.open()
    fresh = link.session.start(messages.Ping(0), messages.Done)
    assert link.say(messages.Done(fresh.id)) == [fresh.id]


def test_a_memory_registered_in_a_lost_life_is_not_kept(link):
    """A registration whose connection is gone is refused; one of this life is kept and known by its name."""
    registration = Registration(-1, messages.RegisterMemory(0, 1, 1, 1), Handle(9, link.session.life))
    with refused(ErrorCode.UNKNOWN_MEMORY):
        link.session.known(registration)
    link.session.adopt(registration)
    assert link.session.known(registration).id == 9
    link.session.lose("it died")
    with refused(ErrorCode.DAEMON_LOST):
        link.session.adopt(registration)


def test_own_messages_are_queued_in_order_and_bounded(link):
    """The newest so many are kept for poll, the rest are counted."""
    link.say(*(messages.GoingAway(0, str(number), 0) for number in range(DAEMON_MESSAGES_MAX + 3)))
    taken = link.session.take_daemon_messages()
    assert (len(taken), taken[0].reason) == (DAEMON_MESSAGES_MAX, "3")
    assert link.session.daemon_messages_dropped == 3
    assert link.session.take_daemon_messages() == []


def test_a_welcome_that_does_not_fit_is_refused(link):
    """Another version, another way to cut blocks or another namespace than before is an error, not a surprise later."""
    fits = link.session.greeted
    for wrong, code in (
        ({"version": 2}, ErrorCode.VERSION_MISMATCH),
        ({"chunk_count": 99}, ErrorCode.GEOMETRY_MISMATCH),
        ({"namespace": bytes(32)}, ErrorCode.GEOMETRY_MISMATCH),
        ({"namespace": b"short"}, ErrorCode.GEOMETRY_MISMATCH),
    ):
        fields = {name: getattr(fits, name) for name in fits.__struct_fields__} | wrong
        with refused(code):
            link.session.accept(messages.Welcome(**fields))


def test_back_off_doubles_to_its_limit_and_ends_with_a_success():
    """Between attempts pass 50 ms, then twice as long each time up to 2 s; a success clears it."""
    backoff, now_s, waits = Backoff(), 100.0, []
    for _ in range(8):
        backoff.check(now_s)
        backoff.failed(now_s, FlexKVError(ErrorCode.DAEMON_LOST, "no socket"))
        waits.append(backoff.retry_at_s - now_s)
        with pytest.raises(FlexKVError, match="no socket"):
            backoff.check(backoff.retry_at_s - 0.001)
        now_s = backoff.retry_at_s
    assert waits[0] == pytest.approx(BACKOFF_S_MIN)
    assert waits[1] == pytest.approx(2 * BACKOFF_S_MIN)
    assert waits[-1] == pytest.approx(BACKOFF_S_MAX)
    backoff.succeeded()
    backoff.check(now_s)


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (ErrorCode.BAD_GEOMETRY, ErrorCode.BAD_GEOMETRY),
        (ErrorCode.UNAUTHENTICATED, ErrorCode.UNAUTHENTICATED),
        (ErrorCode.LIMIT_EXCEEDED, ErrorCode.LIMIT_EXCEEDED),
        (ErrorCode.DRAINING, ErrorCode.DAEMON_LOST),
        (ErrorCode.DEADLINE_EXCEEDED, ErrorCode.DAEMON_LOST),
    ],
)
def test_a_refusal_keeps_its_code_through_the_back_off(met, told):
    """A caller who comes too early to try hears the refusal itself; what passes by itself reads as a loss."""
    backoff = Backoff()
    backoff.failed(100.0, FlexKVError(met, "as it was said"))
    with refused(told) as refusal:
        backoff.check(100.0)
    assert "as it was said" in refusal.value.message


@pytest.mark.parametrize("chunks", range(5))
def test_a_wait_for_a_chunk_is_answered_by_that_many_chunks(chunks):
    """Chunks are counted from the first on: a wait for chunk c needs c + 1 of them, or the ticket's end."""
    progress = messages.Progress(1, 1, done=False, chunks=chunks)
    assert [answers_wait(progress, chunk) for chunk in range(4)] == [chunk < chunks for chunk in range(4)]
    assert not answers_wait(progress, None)
    assert answers_wait(messages.Progress(1, 1, done=True, chunks=0), 3)
