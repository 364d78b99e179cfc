"""The row path's requests: checked at the edge, turned into events; and what the planner tells workers of it.

Owns which sessions may read the arena by themselves, with which descriptors, and when they surely do so no
more: when the socket is closed and the process has ended, or says itself that it reads nothing of that session.
Who may read which frame the planner decides. `requests` hands messages over, `parts` makes it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from flexkv_py.core.messages import (
    AttachAnswered,
    ChangePages,
    LoseSession,
    PagesAcknowledged,
    RefuseReplay,
    RequestAttached,
    RequestDetached,
    WorkerGone,
)
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import KeyRun
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import (
    ATTACH_KEYS_MAX,
    SEGMENTS_PER_REPLY_MAX,
    Ack,
    Attach,
    Attached,
    DaemonMessage,
    Detach,
    Done,
    Failed,
    LetGo,
    MapArena,
    Pages,
    ReplayRefused,
    Report,
    Segments,
)
from flexkv_tiers.memory import Arena
from flexkv_tiers.open_files import is_out_of_files, out_of_files
from flexkvd.config import Config
from flexkvd.engine import Engine
from flexkvd.faults import FaultLog
from flexkvd.processes import PeerProcess
from flexkvd.reports import heat_of
from flexkvd.sessions import Session, Sessions

log = logging.getLogger(__name__)

NUMBER_MAX = (1 << 32) - 1
SHARED = "shared"


@dataclass(slots=True)
class Traffic:
    """What went over the row path since the start, by the word that the metric shows."""

    pages: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    sessions_ended: Counter[str] = field(default_factory=Counter)
    lookups: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Reader:
    """A session that may read the arena by itself.

    `attached` has the number of blocks of each of its requests; `segments` how many descriptors it was handed,
    read-only ones and writable ones.
    """

    session: Session
    process: PeerProcess
    attached: dict[int, int] = field(default_factory=dict)
    segments: list[int] = field(default_factory=lambda: [0, 0])
    gone: bool = False


class RowPath:
    """One method per request; each returns the reply, or None when it comes later or was sent."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        arena: Arena,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        faults: FaultLog | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.readers: dict[int, Reader] = {}  # by session, until surely nothing is read for it
        self.handlers: dict[type, Callable[[Session, Any], DaemonMessage | None]] = {
            MapArena: self._map_arena,
            Attach: self._attach,
            Detach: self._detach,
            Ack: self._ack,
            Report: self._report,
            LetGo: self._let_go,
        }
        self._engine = engine
        self._arena = arena
        self._table = config.row_path
        self._readers_max = config.limits.sessions_max
        self._loop = loop
        self._faults = faults or FaultLog(loop.time)
        self._attaching = 0  # blocks that the request being attached will have; the planner answers within `post`
        sessions.on_closed = self._session_closed
        engine.handlers |= {
            AttachAnswered: self._attach_answered,
            ChangePages: self._change_pages,
            RefuseReplay: self._refuse_replay,
            LoseSession: self._lose_session,
        }

    def close(self) -> None:
        """Watch no process any more."""
        for reader in self.readers.values():
            reader.process.close()

    # --------------------------------------------------------------- requests

    def _map_arena(self, session: Session, message: MapArena) -> None:
        reader = self._reader(session)
        if message.writable and self._table.arena != SHARED:
            raise FlexKVError(
                ErrorCode.UNSUPPORTED,
                "this daemon hands out its arena read-only: use a device that can pin a read-only mapping "
                "(HOST_REGISTER_READ_ONLY_SUPPORTED), or, where all workers may be trusted with each other's bytes, "
                'configure [row_path] arena = "shared"',
            )
        first = reader.segments[message.writable]
        count = min(SEGMENTS_PER_REPLY_MAX, len(self._arena.segment_fds) - first)
        if message.first != first or count <= 0:
            raise _bad_argument(
                f"segments from {message.first} on are not next for this session, {first} were handed out: "
                "ask in order, and once in a session"
            )
        descriptors = self._open_segments(range(first, first + count), writable=message.writable)
        reader.segments[message.writable] += count
        total, size = len(self._arena.segment_fds), self._arena.segment_bytes
        reply = Segments(message.id, first, count, total, size, ALIGN_BYTES, message.writable)
        session.connection.send(encode(reply), descriptors)

    def _open_segments(self, numbers: Iterable[int], *, writable: bool) -> list[int]:
        opened: list[int] = []
        try:
            for number in numbers:
                own = self._arena.segment_fds[number]
                opened.append(os.dup(own) if writable else self._arena.read_only_fd(number))
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            if is_out_of_files(error):
                raise out_of_files("no descriptors of the arena can be handed out", error) from error
            raise
        return opened

    def _attach(self, session: Session, message: Attach) -> None:
        if not 0 <= message.request <= NUMBER_MAX or not 0 <= message.first <= NUMBER_MAX:
            raise _bad_argument(
                f"request {message.request} or first = {message.first} is out of range: use 0 to {NUMBER_MAX}"
            )
        keys = KeyRun(message.keys).distinct()
        if not 1 <= len(keys) <= ATTACH_KEYS_MAX:
            code = ErrorCode.LIMIT_EXCEEDED if keys else ErrorCode.BAD_ARGUMENT
            raise FlexKVError(code, f"the message has {len(keys)} keys: attach 1 to {ATTACH_KEYS_MAX} at a time")
        reader, now_ns = self._reader(session), self._engine.now_ns()
        self._attaching = max(message.first + len(keys), reader.attached.get(message.request, 0))
        self._engine.post(RequestAttached(session.number, message.id, message.request, message.first, keys, now_ns))

    def _detach(self, session: Session, message: Detach) -> None:
        reader = self._reader_of(session, message.request)
        del reader.attached[message.request]
        self._engine.post(RequestDetached(session.number, message.id, message.request, self._engine.now_ns()))

    def _ack(self, session: Session, message: Ack) -> None:
        self._reader_of(session, message.request)
        self.traffic.messages["ack"] += 1
        now_ns = self._engine.now_ns()
        self._engine.post(PagesAcknowledged(session.number, message.request, message.version, now_ns, message.id))

    def _report(self, session: Session, message: Report) -> DaemonMessage:
        reader = self.readers.get(session.number)
        attached = reader.attached if reader is not None else {}
        event = heat_of(session.number, session.geometry, attached, message, self._engine.now_ns())
        self.traffic.messages["report"] += 1
        for entry in event.misses:
            self.traffic.lookups["hit"] += entry.hits
            self.traffic.lookups["miss"] += entry.misses
        self._engine.post(event)
        return Done(message.id)

    def _let_go(self, session: Session, message: LetGo) -> DaemonMessage:
        former = self.readers.get(message.session)
        if former is None:
            return Done(message.id)  # nothing is held for it, or no more
        same = former.process.pid == session.connection.peer.pid != 0 and former.process.alive
        if former.session is session or not same:
            raise _bad_argument(f"session {message.session} is no earlier one of this process: name one of its own")
        former.session.connection.close()
        if message.session in self.readers:
            self._gone(former)
        return Done(message.id)

    # ---------------------------------------------------------------- readers

    def _reader(self, session: Session) -> Reader:
        """The session as one that may read; its process is watched from now on."""
        reader = self.readers.get(session.number)
        if reader is not None:
            return reader
        if session.hello.role != "worker":
            raise FlexKVError(
                ErrorCode.UNSUPPORTED, "a scheduler reads no rows: connect with role 'worker' for the row path"
            )
        if len(self.readers) >= self._readers_max:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"the arena is held for {len(self.readers)} sessions, ended ones of living processes included "
                "(sessions_max): detach their requests, or end those processes",
            )
        process = PeerProcess(session.connection, self._loop, partial(self._process_ended, session.number))
        reader = self.readers[session.number] = Reader(session, process)
        return reader

    def _reader_of(self, session: Session, request: int) -> Reader:
        reader = self.readers.get(session.number)
        if reader is None or request not in reader.attached:
            raise FlexKVError(
                ErrorCode.UNKNOWN_REQUEST,
                f"request {request} is not attached in this session: attach it first, and again after a reconnect",
            )
        return reader

    def _session_closed(self, session: Session) -> None:
        reader = self.readers.get(session.number)
        if reader is None:
            return
        if reader.gone or not reader.attached:
            self._gone(reader)
        else:
            log.info("session %d is lost; its frames wait for the end of pid %d", session.number, reader.process.pid)

    def _process_ended(self, number: int) -> None:
        reader = self.readers[number]
        reader.gone = True
        if reader.session.closed:
            self._gone(reader)

    def _gone(self, reader: Reader) -> None:
        """Nothing is read for this session any more, and its socket is closed."""
        assert reader.session.closed
        reader.process.close()
        del self.readers[reader.session.number]
        if not self._engine.broken:
            self._engine.post(WorkerGone(reader.session.number, self._engine.now_ns()))

    # ----------------------------------------------------- what the planner says

    def _attach_answered(self, answer: AttachAnswered) -> None:
        reader = self.readers.get(answer.session)
        if reader is None:
            return  # its socket closed meanwhile, and it has heard of nothing that it could read
        reader.attached[answer.request] = self._attaching
        self._tell(answer.session, Attached(answer.asked, answer.request, answer.version, self._attaching))

    def _change_pages(self, change: ChangePages) -> None:
        self.traffic.pages["granted"] += len(change.granted)
        self.traffic.pages["revoked"] += len(change.revoked)
        granted, revoked = _packed(change.granted), _packed(change.revoked)
        self._tell(change.session, Pages(0, change.request, change.version, granted, revoked))

    def _refuse_replay(self, refusal: RefuseReplay) -> None:
        self._faults.note(f"replay refused: {refusal.outcome.value}", detail=refusal.message)
        self._tell(refusal.session, ReplayRefused(0, refusal.request, refusal.outcome.value, refusal.message))

    def _lose_session(self, lost: LoseSession) -> None:
        reader = self.readers.get(lost.session)
        whose = f"session {lost.session} (pid {reader.process.pid if reader is not None else 'unknown'})"
        self.traffic.sessions_ended[lost.code.value] += 1
        self._faults.note(f"session ended: {lost.code.value}", detail=f"{whose}: {lost.message}")
        log.warning("%s ends: %s", whose, lost.message)
        self._tell(lost.session, Failed(0, lost.code.value, lost.message))
        if reader is not None:
            reader.session.connection.close_after_replies()

    def _tell(self, session: int, message: DaemonMessage) -> None:
        reader = self.readers.get(session)
        if reader is not None and not reader.session.closed:
            reader.session.reply(message)


def _packed(entries: Iterable[tuple[int, ...]]) -> bytes:
    return array("I", chain.from_iterable(entries)).tobytes()


def _bad_argument(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
