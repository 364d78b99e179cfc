"""Client protocol state without I/O: what a client knows of its daemon over all connections it makes.

Owns request ids, outstanding calls, which tickets, leases and memories are still believed, the queue of
what the daemon says of itself, the back-off between connections, and what becomes of all that when a
connection is lost. It reads no clock and no socket: `client.link` (threads) and `client.aio` (asyncio)
feed it bytes, and lock it where threads share it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from flexkv_py.client.calls import Backoff, Call, Handle, Registration, Reply, close_all, error_of
from flexkv_py.client.gates import GatedLoads, Gates
from flexkv_py.client.rows import AttachedRequest, Rows
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NAMESPACE_BYTES
from flexkv_py.wire import codec
from flexkv_py.wire.framing import FrameDecoder
from flexkv_py.wire.messages import (
    PROTOCOL_VERSION,
    Attached,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Detach,
    Done,
    Failed,
    GateArray,
    Hello,
    Load,
    Matched,
    Message,
    Opened,
    Pages,
    Release,
    ReplayRefused,
    Segments,
    Welcome,
)

DAEMON_MESSAGES_MAX = 1024
"""Messages of the daemon's own kept for `poll()`; the oldest goes first, and is counted."""

UNDO_MESSAGES_MAX = 256
"""Cancels and releases kept for the next request; beyond that the daemon's deadlines end what is left."""

POSTED_MAX = 1024
"""Messages on their way whose answer nobody waits for; of those beyond it a refusal is not noticed."""

SPONTANEOUS_TAG_MIN = 128
"""Tags from here on are the daemon's own messages, which answer nothing."""


@dataclass(slots=True)
class Session:
    """One client's view of the daemon.

    `life` counts connections: it rises at each loss, and whatever carries an older number is void.
    """

    hello: Hello
    life: int = 1
    welcome: Welcome | None = None  # the last one believed, of this life or an earlier one
    backoff: Backoff = field(default_factory=Backoff)
    registrations: list[Registration] = field(default_factory=list)  # memories to register in every life
    rows: Rows = field(default_factory=Rows)
    gated: GatedLoads = field(default_factory=GatedLoads)
    daemon_messages_dropped: int = 0
    _believed: int = 0  # the last life whose welcome was
    _last_id: int = 0
    _outstanding: dict[int, Call[Message]] = field(default_factory=dict)  # sent or about to be, not yet ended
    _frames: FrameDecoder = field(default_factory=FrameDecoder)
    _daemon_messages: deque[DaemonMessage] = field(default_factory=deque)
    _undo: list[ClientMessage] = field(default_factory=list)  # gives back what a late reply opened
    _posted: dict[int, None] = field(default_factory=dict)  # ids of messages whose reply nobody waits for
    _watching: dict[int, Call[Done]] = field(default_factory=dict)  # calls that end as soon as there is `news`
    _replays_refused: bool = False  # among the daemon's messages that nobody took yet
    _descriptors: deque[int] = field(default_factory=deque)  # received, and not yet claimed by their message
    parting: FlexKVError | None = None  # what the daemon said before it closed the connection

    # ------------------------------------------------------------- requests

    def greet(self) -> Call[Welcome]:
        """Begin a life on a new connection."""
        assert not self._outstanding
        self._frames, self._undo, self.parting = FrameDecoder(), [], None
        self._posted.clear()
        return self._start(msgspec.structs.replace(self.hello), Welcome)

    def start(self, message: ClientMessage, expect: type[Reply], about: Handle | None = None) -> Call[Reply]:
        """A request to send. `about` is the ticket, lease or memory it names. Raises DAEMON_LOST."""
        if about is not None:
            self.require(about)
        return self._start(message, expect)

    def require(self, handle: Handle) -> None:
        """Raise DAEMON_LOST unless what this names is of the present life."""
        if handle.life != self.life:
            raise FlexKVError(
                ErrorCode.DAEMON_LOST,
                "the connection this was opened on is lost, and with it every ticket and lease: "
                "treat it as failed and start it again",
            )

    def abandon(self, call: Call[Reply]) -> None:
        """Nobody waits for this call any more. Its reply, should it come, is dropped."""
        self._outstanding.pop(call.id, None)
        self._watching.pop(call.id, None)

    @property
    def news(self) -> bool:
        """Whether whoever waits for pages has something to look at: changes, or that what was asked will not come."""
        return self.rows.eventful or self._replays_refused

    def await_news(self) -> Call[Done]:
        """A call without a message: it ends as soon as there is `news`, or with the connection."""
        self._last_id += 1
        call = Call(self._last_id, Done, bytearray())
        self._outstanding[call.id] = cast(Call[Message], call)
        self._watching[call.id] = call
        return call

    @property
    def owing(self) -> bool:
        """Whether `posts` would say anything. Nothing goes out before a life's welcome is believed."""
        return self._believed == self.life and (bool(self._undo) or self.rows.owing)

    def posts(self) -> bytearray:
        """Frames of what is owed to the daemon and waited for by nobody; the caller sends them first of all."""
        undo, self._undo = self._undo, []
        due = self.rows.take_due()
        for message in (*undo, *due):
            self._last_id += 1
            message.id = self._last_id
        for message in due[: POSTED_MAX - len(self._posted)]:
            self._posted[message.id] = None
        return bytearray().join(map(codec.encode, (*undo, *due)))

    def _start(self, message: ClientMessage, expect: type[Reply]) -> Call[Reply]:
        self._last_id += 1
        message.id = self._last_id
        try:
            frame = codec.encode(message)
        except (OverflowError, TypeError, ValueError) as error:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"{type(message).__name__} cannot be sent ({error}): give numbers below 2**64 and words as str",
            ) from None
        call = Call(message.id, expect, frame)
        self._outstanding[call.id] = cast(Call[Message], call)  # kept as a call of any reply
        return call

    def check_ordered(self) -> None:
        """Raise UNSUPPORTED where the daemon would ignore gates and events, and leave who waits for them waiting."""
        if not self.greeted.ordered_copies:
            raise FlexKVError(
                ErrorCode.UNSUPPORTED,
                "this daemon is older than gates of loads and events of saves: install the same version on both ends, "
                "or wait for tickets and synchronise the stream instead",
            )

    def start_gated(
        self, gates: Gates, end_s: float, build: Callable[[GateArray], Load], about: Handle
    ) -> Call[Opened]:
        """`start` for a load that takes these gates and is over at `end_s`. Raises DAEMON_LOST, UNSUPPORTED,
        BAD_ARGUMENT.
        """
        self.require(about)
        self.check_ordered()
        chunk_count = self.hello.geometry.chunk_count
        if gates.chunk_count != chunk_count:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"{gates.chunk_count} gates for blocks of {chunk_count} chunks: make one for each chunk",
            )
        array = self.gated.begin(gates, end_s)
        try:
            return self._start(build(array), Opened)
        except FlexKVError:
            self.gated.give_up(gates, gates.value)
            raise

    # -------------------------------------------------------------- replies

    def receive(self, data: bytes | memoryview, descriptors: Sequence[int] = ()) -> list[Call[Message]]:
        """Take what came from the socket; returns the calls that ended by it.

        The descriptors are this session's to close, until a call has them. Raises FlexKVError when this is no
        daemon talking: then the connection must be dropped (`lose`).
        """
        self._descriptors.extend(descriptors)
        ended = []
        for body in self._frames.feed(data):
            message = codec.decode_daemon(body)
            call = self._outstanding.pop(message.id, None)
            if call is not None:
                self._end(call, message)
                ended.append(call)
            else:
                self._unasked(message)
        if self._watching and self.news:
            watching, self._watching = self._watching, {}
            for watched in watching.values():
                ended.append(self._outstanding.pop(watched.id))
                watched.succeed(Done(watched.id))
        return ended

    def _end(self, call: Call[Message], message: DaemonMessage) -> None:
        if isinstance(message, Segments):
            call.descriptors = self._claim(message.count)
        if type(message) is call.expect:
            call.succeed(message)
        elif isinstance(message, Failed):
            call.fail(error_of(message))
        else:
            call.fail(
                FlexKVError(
                    ErrorCode.BAD_MESSAGE,
                    f"the daemon answered {type(message).__name__} where {call.expect.__name__} belongs: "
                    "client and daemon differ in version, install the same on both ends",
                )
            )

    def _unasked(self, message: DaemonMessage) -> None:
        """Of its own accord, too late, a farewell, or nonsense."""
        if message.id == 0 and isinstance(message, Failed):
            self.parting = error_of(message)
        elif message.id == 0 and isinstance(message, Pages):
            self.rows.arrived(message)
        elif message.id in self._posted:
            self._answered(message)
        elif message.id == 0 and _tag(message) >= SPONTANEOUS_TAG_MIN:
            self._queue(message)
        elif 0 < message.id <= self._last_id:
            self._give_back(message)
        else:
            raise FlexKVError(
                ErrorCode.BAD_MESSAGE,
                f"the daemon answered request {message.id}, which was never asked: the connection is dropped",
            )

    def _queue(self, message: DaemonMessage) -> None:
        if len(self._daemon_messages) >= DAEMON_MESSAGES_MAX:
            self._daemon_messages.popleft()
            self.daemon_messages_dropped += 1
        self._daemon_messages.append(message)
        self._replays_refused |= isinstance(message, ReplayRefused)

    def _answered(self, message: DaemonMessage) -> None:
        """What nobody waits for was done, or was refused: the next look at page changes says so."""
        del self._posted[message.id]
        if isinstance(message, Failed):
            self.rows.failure = self.rows.failure or error_of(message)

    def _give_back(self, late: DaemonMessage) -> None:
        """Nobody will ever wait for what a late reply opened, so it must not go on in the daemon."""
        if isinstance(late, Segments):
            close_all(self._claim(late.count))
        if len(self._undo) >= UNDO_MESSAGES_MAX:
            return
        if isinstance(late, Opened):
            self._undo.append(Cancel(0, late.ticket))
        elif isinstance(late, Matched) and late.lease:
            self._undo.append(Release(0, late.lease))
        elif isinstance(late, Attached):
            row = self.rows.attached.get(late.request)
            if row is None:
                self._undo.append(Detach(0, late.request))
            else:
                row.block_count = late.block_count  # it was extended, though the caller does not wait any more

    def give_up(self, row: AttachedRequest) -> None:
        """Attaching failed: what of it is attached already is detached with the next request."""
        if row.block_count and row.lost is None and len(self._undo) < UNDO_MESSAGES_MAX:
            self._undo.append(Detach(0, row.request))
        self.rows.forget(row)

    def _claim(self, count: int) -> list[int]:
        return [self._descriptors.popleft() for _ in range(min(count, len(self._descriptors)))]

    def take_daemon_messages(self) -> list[DaemonMessage]:
        """What the daemon said of itself since the last time, oldest first."""
        messages = list(self._daemon_messages)
        self._daemon_messages.clear()
        self._replays_refused = False
        return messages

    # ---------------------------------------------------------------- lives

    def accept(self, welcome: Welcome) -> None:
        """Believe a welcome. Raises VERSION_MISMATCH or GEOMETRY_MISMATCH."""
        if welcome.version != PROTOCOL_VERSION:
            raise FlexKVError(
                ErrorCode.VERSION_MISMATCH,
                f"the daemon speaks protocol {welcome.version}, this client {PROTOCOL_VERSION}: "
                "install the same version on both ends",
            )
        known = self.welcome.namespace if self.welcome is not None else welcome.namespace
        if len(welcome.namespace) != NAMESPACE_BYTES or welcome.namespace != known:
            raise FlexKVError(
                ErrorCode.GEOMETRY_MISMATCH,
                "the daemon names another namespace than before for this geometry, so keys made earlier would find "
                "nothing: make a new client",
            )
        if welcome.chunk_count != self.hello.geometry.chunk_count:
            raise FlexKVError(
                ErrorCode.GEOMETRY_MISMATCH,
                f"the daemon cuts a block into {welcome.chunk_count} chunks, this client into "
                f"{self.hello.geometry.chunk_count}: install the same version on both ends",
            )
        if self.welcome is not None and self.welcome.boot != welcome.boot:
            self.rows.restarted()
        self.welcome, self._believed = welcome, self.life

    @property
    def greeted(self) -> Welcome:
        """The last welcome that was believed. Raises NOT_GREETED before the first."""
        if self.welcome is None:
            raise FlexKVError(ErrorCode.NOT_GREETED, "the daemon was never reached so far: call connect() first")
        return self.welcome

    def lose(self, why: str) -> None:
        """The connection is gone: every call on it ends, and so does the life of all it opened."""
        failure = self.parting or FlexKVError(
            ErrorCode.DAEMON_LOST, f"the daemon is lost ({why}): the next call connects again by itself"
        )
        self.gated.lose()
        for call in self._outstanding.values():
            call.fail(failure)
        self._outstanding.clear()
        self._watching.clear()
        close_all(self._descriptors)
        self._descriptors.clear()
        self.rows.lose(failure)
        self.life += 1

    def known(self, registration: Registration) -> Handle:
        """What the daemon calls this memory in the present life. Raises UNKNOWN_MEMORY."""
        if registration not in self.registrations:
            raise FlexKVError(
                ErrorCode.UNKNOWN_MEMORY, "this memory is unregistered or another client's: register it here first"
            )
        return registration.handle

    def adopt(self, registration: Registration) -> None:
        """Keep a memory that was registered; it comes back in every later life. Raises DAEMON_LOST."""
        self.require(registration.handle)
        self.registrations.append(registration)


def _tag(message: DaemonMessage) -> int:
    tag = type(message).__struct_config__.tag
    assert isinstance(tag, int)
    return tag
