"""Sessions: what one client has open, and the replies the planner has for it.

Owns memories and tickets of each client from hello until the last copy after its end. Carries out the
planner's answers (`MatchAnswered`, `TicketFinished`, …); decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from flexkv_py.core.messages import (
    EndSession,
    MatchAnswered,
    NamespaceSpec,
    RequestDone,
    RequestRefused,
    SessionClosed,
    SessionOpened,
    TicketCancelled,
    TicketFinished,
)
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import namespace_digest
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import DaemonMessage, Done, Failed, Hello, Matched, Run
from flexkvd.config import LimitsTable
from flexkvd.connection import Connection
from flexkvd.engine import Engine
from flexkvd.memories import RegisteredMemory
from flexkvd.tickets import Ticket

NS_PER_MS = 1_000_000
TIER_WORDS = ("hbm", "dram", "ssd", "s3")


@dataclass(eq=False, slots=True)
class Session:
    """One greeted client.

    `tickets` holds those that run and the last finished ones; `leaving` are unregistered memories
    whose last copy still runs, and `opening` counts those that are not open yet; `waiting` counts requests
    whose reply waits for something; `asked` is how many keys the match has that is being answered (the
    planner answers within `post`).
    """

    number: int
    hello: Hello
    namespace: NamespaceSpec
    connection: Connection
    limits: LimitsTable
    opened_ns: int = 0
    memories: dict[int, RegisteredMemory] = field(default_factory=dict)
    leaving: dict[int, RegisteredMemory] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    memories_made: int = 0
    opening: int = 0
    waiting: int = 0
    asked: int = 0
    closed: bool = False
    _finished: deque[int] = field(default_factory=deque)

    @property
    def geometry(self) -> Geometry:
        return self.hello.geometry

    def reply(self, message: DaemonMessage) -> None:
        self.connection.send(encode(message))

    def memory(self, number: int) -> RegisteredMemory:
        found = self.memories.get(number)
        if found is None:
            raise FlexKVError(
                ErrorCode.UNKNOWN_MEMORY,
                f"this session has registered no memory {number}: register it again after a reconnect",
            )
        return found

    def next_memory(self) -> int:
        """The number of the memory that is registered now."""
        self.memories_made += 1
        return self.memories_made

    def ticket(self, number: int) -> Ticket:
        found = self.tickets.get(number)
        if found is None:
            raise FlexKVError(
                ErrorCode.UNKNOWN_TICKET,
                f"this session has no ticket {number}, or finished so many since that it is forgotten "
                f"(tickets_kept_per_session_max = {self.limits.tickets_kept_per_session_max}): ask sooner",
            )
        return found

    def begin_waiting(self) -> None:
        """Count one request whose reply waits."""
        if self.waiting >= self.limits.requests_per_session_max:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{self.waiting} requests of this session wait already (requests_per_session_max): read their replies",
            )
        self.waiting += 1

    def end_waiting(self, message: DaemonMessage) -> None:
        """Answer a request counted by `begin_waiting`."""
        self.waiting -= 1
        self.reply(message)

    def finished(self, ticket: Ticket) -> None:
        """Keep a finished ticket for questions, and forget the oldest beyond the limit."""
        self._finished.append(ticket.number)
        while len(self._finished) > self.limits.tickets_kept_per_session_max:
            self.tickets.pop(self._finished.popleft(), None)


class Sessions:
    """All sessions by number; answers of the planner arrive here."""

    def __init__(self, engine: Engine, limits: LimitsTable) -> None:
        self.by_number: dict[int, Session] = {}
        self._opened: list[Callable[[Session], None]] = []
        self.on_closed: Callable[[Session], None] = lambda _session: None
        self.on_ticket_finished: Callable[[Ticket], None] = lambda _ticket: None
        self.on_matched: Callable[[Session, int, MatchAnswered], None] = lambda _session, _asked, _answer: None
        self.on_own_done: Callable[[int], None] = lambda _request: None  # a request of the daemon itself
        self._engine = engine
        self._limits = limits
        self._sessions = 0
        self._tickets = 0
        self._own: dict[int, Callable[[TicketFinished | RequestRefused], None]] = {}
        engine.handlers |= {
            MatchAnswered: self._match_answered,
            TicketFinished: self._ticket_finished,
            RequestDone: self._request_done,
            RequestRefused: self._request_refused,
            EndSession: self._end,
        }

    def listen(self, opened: Callable[[Session], None]) -> None:
        """Call it with every session that is opened, before the planner hears of it."""
        self._opened.append(opened)

    @property
    def count(self) -> int:
        """Live sessions."""
        return sum(not session.closed for session in self.by_number.values())

    def open(self, hello: Hello, connection: Connection) -> Session:
        """Make a session of an accepted hello."""
        digest = namespace_digest(hello.geometry.fingerprint, hello.tenant, hello.epoch)
        namespace = NamespaceSpec(digest, hello.geometry.chunk_bytes)
        self._sessions += 1
        opened_ns = self._engine.now_ns()
        session = Session(self._sessions, hello, namespace, connection, self._limits, opened_ns)
        self.by_number[session.number] = session
        for told in self._opened:
            told(session)
        self._engine.post(
            SessionOpened(session.number, namespace, hello.shard, opened_ns, hello.instance, hello.tenant)
        )
        return session

    def close(self, session: Session) -> None:
        """The client is gone: leases, tickets and waiters end now, memories after their last copy."""
        assert not session.closed
        session.closed = True
        if not self._engine.broken:
            self._engine.post(SessionClosed(session.number, self._engine.now_ns()))
        for ticket in list(session.tickets.values()):
            ticket.abandon()
        self.on_closed(session)

    @property
    def busy(self) -> bool:
        """Whether any ticket runs: a client's, or a flush the operator waits for."""
        return bool(self.running)

    @property
    def running(self) -> int:
        """How many these are."""
        return len(self._own) + len(self.open_tickets())

    def open_tickets(self) -> list[Ticket]:
        """Clients' tickets that are not over."""
        return [ticket for each in self.by_number.values() for ticket in each.tickets.values() if not ticket.over]

    def cancel_tickets(self) -> None:
        """Ask for the end of every ticket that runs, the operator's flushes too."""
        running = [(ticket.session, ticket.number) for ticket in self.open_tickets()]
        for session, number in (*running, *((0, number) for number in list(self._own))):
            self._engine.post(TicketCancelled(session, number, self._engine.now_ns()))

    def next_ticket(self) -> int:
        """A ticket number never used before in this life of the daemon."""
        self._tickets += 1
        return self._tickets

    def own_ticket(self, ended: Callable[[TicketFinished | RequestRefused], None]) -> int:
        """A ticket of the daemon itself (session 0); `ended` hears of its end."""
        number = self.next_ticket()
        self._own[number] = ended
        return number

    def _reply(self, number: int, message: DaemonMessage) -> None:
        """Answer a session, unless it ended while the planner was at it."""
        session = self.by_number.get(number)
        if session is not None:
            session.reply(message)

    def _match_answered(self, answer: MatchAnswered) -> None:
        runs = [Run(TIER_WORDS[run.tier], run.count) for run in answer.runs]
        self._reply(answer.session, Matched(answer.request, answer.length, runs, answer.lease))
        session = self.by_number.get(answer.session)
        if session is not None:
            self.on_matched(session, session.asked, answer)

    def _ticket_finished(self, finished: TicketFinished) -> None:
        if finished.session == 0:
            self._own.pop(finished.ticket)(finished)
            return
        session = self.by_number.get(finished.session)
        ticket = session.tickets.get(finished.ticket) if session is not None else None
        if session is not None and ticket is not None and not ticket.over:
            ticket.finish(finished)
            session.finished(ticket)
            self.on_ticket_finished(ticket)

    def _request_done(self, done: RequestDone) -> None:
        if done.session == 0:
            self.on_own_done(done.request)
        else:
            self._reply(done.session, Done(done.request))

    def _request_refused(self, refused: RequestRefused) -> None:
        if refused.session == 0:
            self._own.pop(refused.ticket)(refused)
            return
        if refused.ticket:
            self.by_number[refused.session].tickets[refused.ticket].refusal = refused
        else:
            self._reply(refused.session, failed(refused.request, refused))

    def _end(self, end: EndSession) -> None:
        session = self.by_number[end.session]
        assert session.closed
        for number, memory in list(session.memories.items()):
            memory.close(partial(self._memory_closed, session, number))
        self.forget_if_empty(session)

    def _memory_closed(self, session: Session, number: int) -> None:
        del session.memories[number]
        self.forget_if_empty(session)

    def forget_if_empty(self, session: Session) -> None:
        """Forget a session that is gone once none of its memories is mapped any more."""
        if session.closed and not session.memories and not session.leaving:
            self.by_number.pop(session.number, None)


def failed(request: int, refused: RequestRefused) -> Failed:
    """The planner's refusal as a reply."""
    return Failed(request, refused.code.value, refused.message, -(-refused.retry_after_ns // NS_PER_MS))
