"""Blocks that must reach a lower tier: acknowledged saves, flushes, staging from SSD to S3.

A demand holds its block from its making to its end. It is served when a write may start; a block that
is in DRAM no more is promoted first, so S3 is reached from SSD through DRAM, in stages.
"""

from __future__ import annotations

from flexkv_py.core.blocks import FILLING, READY, Copy
from flexkv_py.core.messages import SAVE, Outcome, Priority, TicketKind, Tier
from flexkv_py.core.moves import start_demotion, unpin
from flexkv_py.core.placement import being_reset, source_below, write_may_start
from flexkv_py.core.room import Room, make_room, promote
from flexkv_py.core.state import Level, State
from flexkv_py.core.tickets import settle_key
from flexkv_py.core.transfers import Demand

DEMAND_TRIES_MAX = 3


def serve(state: State, tier: Tier, want: Demand) -> bool:
    """True when the demand has ended or now waits on a copy; False when it must wait for room."""
    block, level = want.block, state.levels[tier]
    target = block.copy_in(tier)
    if target is not None and target.state is READY:
        finish_demand(state, want, ok=True)
        return True
    if target is not None and target.state is FILLING:
        state.wait_on(target, want)
        return True
    ails = level.failing and not write_may_start(state, level, block)
    if (why := _hopeless(level, want, state.now_ns)) or (ails and want.ticket is None):  # staging waits for nobody
        finish_demand(state, want, ok=False, why=why)
        return True
    if being_reset(state, block):
        finish_demand(state, want, ok=False, why="the namespace is being reset, and its old records are not gone yet")
        return True
    if target is not None or not write_may_start(state, level, block):
        return False
    return _stage(state, tier, want)


def _hopeless(level: Level, want: Demand, now_ns: int) -> str:
    """Why no waiting would help; empty when it may."""
    if not want.block.ready or want.block.index.closed:
        return "the block was lost meanwhile: save it again"
    return level.hopeless(want.block.index) or (level.last_fault if level.is_full(now_ns) else "")


def _stage(state: State, tier: Tier, want: Demand) -> bool:
    block, dram = want.block, want.block.dram
    if make_room(state, state.levels[tier], block.index) is not Room.NOW:
        return False  # before anything is promoted for it: two demands would push each other out of DRAM
    if dram is not None and dram.lacks and dram.state is FILLING:
        return False
    if dram is None or dram.lacks:
        source = source_below(state, block)
        if source is None or block.index.spec is None:
            finish_demand(state, want, ok=False, why="no tier that is up can supply the block")
            return True
        chunks = block.index.full_mask if dram is None else dram.lacks
        dram = promote(state, block, source, chunks, Priority.WRITE_BEHIND)
        if dram is None:
            return False
    if dram.state is FILLING:
        state.wait_on(dram, want)
        return True
    saved = want.ticket is not None and want.ticket.kind is SAVE
    priority = Priority.SAVE if saved else Priority.WRITE_BEHIND
    state.wait_on(start_demotion(state, block, tier, priority), want)
    state.tell(block.key, "demote", tier, "demanded")
    return True


def demand_heard(state: State, want: Demand, copy: Copy, *, ok: bool, why: str = "") -> None:
    """The copy a demand waited on has ended: reached, one stage further, or failed."""
    reached, asked = copy.tier is want.tier, want.ticket is not None and not want.ticket.over
    if ok and not reached:
        line = state.demands[want.tier]
        line.put_first(want.block.index.owner, want)  # staged into DRAM: next, before it can be evicted again
    elif reached and not ok and asked and want.tries < DEMAND_TRIES_MAX:
        want.tries += 1
        state.demands[want.tier].append(want.block.index.owner, want)  # a passing fault; the tier pauses first
    else:
        finish_demand(state, want, ok=ok, why=why)


def finish_demand(state: State, want: Demand, *, ok: bool, why: str = "") -> None:
    """Let go of the block and tell whoever asked."""
    block = want.block
    block.holds -= 1
    assert block.holds >= 0
    if want.staged is not None:
        unpin(state, want.staged, cold=ok)
    ticket = want.ticket
    if ticket is None:
        if not ok:
            state.tell(block.key, "not staged", want.tier, why)
            state.count("not_staged", want.tier.name.lower())
    elif ticket.kind is TicketKind.FLUSH:
        ticket.open -= 1
        ticket.stored += ok
        ticket.failed += not ok
        ticket.detail = ticket.detail if ok else why
        state.more = True
    else:
        if not ok:
            ticket.detail = f"not stored in {want.tier.name.lower()}: {why}"
        settle_key(state, ticket, want.position, Outcome.STORED if ok else Outcome.REFUSED)
