"""The one door: `Planner.handle(event)` changes state and returns what is to be done.

It is pure and synchronous: no clock, no chance, no I/O. Each event first gets its own handler, then
`_pump` lets everything that waits try again, in the order of the links' priorities, every loop bounded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

from flexkv_py.core import messages, recovery
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.demands import pump_flushes, serve_demands
from flexkv_py.core.endings import on_chunk_landed, on_transfers_finished
from flexkv_py.core.links import relink_slice
from flexkv_py.core.loading import on_load, serve_room_loads
from flexkv_py.core.matching import let_go, on_match
from flexkv_py.core.room import clean_ahead
from flexkv_py.core.saving import on_save, serve_room_saves
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import end_session_tickets, expire_ticket, finish_ticket, open_ticket, refuse
from flexkv_py.core.transfers import Flush
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey
from flexkv_py.rows import attached, leaving, replays
from flexkv_py.rows.policy import RequestId

TIMERS_PER_EVENT_MAX = 1024


class Planner:
    """All state of the cache, and every decision about it."""

    def __init__(self, config: PlannerConfig) -> None:
        self.state = State(config)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            messages.SessionOpened: self._on_session_opened,
            messages.SessionClosed: self._on_session_closed,
            messages.MatchAsked: partial(self._in_session, on_match),
            messages.LoadAsked: partial(self._in_session, on_load),
            messages.PrefetchAsked: partial(self._in_session, on_load),
            messages.SaveAsked: partial(self._in_session, on_save),
            messages.FlushAsked: self._on_flush,
            messages.TicketCancelled: self._on_cancelled,
            messages.LeaseReleased: self._on_released,
            messages.NamespaceReset: partial(recovery.on_reset, self.state),
            messages.ChunkLanded: partial(on_chunk_landed, self.state),
            messages.TransfersFinished: partial(on_transfers_finished, self.state),
            messages.BlocksFound: partial(recovery.on_blocks_found, self.state),
            messages.RecoveryFinished: partial(recovery.on_recovery_finished, self.state),
            messages.RecordsLost: partial(recovery.on_records_lost, self.state),
            messages.TierChanged: partial(recovery.on_tier_changed, self.state),
            messages.RequestAttached: partial(self._in_session, attached.on_attached),
            messages.RequestDetached: partial(self._in_session, attached.on_detached),
            messages.PagesAcknowledged: partial(self._in_session, attached.on_acknowledged),
            messages.HeatReported: partial(self._in_session, replays.on_heat),
            messages.WorkerGone: partial(attached.on_worker_gone, self.state),
            messages.RoomRestored: lambda event: self.state.levels[event.tier].restore(),
            messages.DrainStarted: self._on_drain,
            messages.TimePassed: lambda _: None,  # deadlines are looked at after every event
        }

    def handle(self, event: messages.Event) -> list[messages.Instruction]:
        """Take one event, give all instructions it leads to. Never fails on a legal event."""
        state = self.state
        assert event.now_ns >= state.now_ns, "time went backwards"
        state.now_ns = event.now_ns
        state.rows.short_pages = 0
        self._handlers[type(event)](event)
        if type(event) is not messages.ChunkLanded:  # the most frequent event, and one that gives nobody room
            self._pump()
        out, state.out = state.out, []
        return out

    def next_deadline_ns(self) -> int | None:
        """When `messages.TimePassed` is due, unless another event comes first."""
        state = self.state
        slices_left = (
            bool(state.relink)
            or state.staged_unseen  # and no other event may come that would serve them
            or any(reset.left for reset in state.resets)
            or any(level.drops_due(state.now_ns) for level in state.below)
            or any(flush.hungry(state.config.flush_in_flight_max) for flush in state.flushes.values())
        )
        if slices_left:
            return state.now_ns
        due_ns = [state.timers[0][0]] if state.timers else []
        if state.room_saves or state.room_loads or state.room_prefetches:
            due_ns += [level.ails_from_ns for level in state.below if level.ails_from_ns > state.now_ns]
        return min(due_ns, default=None)

    def story(self, key: BlockKey) -> list[messages.StoryEvent]:
        """What happened to this block, oldest first, as far back as the ring reaches."""
        return self.state.story.of(key)

    @property
    def counters(self) -> dict[tuple[str, str], int]:
        """Running totals by (name, label)."""
        return self.state.counters

    def _pump(self) -> None:
        state = self.state
        if state.relink:
            relink_slice(state)
        recovery.drop_again(state)
        if state.resets:
            recovery.pump_resets(state)
        if state.rows.going:
            leaving.free_going(state)
        if state.rows.wants:
            replays.serve_wants(state)
        if state.room_loads or state.room_prefetches:
            serve_room_loads(state)
        serve_demands(state)
        if state.flushes:
            pump_flushes(state)
            serve_demands(state)
        if state.room_saves:
            serve_room_saves(state)
        if state.below:
            clean_ahead(state)
        if state.timers and state.timers[0][0] <= state.now_ns:
            self._expire()
        if state.rows.by_id:
            replays.serve_hunches(state)
            leaving.make_room(state)
            attached.tell(state)

    def _expire(self) -> None:
        state = self.state
        for _ in range(TIMERS_PER_EVENT_MAX):
            if not state.timers or state.timers[0][0] > state.now_ns:
                return
            _, _, kind, subject = heapq.heappop(state.timers)
            if kind == "ticket" and subject in state.tickets:
                expire_ticket(state, state.tickets[subject])
            elif kind == "lease" and subject in state.lease_owner:
                session = state.sessions[state.lease_owner[subject]]
                let_go(state, session, session.leases[subject])
            elif kind == "ack" and subject in state.rows.by_id:
                attached.lose_late_ranks(state, state.rows.by_id[RequestId(subject)])
            elif kind == "replay" and subject in state.rows.by_id:
                replays.refuse_late(state, state.rows.by_id[RequestId(subject)])

    def _on_session_opened(self, event: messages.SessionOpened) -> None:
        state = self.state
        if len(state.sessions) >= state.config.sessions_max:
            why = f"{state.config.sessions_max} sessions are open (sessions_max): close some, or raise the limit"
            refuse(state, event.session, 0, 0, ErrorCode.LIMIT_EXCEEDED, why)
            return
        assert event.session not in state.sessions
        state.sessions[event.session] = Session(
            event.session, event.namespace.digest, event.shard, event.namespace, event.instance
        )
        recovery.introduce(state, state.index(event.namespace.digest, event.shard), event.namespace)

    def _on_session_closed(self, event: messages.SessionClosed) -> None:
        state = self.state
        session = state.sessions.get(event.session)
        if session is not None:
            end_session_tickets(state, session)
            attached.close_ranks(state, session)
            for lease in list(session.leases.values()):
                let_go(state, session, lease)
            del state.sessions[event.session]
            recovery.forget_idle_indexes(state)
        state.out.append(messages.EndSession(event.session))

    def _in_session(self, flow: Callable[[State, Any, Session], None], event: Any) -> None:
        session = self.state.sessions[event.session]
        recovery.introduce(self.state, self.state.index(session.namespace, session.shard), session.spec)
        flow(self.state, event, session)

    def _on_flush(self, event: messages.FlushAsked) -> None:
        state = self.state
        if event.to_tier not in state.demands:
            why = f"flush to {event.to_tier.name.lower()}: this daemon has no such tier below DRAM"
            refuse(state, event.session, 0, event.ticket, ErrorCode.TIER_UNAVAILABLE, why)
            return
        ticket = Ticket(event.ticket, event.session, messages.TicketKind.FLUSH, [], None, event.deadline_ns, [], 0)
        if open_ticket(state, ticket):
            blocks = recovery.namespace_blocks(state, event.namespace)
            state.flushes[ticket.id] = Flush(ticket, event.to_tier, blocks)

    def _on_cancelled(self, event: messages.TicketCancelled) -> None:
        ticket = self.state.tickets.get(event.ticket)
        if ticket is not None and ticket.session == event.session:
            finish_ticket(self.state, ticket, messages.Outcome.CANCELLED, "cancelled")

    def _on_released(self, event: messages.LeaseReleased) -> None:
        session = self.state.sessions[event.session]
        lease = session.leases.get(event.lease)
        if lease is None:
            why = f"lease {event.lease} is not held by this session: it was released, or its time ran out"
            refuse(self.state, event.session, event.request, 0, ErrorCode.UNKNOWN_LEASE, why)
            return
        let_go(self.state, session, lease)
        self.state.out.append(messages.RequestDone(event.session, event.request))

    def _on_drain(self, _: messages.DrainStarted) -> None:
        self.state.draining = True
