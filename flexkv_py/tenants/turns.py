"""Whose turn it is when room has come free: lines of keys and of demands are served tenant by tenant, in slices.

What serving one of them takes, `loading`, `saving` and `demands` say. Called by the planner.
"""

from __future__ import annotations

from flexkv_py.core import loading, saving
from flexkv_py.core.blocks import CopyState
from flexkv_py.core.demands import finish_demand, serve
from flexkv_py.core.messages import LOAD, PREFETCH, SAVE, BlockCopy, Outcome, TicketKind, Tier
from flexkv_py.core.placement import write_may_start
from flexkv_py.core.state import State
from flexkv_py.core.tickets import finish_ticket
from flexkv_py.core.transfers import Demand
from flexkv_py.tenants.shelf import Tenant

DEMANDS_PER_EVENT_MAX = 32
FLUSH_SCAN_MAX = 1024


def serve_waiting(state: State) -> None:
    """Room may have come free: serve all who wait, the more urgent first."""
    loads, prefetches, saves = state.lines.values()
    if (loads.queues or prefetches.queues) and _serve_line(state, LOAD):
        _serve_line(state, PREFETCH)
    if state.below:
        _serve_demands(state)
    if state.flushes:
        _pump_flushes(state)
        _serve_demands(state)
    if saves.queues:
        _serve_line(state, SAVE)


def _serve_line(state: State, kind: TicketKind) -> bool:
    """Place waiting keys in order, until one must wait again. True when none is left.

    Tenants take turns, and whoever waits for his own quota alone holds up nobody else.
    """
    line = state.lines[kind]
    if not line:
        return True
    left, was_short, line.short = state.config.keys_per_event_max, line.short, False
    for owner in line.turns():
        left -= _serve_tenant(state, kind, owner, left)
        stuck = owner in line and left > 0
        line.end_turn(owner)
        if left <= 0 or (stuck and not owner.at_quota):
            line.short = bool(line) and (was_short or stuck)
            break
    state.more = state.more or (left <= 0 and bool(line))
    return not line


def _serve_tenant(state: State, kind: TicketKind, owner: Tenant, keys_max: int) -> int:
    """Place what one tenant has waiting, until it must wait again. Returns how many keys were placed."""
    line, place, placed = state.lines[kind], saving.place if kind is SAVE else loading.place, 0
    last, copies = None, list[BlockCopy]()
    while placed < keys_max and (first := line.first(owner)) is not None:
        ticket, position = first
        if last is not None and ticket is not last:
            loading.hand_out(state, last, copies)
            copies = []
        last = ticket
        if not ticket.over and ticket.outcomes[position] is None and not place(state, ticket, position, copies):
            break
        line.remove(owner, first)
        ticket.waiting -= 1
        placed += 1
    if last is not None:
        loading.hand_out(state, last, copies)
    return placed


def _serve_demands(state: State) -> None:
    """Start what may start now, in order, a bounded number per event."""
    if state.demands_abandoned:
        _forget_abandoned(state)
    for tier, waiting in state.demands.items():
        if not waiting.queues:
            continue
        left = DEMANDS_PER_EVENT_MAX
        for owner in waiting.turns():
            while left > 0 and (want := waiting.first(owner)) is not None:
                if not serve(state, tier, want):
                    _end_reached(state, tier, owner)
                    left *= write_may_start(state, state.levels[tier], want.block)  # or it is the tier that keeps all
                    break
                waiting.remove(owner, want)
                left -= 1
            waiting.end_turn(owner)
            if not left:
                break


def _end_reached(state: State, tier: Tier, owner: Tenant) -> None:
    """Demands behind one that waits for room end if their blocks are there already: held, those would be that room."""
    waiting = state.demands[tier]
    for want in waiting.first_few(owner, DEMANDS_PER_EVENT_MAX)[1:]:
        target = want.block.copy_in(tier)
        if target is not None and target.state is CopyState.READY:
            waiting.remove(owner, want)
            finish_demand(state, want, ok=True)


def _forget_abandoned(state: State) -> None:
    """Let go of blocks that only tickets which are over have asked for; held for nobody, they would block others."""
    state.demands_abandoned = False
    for waiting in state.demands.values():
        for want in waiting.discard(lambda want: want.ticket is not None and want.ticket.over):
            finish_demand(state, want, ok=False)


def _pump_flushes(state: State) -> None:
    """Keep each running flush at its number of demands; end it when nothing is left."""
    for ticket in list(state.flushes.values()):
        for _ in range(FLUSH_SCAN_MAX):
            if not ticket.left or ticket.open >= state.config.flush_in_flight_max:
                break
            block = ticket.left.pop()
            copy, wanted = block.copy_in(ticket.ack), not block.index.closed and not block.rule.skip_below
            if wanted and block.ready and (copy is None or copy.state is not CopyState.READY):
                ticket.open += 1
                state.want(Demand(block, ticket.ack, ticket, 0))
        else:
            state.more = True
        if not ticket.left and not ticket.open:
            detail = f"{ticket.failed} blocks could not be copied: {ticket.detail}" if ticket.failed else ""
            finish_ticket(state, ticket, Outcome.FAILED, detail)
