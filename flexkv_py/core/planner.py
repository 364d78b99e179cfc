"""The one door: `Planner.handle(event)` changes state and returns what is to be done.

It is pure and synchronous: no clock, no chance, no I/O. Each event first gets its own handler, then
`_pump` lets everything that waits try again, in the order of the links' priorities, every loop bounded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flexkv_py.core import messages, recovery
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.endings import on_chunk_landed, on_transfers_finished
from flexkv_py.core.links import relink_slice
from flexkv_py.core.matching import let_go, on_match
from flexkv_py.core.messages import TicketKind
from flexkv_py.core.placing import look_at_arrivals, on_load, on_save
from flexkv_py.core.sessions import Session, Ticket
from flexkv_py.core.state import State
from flexkv_py.core.tickets import end_session_tickets, expire_ticket, finish_ticket, open_ticket, refuse
from flexkv_py.errors import ErrorCode
from flexkv_py.keys import BlockKey
from flexkv_py.rows import attached, leaving, replays
from flexkv_py.rows.policy import RequestId
from flexkv_py.tenants import keeping, naming
from flexkv_py.tenants.tending import clean_ahead
from flexkv_py.tenants.turns import serve_waiting

TIMERS_PER_EVENT_MAX = 1024
Handlers = Mapping[type[Any], Callable[[Any], None]]


class Planner:
    """All state of the cache, and every decision about it. Extensions handle events of their own."""

    def __init__(self, config: PlannerConfig, extensions: Sequence[Callable[[State], Handlers]] = ()) -> None:
        self.state = State(config)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            messages.SessionOpened: self._on_session_opened,
            messages.SessionClosed: self._on_session_closed,
            messages.MatchAsked: partial(on_match, self.state),
            messages.LoadAsked: partial(on_load, self.state),
            messages.PrefetchAsked: partial(on_load, self.state),
            messages.SaveAsked: partial(on_save, self.state),
            messages.FlushAsked: self._on_flush,
            messages.TicketCancelled: self._on_cancelled,
            messages.LeaseReleased: self._on_released,
            messages.NamespaceReset: self._on_reset,
            messages.ChunkLanded: partial(on_chunk_landed, self.state),
            messages.TransfersFinished: partial(on_transfers_finished, self.state),
            messages.BlocksFound: partial(recovery.on_blocks_found, self.state),
            messages.RecoveryFinished: partial(recovery.on_recovery_finished, self.state),
            messages.RecordsLost: partial(recovery.on_records_lost, self.state),
            messages.TierChanged: partial(recovery.on_tier_changed, self.state),
            messages.RequestAttached: partial(attached.on_attached, self.state),
            messages.RequestDetached: partial(attached.on_detached, self.state),
            messages.PagesAcknowledged: partial(attached.on_acknowledged, self.state),
            messages.HeatReported: partial(replays.on_heat, self.state),
            messages.WorkerGone: partial(attached.on_worker_gone, self.state),
            messages.NamespacesNamed: partial(naming.on_named, self.state),
            messages.QuotaChanged: partial(naming.on_quota_changed, self.state),
            messages.RoomRestored: lambda event: self.state.levels[event.tier].restore(),
            messages.DrainStarted: self._on_drain,
            messages.TimePassed: lambda _: None,  # deadlines are looked at after every event
        }
        for extend in extensions:
            self._handlers |= extend(self.state)
        self.event_types = tuple(self._handlers)

    def handle(self, event: messages.Event) -> list[messages.Instruction]:
        """Take one event, give all instructions it leads to. Never fails on a legal event."""
        state = self.state
        assert event.now_ns >= state.now_ns, "time went backwards"
        state.now_ns = event.now_ns
        state.rows.short_pages = 0
        self._handlers[type(event)](event)
        if type(event) is not messages.ChunkLanded:  # the most frequent event, and one that gives nobody room
            self._pump()
            for chore in state.chores:
                chore()
        out, state.out = state.out, []
        return out

    def next_deadline_ns(self) -> int | None:
        """When `messages.TimePassed` is due, unless another event comes first: at once if slices of work are left."""
        state = self.state
        if state.more or state.relink or state.touches or state.arrivals or state.moving:
            return state.now_ns
        due_ns = [state.timers[0][0]] if state.timers else []
        if state.retention.seconds:
            due_ns += filter(None, [state.retention.next_ns()])
        if state.below and any(state.lines.values()):
            due_ns += [level.ails_from_ns for level in state.below if level.ails_from_ns > state.now_ns]
        return min(due_ns, default=None)

    def story(self, key: BlockKey) -> list[messages.StoryEvent]:
        """What happened to this block, oldest first, as far back as the ring reaches."""
        return [messages.StoryEvent(*event) for event in self.state.story if event[1] == key]

    @property
    def counters(self) -> dict[tuple[str, str], int]:
        """Running totals by (name, label)."""
        return self.state.counters

    def _pump(self) -> None:
        """Most events change nothing for most of these."""
        state = self.state
        state.more = False
        self._catch_up()
        if state.arrivals:
            look_at_arrivals(state)
        leaving.free_going(state)
        if state.rows.wants or state.rows.coming:
            replays.serve_wants(state)
        serve_waiting(state)
        clean_ahead(state)
        if state.timers and state.timers[0][0] <= state.now_ns:
            self._expire()
        if state.rows.by_id:
            replays.serve_hunches(state)
            leaving.make_room(state)
            attached.tell(state)

    def _catch_up(self) -> None:
        state = self.state
        if state.touches:
            state.touch_slice()
        attached.let_go(state)
        if state.relink:
            relink_slice(state)
        if state.moving:
            naming.move_slice(state)
        if state.retention.seconds:
            keeping.drop_expired(state)
        recovery.drop_again(state)
        if state.resets:
            recovery.pump_resets(state)

    def _expire(self) -> None:
        state = self.state
        for _ in range(TIMERS_PER_EVENT_MAX):
            if not state.timers or state.timers[0][0] > state.now_ns:
                return
            _, _, kind, subject = heapq.heappop(state.timers)
            if kind == "ticket" and subject in state.tickets:
                expire_ticket(state, state.tickets[subject])
            elif kind == "lease" and subject in state.leases:
                let_go(state, state.leases[subject])
            elif kind == "shrunk" and state.levels[messages.Tier(subject)].shrunk_until_ns <= state.now_ns:
                state.levels[messages.Tier(subject)].restore()
                state.more = True
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
        owner = naming.name(state, event.namespace.digest, event.tenant)
        owner.sessions += 1
        session = Session(event.session, event.namespace, event.shard, owner, event.instance)
        state.sessions[event.session] = session
        recovery.index_of(state, session)

    def _on_session_closed(self, event: messages.SessionClosed) -> None:
        state = self.state
        session = state.sessions.get(event.session)
        if session is not None:
            end_session_tickets(state, session)
            attached.close_ranks(state, session)
            for lease in list(session.leases.values()):
                let_go(state, lease)
            del state.sessions[event.session]
            session.owner.sessions -= 1
            naming.forget_idle(state)
        state.out.append(messages.EndSession(event.session))

    def _on_flush(self, event: messages.FlushAsked) -> None:
        state = self.state
        if event.to_tier not in state.demands:
            why = f"flush to {event.to_tier.name.lower()}: this daemon has no such tier below DRAM"
            refuse(state, event.session, 0, event.ticket, ErrorCode.TIER_UNAVAILABLE, why)
            return
        ticket = Ticket(event.ticket, event.session, TicketKind.FLUSH, [], None, event.deadline_ns, ack=event.to_tier)
        if open_ticket(state, ticket):
            whole = [index for (digest, _), index in state.indexes.items() if event.namespace in (None, digest)]
            ticket.left = [block for index in whole for block in index.blocks.values()]
            state.flushes[ticket.id] = ticket

    def _on_cancelled(self, event: messages.TicketCancelled) -> None:
        ticket = self.state.tickets.get(event.ticket)
        if ticket is not None and ticket.session == event.session:
            finish_ticket(self.state, ticket, messages.Outcome.CANCELLED, "cancelled")

    def _on_released(self, event: messages.LeaseReleased) -> None:
        lease = self.state.sessions[event.session].leases.get(event.lease)
        if lease is None:
            why = f"lease {event.lease} is not held by this session: it was released, or its time ran out"
            refuse(self.state, event.session, event.request, 0, ErrorCode.UNKNOWN_LEASE, why)
            return
        let_go(self.state, lease)
        self.state.out.append(messages.RequestDone(event.session, event.request))

    def _on_reset(self, event: messages.NamespaceReset) -> None:
        recovery.on_reset(self.state, event)
        attached.revoke_closed(self.state)

    def _on_drain(self, _: messages.DrainStarted) -> None:
        self.state.draining = True
