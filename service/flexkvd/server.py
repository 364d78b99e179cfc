"""The worker socket: accepts clients, greets them, and hands their messages to `requests`.

Owns connections that have not said hello and the map from connection to session; owns no request.
Garbage gets a coded error and ends its own session, nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import time
from collections import Counter
from dataclasses import dataclass

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.codec import decode_client, encode, request_id
from flexkv_py.wire.messages import PROTOCOL_VERSION, ClientMessage, Failed, GoingAway, Hello, Welcome
from flexkv_tiers.open_files import is_out_of_files, out_of_files
from flexkvd.config import NAME_CHARS_MAX, DaemonTable, LimitsTable
from flexkvd.connection import Connection, Peer
from flexkvd.durations import timings
from flexkvd.faults import FaultLog
from flexkvd.requests import EPOCH_MAX, SHARD_MAX, Requests
from flexkvd.sessions import Session, Sessions

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN_MAX = 32
ACCEPT_PAUSE_S = 0.1
ACCEPT_WARNING_S = 10.0
"""Clients that cannot be accepted are told in the log once in so long."""
"""Longest tenant, instance or client name."""
ROLES = ("worker", "scheduler")


@dataclass(frozen=True)
class Gate:
    """Who may say hello: the peer's uid or gid is listed, or its token is right.

    Without a token the daemon's own user may as well; with one, only who is listed goes without it
    (in containers peer uids are often all 0 and tell nothing).
    """

    own_uid: int
    uids: frozenset[int]
    gids: frozenset[int]
    token: str

    @classmethod
    def of(cls, table: DaemonTable, own_uid: int, token: str) -> Gate:
        return cls(own_uid, frozenset(table.uids), frozenset(table.gids), token)

    def check(self, peer: Peer, token: str) -> None:
        """Raises FlexKVError(UNAUTHENTICATED) with what would help."""
        if peer.uid in self.uids or peer.gid in self.gids:
            return
        if self.token:
            if hmac.compare_digest(self.token.encode(), token.encode()):
                return
            cure = "send the token of the daemon's token_file in hello"
        elif peer.uid == self.own_uid:
            return
        else:
            cure = "add the uid to [daemon] uids or the gid to gids, or configure a token_file"
        raise FlexKVError(
            ErrorCode.UNAUTHENTICATED, f"user {peer.uid} of group {peer.gid} is not let in by this daemon: {cure}"
        )


class Server:
    """Listens on the worker socket and receives from every connection.

    `failures` counts coded errors by code, `request_time` what the loop spent on each kind of request, with what the
    planner did about it.
    """

    def __init__(
        self,
        listener: socket.socket,
        requests: Requests,
        sessions: Sessions,
        gate: Gate,
        limits: LimitsTable,
        boot: bytes,
        segment_bytes: int,
        loop: asyncio.AbstractEventLoop,
        faults: FaultLog | None = None,
    ) -> None:
        self.failures: Counter[str] = Counter()
        self.request_time = timings()
        self._faults = faults or FaultLog()
        self._listener = listener
        self._requests = requests
        requests.registry.refuse = lambda session, request, error: self._fail(session.connection, request, error)
        self._sessions = sessions
        self._gate = gate
        self._limits = limits
        self._boot = boot
        self._segment_bytes = segment_bytes
        self._loop = loop
        self._draining = False
        self._greeted: dict[Connection, Session] = {}
        self._ungreeted: dict[Connection, asyncio.TimerHandle] = {}
        self._accept_again: asyncio.TimerHandle | None = None
        self._accept_warning_s = 0.0  # on the loop's clock: the next one is due then
        self._listen()

    @property
    def connections(self) -> int:
        """Open connections, greeted or not."""
        return len(self._greeted) + len(self._ungreeted)

    def going_away(self, reason: str, grace_ms: int) -> None:
        """Accept nobody any more and tell everybody."""
        self._draining = True
        for session in list(self._greeted.values()):
            session.reply(GoingAway(0, reason, grace_ms))

    def close(self) -> None:
        """Stop listening and close every connection."""
        if self._accept_again is not None:
            self._accept_again.cancel()
        self._loop.remove_reader(self._listener)
        for connection in [*self._greeted, *self._ungreeted]:
            connection.close()

    def received(self, connection: Connection, body: memoryview) -> None:
        """One message of a client (see `connection.Receiver`)."""
        try:
            message = decode_client(body)
        except FlexKVError as error:
            self._fail(connection, request_id(body), error)
            raise _Answered(error) from error
        session = self._greeted.get(connection)
        if session is None or type(message) is Hello:
            self._greet(connection, session, message)
            return
        begun_s = time.perf_counter()
        try:
            reply = self._requests.handle(session, message)
            if reply is not None:
                connection.send(encode(reply))
        except FlexKVError as error:
            self._fail(connection, message.id, error)
        except Exception:
            log.exception("a bug while handling %s of session %d", type(message).__name__, session.number)
            why = "the daemon met a bug in this request: its log has the traceback"
            self._fail(connection, message.id, FlexKVError(ErrorCode.INTERNAL, why))
        self.request_time[type(message).__name__,].add(time.perf_counter() - begun_s)

    def refused(self, connection: Connection, error: FlexKVError) -> None:
        """Say why the connection ends, unless that was the answer to its last message."""
        if not isinstance(error, _Answered):
            self._fail(connection, 0, error)

    def lost(self, connection: Connection) -> None:
        """The connection is gone, and with it the session."""
        timer = self._ungreeted.pop(connection, None)
        if timer is not None:
            timer.cancel()
        session = self._greeted.pop(connection, None)
        if session is not None:
            self._sessions.close(session)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                connected, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            connection = Connection(connected, self, self._loop, self._limits.write_buffer_bytes_max)
            late = self._loop.call_later(self._limits.hello_s_max, self._too_late, connection)
            self._ungreeted[connection] = late
            if self.connections > 2 * self._limits.sessions_max:
                connection.close()

    def _pause_accepting(self, error: OSError) -> None:
        """The listener stays readable as long as the cause lasts, so look away for a while."""
        self._loop.remove_reader(self._listener)
        self._accept_again = self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
        why: Exception = error
        if is_out_of_files(error):
            why = out_of_files("clients have to wait", error)
            self.failures[ErrorCode.OUT_OF_FILES.value] += 1
            self._faults.refused(why)
        if self._loop.time() >= self._accept_warning_s:
            self._accept_warning_s = self._loop.time() + ACCEPT_WARNING_S
            log.warning("cannot accept a client: %s", why)

    def _too_late(self, connection: Connection) -> None:
        why = f"no hello within {self._limits.hello_s_max:g} s (hello_s_max): say hello first"
        self._fail(connection, 0, FlexKVError(ErrorCode.NOT_GREETED, why))
        connection.close_after_replies()

    def _greet(self, connection: Connection, session: Session | None, message: ClientMessage) -> None:
        try:
            self._check_hello(connection, session, message)
        except FlexKVError as error:
            self._fail(connection, message.id, error)
            raise _Answered(error) from error
        assert isinstance(message, Hello)
        session = self._sessions.open(message, connection)
        self._ungreeted.pop(connection).cancel()
        self._greeted[connection] = session
        peer = connection.peer
        log.info("session %d: %s, pid %d, uid %d", session.number, message.role, peer.pid, peer.uid)
        welcome = Welcome(
            message.id,
            PROTOCOL_VERSION,
            session.number,
            self._boot,
            session.namespace.digest,
            session.geometry.chunk_count,
            self._limits.keys_per_message_max,
            self._limits.tickets_per_session_max,
            self._limits.leases_per_session_max,
            ordered_copies=True,
        )
        connection.send(encode(welcome))

    def _check_hello(self, connection: Connection, session: Session | None, message: ClientMessage) -> None:
        if session is not None:
            raise FlexKVError(ErrorCode.BAD_MESSAGE, "hello was said already: open a connection for another session")
        if not isinstance(message, Hello):
            raise FlexKVError(ErrorCode.NOT_GREETED, f"{type(message).__name__} came before hello: say hello first")
        if message.version != PROTOCOL_VERSION:
            raise FlexKVError(
                ErrorCode.VERSION_MISMATCH,
                f"the client speaks version {message.version}, this daemon {PROTOCOL_VERSION}: install one release",
            )
        self._gate.check(connection.peer, message.token)
        if self._draining:
            raise FlexKVError(ErrorCode.DRAINING, "the daemon is stopping: connect again when it is back")
        if self._sessions.count >= self._limits.sessions_max:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{self._limits.sessions_max} sessions are open (sessions_max): close one, or raise the limit",
            )
        self._check_names(message)

    def _check_names(self, hello: Hello) -> None:
        if hello.role not in ROLES:
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"role is {hello.role[:16]!r}: use one of {', '.join(ROLES)}")
        for name in (hello.tenant, hello.instance, hello.client):
            if len(name) > NAME_CHARS_MAX:
                raise FlexKVError(
                    ErrorCode.BAD_ARGUMENT, f"a name has {len(name)} characters: use at most {NAME_CHARS_MAX}"
                )
        if not 0 <= hello.shard <= SHARD_MAX or not 0 <= hello.epoch <= EPOCH_MAX:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT, f"shard {hello.shard} or epoch {hello.epoch} is out of range: use u32 and u64"
            )
        if hello.geometry.frame_bytes > self._segment_bytes:
            raise FlexKVError(
                ErrorCode.BAD_GEOMETRY,
                f"a chunk of this geometry has {hello.geometry.frame_bytes} bytes, a segment of the arena only "
                f"{self._segment_bytes}: raise [dram] segment_bytes, or cut blocks into more chunks",
            )

    def _fail(self, connection: Connection, request: int, error: FlexKVError) -> None:
        self.failures[error.code.value] += 1
        self._faults.refused(error)
        retry_after_ms = round((error.retry_after_s or 0.0) * 1000)
        with contextlib.suppress(FlexKVError):
            connection.send(encode(Failed(request, error.code.value, error.message, retry_after_ms)))


class _Answered(FlexKVError):
    """The connection must end, and its client knows why already."""

    def __init__(self, error: FlexKVError) -> None:
        super().__init__(error.code, error.message)
