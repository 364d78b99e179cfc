"""Requests of greeted clients: checked at the edge, turned into events, answered.

Owns what is believed of a message and what is not: keys, pages, numbers and deadlines are checked
here, once; inside, everybody trusts them. Called by `server` with a decoded message; returns the
reply, or None when the reply comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from flexkv_py.core.messages import (
    FlushAsked,
    LeaseReleased,
    LoadAsked,
    MatchAsked,
    PrefetchAsked,
    SaveAsked,
    SaveHints,
    TicketCancelled,
    TicketKind,
    Tier,
)
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KEY_BYTES, ROOT, BlockKey, KeyRun, namespace_digest
from flexkv_py.wire.messages import (
    Cancel,
    DaemonMessage,
    Done,
    Failed,
    Fence,
    Flush,
    Hello,
    Load,
    Match,
    Opened,
    Ping,
    Prefetch,
    RegisterMemory,
    Release,
    Reset,
    Save,
    UnregisterMemory,
    Wait,
)
from flexkv_tiers.memory.worker import PageTable
from flexkvd.config import LimitsTable
from flexkvd.devices import Devices
from flexkvd.engine import Engine
from flexkvd.memories import RegisteredMemory
from flexkvd.ordering import TicketGates, check_event, check_gates
from flexkvd.registration import Registry
from flexkvd.resets import Resets
from flexkvd.row_path import RowPath
from flexkvd.sessions import NS_PER_MS, Session, Sessions, failed
from flexkvd.tickets import Pages, Ticket, Waiter

EPOCH_MAX = (1 << 64) - 1
SHARDS_MAX = 1024
RETENTION_MS_MAX = 1000 * 366 * 86_400_000
SHARD_MAX = (1 << 32) - 1
TIERS_BY_WORD = {"dram": Tier.DRAM, "ssd": Tier.SSD, "s3": Tier.S3}


class Requests:
    """One method per request; each returns the reply, or None when it comes later."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        limits: LimitsTable,
        tiers: tuple[Tier, ...],
        resets: Resets,
        row_path: RowPath,
        devices: Devices,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.registry = Registry(limits, sessions.by_number, devices)
        self._devices = devices
        self._engine = engine
        self._sessions = sessions
        self._limits = limits
        self._tiers = tiers
        self._resets = resets
        self._loop = loop
        self._handlers: dict[type, Callable[[Session, Any], DaemonMessage | None]] = {
            Hello: self._hello_again,
            RegisterMemory: self._register,
            UnregisterMemory: self._unregister,
            Match: self._match,
            Load: self._load,
            Save: self._save,
            Prefetch: self._prefetch,
            Wait: self._wait,
            Cancel: self._cancel,
            Release: self._release,
            Fence: self._fence,
            Flush: self._flush,
            Reset: self._reset,
            Ping: self._ping,
            **row_path.handlers,
        }

    def handle(self, session: Session, message: Any) -> DaemonMessage | None:
        """Carry out one request. Raises FlexKVError for what is to be answered by a coded error."""
        return self._handlers[type(message)](session, message)

    def _ping(self, _session: Session, message: Ping) -> DaemonMessage:
        return Done(message.id)

    def _hello_again(self, _session: Session, _message: Hello) -> DaemonMessage:
        raise AssertionError("the server answers a second hello itself")

    def _register(self, session: Session, message: RegisterMemory) -> DaemonMessage | None:
        return self.registry.register(session, message)

    def _unregister(self, session: Session, message: UnregisterMemory) -> None:
        memory = session.memory(message.memory)
        session.begin_waiting()
        del session.memories[memory.number]
        session.leaving[memory.number] = memory
        for ticket in list(memory.tickets.values()):
            if not ticket.over:
                self._engine.post(TicketCancelled(session.number, ticket.number, self._engine.now_ns()))

        def closed() -> None:
            del session.leaving[memory.number]
            session.end_waiting(Done(message.id))
            self._sessions.forget_if_empty(session)

        memory.close(closed)

    def _match(self, session: Session, message: Match) -> None:
        keys = self._key_run(message.keys)
        shards = tuple(message.shards) or (session.hello.shard,)
        in_range = all(0 <= shard <= SHARD_MAX for shard in shards)
        if len(shards) > SHARDS_MAX or len(set(shards)) != len(shards) or not in_range:
            raise _bad_argument(f"list at most {SHARDS_MAX} different shards from 0 to {SHARD_MAX}")
        session.asked = len(keys)
        hold_ns = self._span_ns("hold_ms", message.hold_ms, "hold_s_max", self._limits.hold_s_max)
        self._engine.post(MatchAsked(session.number, message.id, keys, shards, hold_ns, self._engine.now_ns()))

    def _load(self, session: Session, message: Load) -> DaemonMessage:
        keys = self._key_run(message.keys).distinct()
        memory = session.memory(message.memory)
        pages = _distinct(memory.mapping.page_table(message.pages, len(keys)))
        deadline_ns = self._deadline_ns(message.deadline_ms)
        gates = check_gates(message.gates, memory.mapping, len(keys)) if message.gates is not None else None
        ticket = self._ticket(session, TicketKind.LOAD, len(keys), memory, pages)
        if gates is not None:
            ticket.gates = TicketGates(self._devices.lanes, memory.mapping, gates)
        self._engine.post(LoadAsked(session.number, ticket.number, keys, deadline_ns, ticket.opened_ns))
        return self._opened(session, ticket, message.id)

    def _save(self, session: Session, message: Save) -> DaemonMessage:
        keys = self._key_run(message.keys).distinct()
        memory = session.memory(message.memory)
        pages = memory.mapping.page_table(message.pages, len(keys))
        if len(message.parent) not in (0, KEY_BYTES):
            raise FlexKVError(
                ErrorCode.BAD_KEY,
                f"the parent has {len(message.parent)} bytes: send {KEY_BYTES}, or none for a first block",
            )
        parent = BlockKey(message.parent) if message.parent else ROOT
        ack = self._tier("ack", message.ack)
        deadline_ns = self._deadline_ns(message.deadline_ms)
        hints = self._hints(message)
        if message.skip_below and ack is not Tier.DRAM:
            raise _bad_argument(f"skip_below keeps a block in DRAM, yet ack asks for {message.ack!r}: drop one of them")
        after = check_event(message.after, memory.mapping) if message.after else None
        ticket = self._ticket(session, TicketKind.SAVE, len(keys), memory, pages, ack)
        ticket.after = after
        now_ns = ticket.opened_ns
        self._engine.post(SaveAsked(session.number, ticket.number, keys, parent, deadline_ns, ack, hints, now_ns))
        return self._opened(session, ticket, message.id)

    def _hints(self, message: Save) -> SaveHints:
        if message.high_priority and message.low_priority:
            raise _bad_argument("high_priority and low_priority contradict each other: ask for one of them, or neither")
        if not 0 <= message.retention_ms <= RETENTION_MS_MAX:
            why = f"retention_ms = {message.retention_ms} is out of range"
            raise _bad_argument(f"{why}: use 0 (for ever) or milliseconds up to 1,000 years")
        retention_ns = message.retention_ms * NS_PER_MS
        return SaveHints(message.skip_below, message.high_priority, message.low_priority, retention_ns)

    def _prefetch(self, session: Session, message: Prefetch) -> DaemonMessage:
        keys = self._key_run(message.keys).distinct()
        to_tier = self._tier("to_tier", message.to_tier)
        if to_tier is not Tier.DRAM:
            raise FlexKVError(ErrorCode.UNSUPPORTED, "this version prefetches to 'dram' only: ask for that")
        deadline_ns = self._deadline_ns(message.deadline_ms)
        ticket = self._ticket(session, TicketKind.PREFETCH, len(keys))
        self._engine.post(PrefetchAsked(session.number, ticket.number, keys, deadline_ns, to_tier, ticket.opened_ns))
        return self._opened(session, ticket, message.id)

    def _flush(self, session: Session, message: Flush) -> DaemonMessage:
        to_tier = self._tier("to_tier", message.to_tier)
        deadline_ns = self._deadline_ns(message.deadline_ms)
        ticket = self._ticket(session, TicketKind.FLUSH, 0, to_tier=to_tier)
        namespace = session.namespace.digest
        self._engine.post(FlushAsked(session.number, ticket.number, namespace, to_tier, deadline_ns, ticket.opened_ns))
        return self._opened(session, ticket, message.id)

    def _wait(self, session: Session, message: Wait) -> DaemonMessage | None:
        ticket = session.ticket(message.ticket)
        if message.chunk >= session.geometry.chunk_count:
            raise _bad_argument(
                f"there is no chunk {message.chunk}, a block of this geometry has {session.geometry.chunk_count}: "
                "wait for a smaller one, or -1 for the end"
            )
        timeout_ns = self._span_ns("timeout_ms", message.timeout_ms, "deadline_s_max", self._limits.deadline_s_max)
        if ticket.reached(message.chunk) or not timeout_ns:
            return ticket.progress(message.id)
        session.begin_waiting()

        def answer() -> None:
            session.end_waiting(ticket.progress(message.id))

        def timed_out() -> None:
            ticket.waiters.remove(waiter)
            answer()

        waiter = Waiter(message.chunk, answer, self._loop.call_later(timeout_ns / 1e9, timed_out))
        ticket.waiters.append(waiter)
        return None

    def _cancel(self, session: Session, message: Cancel) -> DaemonMessage:
        ticket = session.ticket(message.ticket)
        if not ticket.over:
            self._engine.post(TicketCancelled(session.number, ticket.number, self._engine.now_ns()))
        return Done(message.id)

    def _release(self, session: Session, message: Release) -> None:
        self._engine.post(LeaseReleased(session.number, message.id, message.lease, self._engine.now_ns()))

    def _fence(self, session: Session, message: Fence) -> None:
        memory = session.memory(message.memory)
        pages = _pages(message.pages, memory.mapping.page_count) if message.pages else None
        session.begin_waiting()
        memory.fence(pages, lambda: session.end_waiting(Done(message.id)))

    def _reset(self, session: Session, message: Reset) -> None:
        if not 0 <= message.epoch <= EPOCH_MAX:
            raise _bad_argument(f"epoch is {message.epoch}: use 0 to {EPOCH_MAX}")
        namespace = namespace_digest(session.geometry.fingerprint, session.hello.tenant, message.epoch)
        session.begin_waiting()
        self._resets.begin(namespace, lambda: session.end_waiting(Done(message.id)))

    def _ticket(
        self,
        session: Session,
        kind: TicketKind,
        key_count: int,
        memory: RegisteredMemory | None = None,
        pages: PageTable | None = None,
        to_tier: Tier | None = None,
    ) -> Ticket:
        number, chunks = self._sessions.next_ticket(), session.geometry.chunk_count
        ticket = Ticket(number, session.number, kind, key_count, chunks, self._engine.now_ns(), memory, pages, to_tier)
        session.tickets[number] = ticket
        if memory is not None:
            memory.tickets[number] = ticket
        return ticket

    def _opened(self, session: Session, ticket: Ticket, request: int) -> Opened | Failed:
        if ticket.refusal is None:
            return Opened(request, ticket.number)
        session.tickets.pop(ticket.number, None)
        if ticket.memory is not None:
            ticket.memory.tickets.pop(ticket.number, None)
        return failed(request, ticket.refusal)

    def _key_run(self, raw: bytes) -> KeyRun:
        keys = KeyRun(raw)
        if not 1 <= len(keys) <= self._limits.keys_per_message_max:
            code = ErrorCode.LIMIT_EXCEEDED if len(keys) else ErrorCode.BAD_ARGUMENT
            limit = self._limits.keys_per_message_max
            raise FlexKVError(code, f"the message has {len(keys)} keys: send 1 to {limit} (keys_per_message_max)")
        return keys

    def _tier(self, name: str, word: str) -> Tier:
        tier = TIERS_BY_WORD.get(word)
        if tier is None:
            raise _bad_argument(f"{name} is {word[:16]!r}: use one of {', '.join(TIERS_BY_WORD)}")
        if tier not in self._tiers:
            raise FlexKVError(
                ErrorCode.TIER_UNAVAILABLE,
                f"{name} asks for {word!r}, which this daemon is configured without: add a table [{word}]",
            )
        return tier

    def _deadline_ns(self, deadline_ms: int) -> int:
        span_ns = self._span_ns("deadline_ms", deadline_ms, "deadline_s_max", self._limits.deadline_s_max)
        return self._engine.now_ns() + (span_ns or int(self._limits.deadline_s_default * 1e9))

    def _span_ns(self, name: str, span_ms: int, limit: str, span_s_max: float) -> int:
        if not 0 <= span_ms <= span_s_max * 1000:
            raise _bad_argument(
                f"{name} is {span_ms}, that is {span_ms / 1000:g} s: use 0 to {int(span_s_max * 1000)}, as "
                f"[limits] {limit} is {span_s_max:g} s"
            )
        return span_ms * NS_PER_MS


def _pages(raw: bytes, page_count: int) -> Pages:
    if len(raw) % 4:
        raise _bad_argument(f"the pages field has {len(raw)} bytes: send page numbers as u32, 4 bytes each")
    pages = np.frombuffer(raw, dtype="<u4")
    if int(pages.max()) >= page_count:
        raise FlexKVError(
            ErrorCode.PAGE_OUT_OF_RANGE,
            f"page {int(pages.max())} is not in this memory: it was registered with {page_count} pages, from 0 on",
        )
    return pages


def _distinct(pages: PageTable) -> PageTable:
    """Two blocks loaded into one page would leave there whichever came last, and both called loaded."""
    numbers, counts = np.unique(pages, return_counts=True)
    if len(numbers) < pages.size:
        raise _bad_argument(f"page {numbers[counts > 1][0]} is listed twice: load every block into pages of its own")
    return pages


def _bad_argument(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
