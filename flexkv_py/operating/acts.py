"""What an operation does with one block: begin, and end once a write or a read it began has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flexkv_py.core.blocks import Block, Copy, CopyState
from flexkv_py.core.messages import Priority, TicketKind, Tier
from flexkv_py.core.moves import evict
from flexkv_py.core.placement import Verdict, judge, refusal, source_below
from flexkv_py.core.room import had_their_turn, promote
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Demand
from flexkv_py.operating.messages import OperationKind
from flexkv_py.operating.pins import bytes_of

IN_USE = "in use, leased or pinned"
UNCUT = "of a namespace that no worker has declared since the start"


@dataclass(slots=True, eq=False)
class Begun:
    """A block that waits for the end of what was begun for it; `ticket` is whom a demand answers to.

    `bytes`: what it comes to if all goes well.
    """

    block: Block
    ticket: Ticket | None = None
    bytes: int = 0


@dataclass(slots=True)
class Done:
    """Dealt with; `bytes` is 0 when there was nothing to do."""

    bytes: int = 0


@dataclass(slots=True)
class Kept:
    """Left as it was."""

    why: str


class Act(Protocol):
    """One kind of operation on one tier."""

    def begin(self, block: Block) -> Done | Kept | Begun | None:
        """None: not now, for want of room or because others go first."""
        ...

    def end(self, begun: Begun) -> Done | Kept | None:
        """None: it still runs."""
        ...

    def abandon(self, begun: Begun, /) -> None:
        """Nobody waits for it any more."""
        ...


def act_of(state: State, kind: OperationKind, tier: Tier, deadline_ns: int) -> Act:
    """What an operation of this kind does."""
    if kind is OperationKind.PREFETCH:
        return Prefetch(state, deadline_ns)
    return Evict(state, tier) if kind is OperationKind.EVICT else Demote(state, tier)


class Demote:
    """Write a block into a lower tier, in stages if it must be read into DRAM first."""

    def __init__(self, state: State, tier: Tier) -> None:
        self._state, self._tier = state, tier

    def begin(self, block: Block) -> Done | Kept | Begun | None:
        target = block.copy_in(self._tier)
        if target is not None and target.state is CopyState.READY:
            return Done()
        if not block.ready:
            return Kept("not whole in any tier")
        if block.rule.skip_below:
            return Kept("saved to stay in DRAM (skip_below)")
        return self.demand(block, self._tier)

    def demand(self, block: Block, tier: Tier) -> Begun:
        """Have the block written there."""
        ticket = Ticket(0, 0, TicketKind.FLUSH, [], None, 0, ack=tier)
        ticket.open = 1
        self._state.want(Demand(block, tier, ticket, 0))
        self._state.more = True
        return Begun(block, ticket)

    def end(self, begun: Begun) -> Done | Kept | None:
        ticket = begun.ticket
        assert ticket is not None
        if ticket.open:
            return None
        return Kept(f"not written: {ticket.detail}") if ticket.failed else Done(begun.block.index.record_bytes)

    def abandon(self, begun: Begun) -> None:
        assert begun.ticket is not None
        begun.ticket.over = True
        self._state.demands_abandoned = True


class Evict(Demote):
    """Drop a copy; a block that would be lost by that, though a tier below takes it, is written there first."""

    def begin(self, block: Block) -> Done | Kept | Begun | None:
        state, level = self._state, self._state.levels[self._tier]
        copy = block.copy_in(self._tier)
        if copy is None or copy.state is not CopyState.READY:
            return Done()
        if not level.up:
            return Kept(f"in {level.word}, which is down")
        if level.drop_failed or level.dropping_bytes >= state.config.demotion_bytes_in_flight_max:
            return None
        if copy.readers or block.needed:
            return Kept(IN_USE)
        if judge(state, copy) is not Verdict.WRITE:
            return self._drop(copy)
        begun = self.demand(block, self._next_down(block))
        begun.bytes = bytes_of(copy)
        return begun

    def end(self, begun: Begun) -> Done | Kept | None:
        written, copy = super().end(begun), begun.block.copy_in(self._tier)
        if not isinstance(written, Done):
            return written
        return Done() if copy is None or copy.state is not CopyState.READY else self._drop(copy)

    def _drop(self, copy: Copy) -> Done | Kept:
        """Drop it, unless that would lose a block that a tier below is to take."""
        if copy.readers or copy.block.needed:
            return Kept(IN_USE)
        state, byte_count, verdict = self._state, bytes_of(copy), judge(self._state, copy)
        lower = [level for level in state.below if level.tier > copy.tier]
        if verdict is Verdict.NO_TIER and lower and copy.block.index.spec is None:
            return Kept(UNCUT)
        ails = any(not level.up or level.failing for level in lower)
        if not verdict.may_go or verdict is Verdict.FAULTS or (verdict is Verdict.NO_TIER and ails):
            return Kept("not written below: the tier there ails")
        if copy.tier is not Tier.DRAM:
            had_their_turn(state, copy)
        evict(state, copy, f"the operator asked; {verdict}")
        return Done(byte_count)

    def _next_down(self, block: Block) -> Tier:
        """Where demotion would take it; a block that must be written has such a tier."""
        state = self._state
        takers = [level for level in state.below if level.tier > self._tier and level.takes(block.index, state.now_ns)]
        return next(level.tier for level in takers if block.needed or not refusal(state, level, block))


class Prefetch:
    """Read a block into DRAM; loads go first."""

    def __init__(self, state: State, deadline_ns: int) -> None:
        self._state, self._deadline_ns = state, deadline_ns

    def begin(self, block: Block) -> Done | Kept | Begun | None:
        state, dram = self._state, block.dram
        if dram is not None and (dram.state is CopyState.FILLING or not dram.lacks):
            return self.end(Begun(block)) or Begun(block)
        source = source_below(state, block)
        if source is None or block.index.closed:
            return Kept("in no tier that is up")
        if block.index.spec is None:
            return Kept(UNCUT)
        if not state.frames.fits(block.index.frame_pages, block.index.chunk_count):
            return Kept("larger than DRAM")
        if state.lines[TicketKind.LOAD].short:
            return None
        chunks = block.index.full_mask if dram is None else dram.lacks
        if promote(state, block, source, chunks, Priority.PREFETCH, self._deadline_ns) is None:
            return None
        block.uses += 1
        state.tell(block.key, "promote", source.tier, "the operator asked")
        return Begun(block)

    def end(self, begun: Begun) -> Done | Kept | None:
        dram = begun.block.dram
        if dram is None or dram.lacks:
            return Kept("could not be read")
        if dram.state is CopyState.FILLING:
            return None
        self._state.touch(dram)
        return Done(bytes_of(dram))

    def abandon(self, _begun: Begun) -> None:
        return
