"""Client protocol state without I/O: what a client knows of its daemon over all connections it makes.

Owns request ids, outstanding calls, which tickets, leases and memories are still believed, the queue of
what the daemon says of itself, the back-off between connections, and what becomes of all that when a
connection is lost. It reads no clock and no socket: `client.link` (threads) and `client.aio` (asyncio)
feed it bytes, and lock it where threads share it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NAMESPACE_BYTES
from flexkv_py.wire import codec
from flexkv_py.wire.framing import FrameDecoder
from flexkv_py.wire.messages import (
    PROTOCOL_VERSION,
    Cancel,
    ClientMessage,
    DaemonMessage,
    Failed,
    Hello,
    Matched,
    Message,
    Opened,
    RegisterMemory,
    Release,
    Welcome,
)

DAEMON_MESSAGES_MAX = 1024
"""Messages of the daemon's own kept for `poll()`; the oldest goes first, and is counted."""

UNDO_MESSAGES_MAX = 256
"""Cancels and releases kept for the next request; beyond that the daemon's deadlines end what is left."""

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
"""Pause after the first failed attempt to connect, and after many."""

PASSING = frozenset({ErrorCode.DAEMON_LOST, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.DRAINING, ErrorCode.NOT_READY})
"""Failures to connect that time may cure. Within the back-off they read as DAEMON_LOST; a refusal keeps its code."""

SPONTANEOUS_TAG_MIN = 128
"""Tags from here on are the daemon's own messages, which answer nothing."""

Reply = TypeVar("Reply", bound=Message)


@dataclass(slots=True, eq=False)
class Call(Generic[Reply]):
    """One request on its way: the frame to send, and how it ended."""

    id: int
    expect: type[Reply]
    frame: bytearray
    ended: bool = False
    _reply: Reply | None = None
    _failure: FlexKVError | None = None

    def result(self) -> Reply:
        """The reply, or the coded error that answered instead."""
        assert self.ended
        if self._reply is not None:
            return self._reply
        assert self._failure is not None
        # one loss fails many calls: each raises an error of its own, with its own traceback
        raise FlexKVError(self._failure.code, self._failure.message, retry_after_s=self._failure.retry_after_s)

    def succeed(self, reply: Reply) -> None:
        assert not self.ended
        self._reply, self.ended = reply, True

    def fail(self, failure: FlexKVError) -> None:
        assert not self.ended
        self._failure, self.ended = failure, True


@dataclass(slots=True, eq=False)
class Handle:
    """A daemon's name for a ticket or lease, and the connection (`life`) it belongs to."""

    id: int
    life: int


@dataclass(slots=True, eq=False)
class Registration:
    """Memory of this worker; unlike tickets it outlives a connection, by being registered again.

    `descriptor` is this client's own duplicate of the memfd, -1 for memory of a device that goes by handles.
    `handle` names it in the present life.
    """

    descriptor: int
    request: RegisterMemory
    handle: Handle

    @property
    def descriptors(self) -> list[int]:
        """Those that travel with `request`."""
        return [] if self.descriptor < 0 else [self.descriptor]


@dataclass(slots=True)
class Backoff:
    """When the next connection may be tried. Doubles with each failure, ends with a success."""

    wait_s: float = 0.0
    retry_at_s: float = 0.0
    code: ErrorCode = ErrorCode.DAEMON_LOST
    why: str = ""

    def check(self, now_s: float) -> None:
        """Raise what the last attempt met while it is too early for the next one."""
        if now_s < self.retry_at_s:
            raise FlexKVError(
                self.code,
                f"the next connection is tried in {self.retry_at_s - now_s:.2f} s; the last one failed: {self.why}",
            )

    def failed(self, now_s: float, error: FlexKVError) -> None:
        self.wait_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2 * self.wait_s))
        self.retry_at_s, self.why = now_s + self.wait_s, error.message
        self.code = ErrorCode.DAEMON_LOST if error.code in PASSING else error.code

    def succeeded(self) -> None:
        self.wait_s = self.retry_at_s = 0.0


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
    daemon_messages_dropped: int = 0
    _last_id: int = 0
    _outstanding: dict[int, Call[Message]] = field(default_factory=dict)  # sent or about to be, not yet ended
    _frames: FrameDecoder = field(default_factory=FrameDecoder)
    _daemon_messages: deque[DaemonMessage] = field(default_factory=deque)
    _undo: list[bytearray] = field(default_factory=list)  # frames that give back what a late reply opened
    _parting: FlexKVError | None = None  # what the daemon said before it closes this connection

    # ------------------------------------------------------------- requests

    def greet(self) -> Call[Welcome]:
        """Begin a life on a new connection."""
        assert not self._outstanding
        self._frames, self._undo, self._parting = FrameDecoder(), [], None
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
        if self._undo:
            frame = bytearray().join([*self._undo, frame])
            self._undo = []
        call = Call(message.id, expect, frame)
        self._outstanding[call.id] = cast(Call[Message], call)  # kept as a call of any reply
        return call

    # -------------------------------------------------------------- replies

    def receive(self, data: bytes | memoryview) -> list[Call[Message]]:
        """Take what came from the socket; returns the calls that ended by it.

        Raises FlexKVError when this is no daemon talking: then the connection must be dropped (`lose`).
        """
        ended = []
        for body in self._frames.feed(data):
            message = codec.decode_daemon(body)
            call = self._outstanding.pop(message.id, None)
            if call is not None:
                self._end(call, message)
                ended.append(call)
            else:
                self._unasked(message)
        return ended

    def _end(self, call: Call[Message], message: DaemonMessage) -> None:
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
            self._parting = error_of(message)
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

    def _give_back(self, late: DaemonMessage) -> None:
        """Nobody will ever wait for what a late reply opened, so it must not go on in the daemon."""
        if len(self._undo) >= UNDO_MESSAGES_MAX:
            return
        if isinstance(late, Opened):
            self._last_id += 1
            self._undo.append(codec.encode(Cancel(self._last_id, late.ticket)))
        elif isinstance(late, Matched) and late.lease:
            self._last_id += 1
            self._undo.append(codec.encode(Release(self._last_id, late.lease)))

    def take_daemon_messages(self) -> list[DaemonMessage]:
        """What the daemon said of itself since the last time, oldest first."""
        messages = list(self._daemon_messages)
        self._daemon_messages.clear()
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
        self.welcome = welcome

    @property
    def greeted(self) -> Welcome:
        """The last welcome that was believed. Raises NOT_GREETED before the first."""
        if self.welcome is None:
            raise FlexKVError(ErrorCode.NOT_GREETED, "the daemon was never reached so far: call connect() first")
        return self.welcome

    def lose(self, why: str) -> None:
        """The connection is gone: every call on it ends, and so does the life of all it opened."""
        failure = self._parting or FlexKVError(
            ErrorCode.DAEMON_LOST, f"the daemon is lost ({why}): the next call connects again by itself"
        )
        for call in self._outstanding.values():
            call.fail(failure)
        self._outstanding.clear()
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


def lost_meanwhile() -> FlexKVError:
    """The error of a call that met a connection between its end and the next one."""
    return FlexKVError(ErrorCode.DAEMON_LOST, "the daemon was lost just now: call again to connect anew")


def still_connecting() -> FlexKVError:
    """The error of a call whose time ran out while another was connecting: nothing of it was sent."""
    return FlexKVError(
        ErrorCode.DAEMON_LOST,
        "the daemon is lost and another call was still connecting anew: look whether it runs, or hangs",
    )


def error_of(failed: Failed) -> FlexKVError:
    """The error a reply carries. A code this client does not know reads as INTERNAL."""
    try:
        code = ErrorCode(failed.code)
    except ValueError:
        code = ErrorCode.INTERNAL
    retry_after_s = failed.retry_after_ms / 1000 if failed.retry_after_ms > 0 else None
    return FlexKVError(code, failed.message, retry_after_s=retry_after_s)


def _tag(message: DaemonMessage) -> int:
    tag = type(message).__struct_config__.tag
    assert isinstance(tag, int)
    return tag
