"""The worker socket against strangers: out of order, garbage, too much, too slow; others go on unharmed."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from flexkv_py.client import Client, create_memory
from flexkv_py.core.messages import TicketKind
from flexkv_py.errors import ErrorCode
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.wire.codec import decode_daemon, encode
from flexkv_py.wire.framing import FrameDecoder
from flexkv_py.wire.messages import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    ClientMessage,
    DaemonMessage,
    Done,
    Failed,
    Hello,
    Load,
    Match,
    Ping,
    Registered,
    RegisterMemory,
    Reset,
    Save,
    Wait,
    Welcome,
)
from flexkvd.tickets import Ticket
from tests.leaks import open_files

from .conftest import GEOMETRY, PAGE_TOKENS, DaemonThread, Worker

WARM_TURNS = 100
HELLO = Hello(1, PROTOCOL_VERSION, GEOMETRY)


class Stranger:
    """A bare socket that says what the test wants."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(str(path))
        self._frames = FrameDecoder()
        self._replies: list[DaemonMessage] = []

    def say(self, *messages: ClientMessage) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def say_raw(self, body: bytes) -> None:
        self.socket.sendall(len(body).to_bytes(4, "little") + body)

    def hear(self) -> DaemonMessage | None:
        """The next message; None at the end of the stream."""
        while not self._replies:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.feed(data)
        return self._replies.pop(0)

    def feed(self, data: bytes) -> None:
        """Take what came, by whatever call, for `hear`."""
        self._replies += [decode_daemon(body) for body in self._frames.feed(data)]

    def hears_code(self, request: int) -> str:
        reply = self.hear()
        assert isinstance(reply, Failed)
        assert reply.id == request
        assert len(reply.message) > 20
        return reply.code

    def greet(self) -> "Stranger":
        self.say(HELLO)
        assert isinstance(self.hear(), Welcome)
        return self


@pytest.fixture
def stranger(daemon: DaemonThread) -> Iterator[Callable[[], Stranger]]:
    made: list[Stranger] = []

    def stranger() -> Stranger:
        made.append(Stranger(daemon.socket))
        return made[-1]

    yield stranger
    for each in made:
        each.socket.close()


def test_every_request_gets_its_one_reply_in_a_pipeline(stranger: Callable[[], Stranger]) -> None:
    """A thousand requests sent in one go are answered in order, each once."""
    client = stranger().greet()
    client.say(*(Ping(number) for number in range(2, 1002)))
    assert [reply.id for reply in (client.hear() for _ in range(1000)) if isinstance(reply, Done)] == [*range(2, 1002)]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([Ping(7)], ErrorCode.NOT_GREETED),
        ([Hello(7, PROTOCOL_VERSION + 1, GEOMETRY)], ErrorCode.VERSION_MISMATCH),
        ([Hello(7, PROTOCOL_VERSION, GEOMETRY, role="king")], ErrorCode.BAD_ARGUMENT),
        ([Hello(7, PROTOCOL_VERSION, GEOMETRY, shard=-1)], ErrorCode.BAD_ARGUMENT),
        ([Hello(7, PROTOCOL_VERSION, GEOMETRY, epoch=-1)], ErrorCode.BAD_ARGUMENT),
        ([Hello(7, PROTOCOL_VERSION, GEOMETRY, tenant="x" * 1000)], ErrorCode.BAD_ARGUMENT),
    ],
)
def test_a_bad_greeting_is_answered_and_ends_the_connection(
    stranger: Callable[[], Stranger], messages: list[ClientMessage], code: ErrorCode
) -> None:
    """Whoever does not say a proper hello first learns why and is disconnected."""
    client = stranger()
    client.say(*messages)
    assert client.hears_code(7) == code
    assert client.hear() is None


def test_a_second_hello_ends_the_session(stranger: Callable[[], Stranger]) -> None:
    """Hello is said once per connection."""
    client = stranger().greet()
    client.say(Hello(9, PROTOCOL_VERSION, GEOMETRY))
    assert client.hears_code(9) == ErrorCode.BAD_MESSAGE
    assert client.hear() is None


def test_a_geometry_that_fits_no_segment_is_refused(stranger: Callable[[], Stranger]) -> None:
    """Chunks larger than a segment of the arena could never be stored."""
    client = stranger()
    wide = Geometry((Plane("kv", (0,), 1 << 20),), tokens_per_block=16)
    client.say(Hello(3, PROTOCOL_VERSION, wide))
    assert client.hears_code(3) == ErrorCode.BAD_GEOMETRY


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Match(5, b"x" * 17), ErrorCode.BAD_KEY),
        (Match(5, b""), ErrorCode.BAD_ARGUMENT),
        (Match(5, bytes(16 * 40_000)), ErrorCode.LIMIT_EXCEEDED),
        (Match(5, bytes(16), hold_ms=-1), ErrorCode.BAD_ARGUMENT),
        (Wait(5, 99), ErrorCode.UNKNOWN_TICKET),
        (Load(5, bytes(16), bytes(8), 99), ErrorCode.UNKNOWN_MEMORY),
        (Save(5, bytes(32), bytes(8), 1), ErrorCode.DUPLICATE_KEY),
        (RegisterMemory(5, 4096, 1, PAGE_TOKENS), ErrorCode.BAD_MEMORY),
    ],
)
def test_a_wrong_request_is_answered_with_its_code(
    stranger: Callable[[], Stranger], message: ClientMessage, code: ErrorCode
) -> None:
    """A well-formed message that asks for nonsense gets a coded error; the session lives."""
    client = stranger().greet()
    client.say(message, Ping(6))
    assert client.hears_code(5) == code
    assert isinstance(client.hear(), Done)


def test_garbage_ends_only_its_own_session(
    daemon: DaemonThread, connect: Callable[..., Client], stranger: Callable[[], Stranger]
) -> None:
    """Hundreds of strangers saying random or damaged things leave a working client at work, and no memory behind."""
    chance = Random(7)
    worker = Worker(connect())
    keys = worker.client.keys(list(range(128)))
    worker.client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=5)
    frames = [
        bytes(encode(message)) for message in (HELLO, Ping(2), Match(3, bytes(64)), Load(4, bytes(16), bytes(8), 1))
    ]
    rss = 0
    for turn in range(500):
        client = Stranger(daemon.socket)
        with suppress(OSError):
            if chance.random() < 0.5:
                client.greet()
            data = bytearray(b"".join(chance.choices(frames, k=4)))
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            client.socket.sendall(data[: chance.randrange(1, len(data))])
        client.socket.close()
        if turn == WARM_TURNS:
            rss = psutil.Process().memory_info().rss
        if turn % 50 == 0:
            loaded = worker.client.load(keys, worker.pages(20, 8), worker.memory).wait(timeout_s=5)
            assert loaded.length == 8
    end = time.monotonic() + 5
    while daemon.call(lambda: daemon.parts.server.connections) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert daemon.call(lambda: daemon.parts.server.connections) == 1
    assert daemon.call(lambda: len(daemon.parts.sessions.by_number)) == 1
    assert psutil.Process().memory_info().rss - rss < 8 << 20  # 20 KiB kept of each would be seen


def test_an_announced_giant_is_refused_before_it_is_kept(stranger: Callable[[], Stranger]) -> None:
    """A length over the limit is refused on sight of the length."""
    client = stranger().greet()
    client.socket.sendall((MESSAGE_BYTES_MAX + 1).to_bytes(4, "little"))
    assert client.hears_code(0) == ErrorCode.MESSAGE_TOO_LARGE
    assert client.hear() is None


def test_a_client_that_does_not_read_is_closed(start: Callable[..., DaemonThread]) -> None:
    """Unread replies are kept up to the limit, then the session ends; nobody else is delayed and memory stays flat."""
    daemon = start(limits={"write_buffer_bytes_max": "64KiB"})
    rss = psutil.Process().memory_info().rss
    with Client(daemon.socket, GEOMETRY) as other:
        client = Stranger(daemon.socket).greet()
        client.socket.settimeout(0.2)
        with suppress(OSError):
            for _ in range(2000):
                client.say(*(Ping(number) for number in range(200)))
        other.ping()
        end = time.monotonic() + 5
        while daemon.call(lambda: daemon.parts.server.connections) > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert daemon.call(lambda: daemon.parts.server.connections) == 1
        client.socket.close()
    assert psutil.Process().memory_info().rss - rss < 32 << 20


def test_who_never_says_hello_is_closed(start: Callable[..., DaemonThread]) -> None:
    """A silent connection is told and closed after its time."""
    daemon = start(limits={"hello_s_max": 0.05})
    client = Stranger(daemon.socket)
    assert client.hears_code(0) == ErrorCode.NOT_GREETED
    assert client.hear() is None
    client.socket.close()


def test_more_sessions_than_configured_are_refused(start: Callable[..., DaemonThread]) -> None:
    """The session over the limit is refused with the limit's name, the others stay."""
    daemon = start(limits={"sessions_max": 2})
    clients = [Stranger(daemon.socket).greet() for _ in range(2)]
    third = Stranger(daemon.socket)
    third.say(HELLO)
    assert third.hears_code(1) == ErrorCode.LIMIT_EXCEEDED
    for client in (*clients, third):
        client.socket.close()


def test_waiting_requests_are_bounded(start: Callable[..., DaemonThread]) -> None:
    """A client that piles up waits is told to read first; its session lives."""
    daemon = start(limits={"requests_per_session_max": 4}, dram={"bytes": "4MiB"})
    with Client(daemon.socket, GEOMETRY) as owner:
        client = Stranger(daemon.socket).greet()
        ticket = daemon.call(lambda: _stuck_ticket(daemon, session=2))
        client.say(*(Wait(number, ticket, timeout_ms=60_000) for number in range(2, 7)))
        assert client.hears_code(6) == ErrorCode.LIMIT_EXCEEDED
        owner.ping()
        client.socket.close()


def test_waiting_resets_are_bounded_too(start: Callable[..., DaemonThread]) -> None:
    """Resets of a namespace that takes its time are refused beyond the limit; each of the others is answered once."""
    daemon = start(limits={"requests_per_session_max": 1})
    with Client(daemon.socket, GEOMETRY) as owner:
        worker = Worker(owner, block_count=1024)
        keys = owner.keys(list(range(16 * 1024)))
        assert owner.save(keys, worker.pages(0, 1024), worker.memory).wait(timeout_s=10).length == 1024
        client = Stranger(daemon.socket).greet()
        client.say(*(Reset(number, 0) for number in range(2, 12)))
        heard = [client.hear() for _ in range(10)]
        assert {type(reply) for reply in heard} == {Done, Failed}
        assert sorted(reply.id for reply in heard if reply is not None) == list(range(2, 12))
        refused = [reply for reply in heard if isinstance(reply, Failed)]
        assert {reply.code for reply in refused} == {ErrorCode.LIMIT_EXCEEDED}
        client.say(Reset(12, 0), Ping(13))
        assert {type(client.hear()), type(client.hear())} == {Done}
        client.socket.close()


def _stuck_ticket(daemon: DaemonThread, session: int) -> int:
    """A ticket the planner knows nothing of, so that it never ends."""
    found = daemon.parts.sessions.by_number[session]
    number = daemon.parts.sessions.next_ticket()
    found.tickets[number] = Ticket(number, session, TicketKind.PREFETCH, 1, GEOMETRY.chunk_count, 0)
    return number


def test_peers_are_checked(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """With a token configured, a client without it is refused and one with it is served."""
    (tmp_path / "token").write_text("sesame\n")
    daemon = start(daemon={"token_file": str(tmp_path / "token")})
    refused = Stranger(daemon.socket)
    refused.say(HELLO)
    assert refused.hears_code(1) == ErrorCode.UNAUTHENTICATED
    assert refused.hear() is None
    refused.socket.close()
    with Client(daemon.socket, GEOMETRY, token="sesame") as client:
        client.ping()


def test_a_listed_user_needs_no_token(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Uids in the configuration are let in by what the kernel says of the peer."""
    (tmp_path / "token").write_text("sesame\n")
    daemon = start(daemon={"token_file": str(tmp_path / "token"), "uids": [os.getuid()]})
    with Client(daemon.socket, GEOMETRY) as client:
        client.ping()


def test_unsuitable_memory_is_refused(tmp_path: Path, stranger: Callable[[], Stranger]) -> None:
    """An unsealed memfd, a regular file, a short memfd and a read-only one are refused; the session lives."""
    length = 4 * GEOMETRY.block_bytes
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, length)
    regular = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(regular, length)
    short = create_memory(length - 4096)
    good = create_memory(length)
    read_only = os.open(f"/proc/self/fd/{good}", os.O_RDONLY)
    client = stranger().greet()
    message = RegisterMemory(8, length, 4, GEOMETRY.tokens_per_block, [], "window")
    before = open_files()
    for descriptor in (unsealed, regular, short, read_only):
        socket.send_fds(client.socket, [encode(message)], [descriptor])
        assert client.hears_code(8) == ErrorCode.BAD_MEMORY
    socket.send_fds(client.socket, [encode(message)], [good])
    assert isinstance(client.hear(), Registered)
    assert len(open_files() - before) == 1  # the mapping keeps its own
    for descriptor in (unsealed, regular, short, good, read_only):
        os.close(descriptor)


def test_descriptors_nobody_asked_for_are_closed(stranger: Callable[[], Stranger]) -> None:
    """Descriptors beside other messages are dropped; too many at once end the session."""
    client = stranger().greet()
    before = open_files()
    for _ in range(10):
        socket.send_fds(client.socket, [encode(Ping(4))], [0, 0])
        assert isinstance(client.hear(), Done)
    assert not open_files() - before
    socket.send_fds(client.socket, [encode(Ping(4))[:6]], [0] * 30)
    assert client.hears_code(0) == ErrorCode.LIMIT_EXCEEDED
    assert client.hear() is None
