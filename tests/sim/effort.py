"""How much the planner may still do before somebody asks for more: a measure that falls with every write.

Moves between tiers can undo each other: a record is written and pushes out another, whose copy above must then be
written again, and so on. No single decision shows that, and no order of touches may cause it. So every state has a
*potential*, the sum of the table below. What comes from outside (a request, a fault, a tier that comes or goes) may
raise it. Nothing else may, and each write takes at least one off. So writes are bounded by what was asked for; and so
are drops, which need a record each, and promotions for staging, of which each that comes to nothing follows a write.

| what | weighs | for |
|---|---|---|
| a DRAM copy | 2 | a write below, and the SSD record that comes of it |
| an SSD record | 1 | a write to S3. Its block is promoted for that, and that DRAM copy weighs nothing |
| either, if it stands ready to go because of a record below | 0 | it need not be written again (`had_their_turn`) |
| a DRAM copy of a running request that is below, or being written there | 0 | that record stays as long as it runs |
| a block that a request wants below | 5, and 2 for a DRAM copy to be made | its write; 1 once that runs |
| a key that waits for room, or for another's fill | 8 | a DRAM copy and a demand, or copies that stood ready to go |
| a block that a failed step waits for | 1 | its SSD record may have stood ready to go, until it is read |
| a block a flush has not looked at, or an operation has not dealt with | 7 | a demand |

What is on its way to S3 when S3 goes down leaves a DRAM copy that was promoted for that; it may weigh from then on.
Besides, nothing is set aside for S3 only to be refused, and no wake-up that the planner asks for is in vain.
`World` tells this of every event; `plants` has the bugs that it is to find.
"""

from __future__ import annotations

from flexkv_py.core.blocks import Copy, CopyState
from flexkv_py.core.messages import (
    ChunkLanded,
    Event,
    Instruction,
    MoveKind,
    StartMove,
    TicketKind,
    Tier,
    TimePassed,
    TransfersFinished,
)
from flexkv_py.core.placement import is_below
from flexkv_py.core.planner import Planner
from flexkv_py.core.sessions import Ticket
from flexkv_py.core.state import State
from flexkv_py.core.transfers import Demand, Transfer, Wish
from flexkv_py.operating.operations import Operations
from tests.invariants import live_demands
from tests.sim.violation import Violation

WEIGHT_DRAM, WEIGHT_SSD, WEIGHT_DEMAND, WEIGHT_WRITTEN, WEIGHT_KEY = 2, 1, 5, 1, 8
SLICE_MIN = 16
"""The smallest number of things one event gets through, of what is done in slices."""
WAKES_MIN = 16
SLACK_PER_DEMAND = 3
"""A block on its way to one tier may meanwhile be written to another, or be pushed out of DRAM and promoted again."""


class Effort:
    """What one life of the planner may still do."""

    def __init__(self, planner: Planner, operations: Operations, blocks_max: int) -> None:
        """`blocks_max`: that can ever be."""
        self._planner = planner
        self._operations = operations
        self._blocks_max = blocks_max
        self._potential = 0
        self._expired = 0
        self._refused = 0  # staged blocks that did not reach S3
        self._slack = 0  # by how much the potential may yet grow before the next event from outside
        self._refusals_left = 0  # of blocks that are set aside for S3 by then
        self._wakes_max = WAKES_MIN  # as many as it may take to get through what there was at the first
        self._wakes = 0  # in a row, asked for at once, that led to nothing

    def note(self, event: Event, instructions: list[Instruction], *, at_once: bool) -> None:
        """After the planner has handled an event; `at_once` when it had asked to be woken now. Raises Violation."""
        state = self._planner.state
        writes = [move for move in instructions if type(move) is StartMove and move.kind is MoveKind.DEMOTE]
        operated = self._operated()
        potential = potential_of(state) + (WEIGHT_DEMAND + WEIGHT_DRAM) * operated
        refused = state.counters.get(("not_staged", "s3"), 0)
        grown, turned_away = potential + len(writes) - self._potential, refused - self._refused
        self._potential, self._refused = potential, refused
        expired = sum(count for (name, _), count in state.counters.items() if name == "expired")
        ended, self._expired = expired - self._expired, expired  # blocks whose time was over: asked for long ago
        if ended or not _is_inside(event):
            self._refusals_left = sum(want.staged is not None for want in live_demands(state))
            self._slack = (
                SLACK_PER_DEMAND * (_demanded(state) + operated + self._under_way())
                + WEIGHT_DRAM * self._refusals_left
                + WEIGHT_SSD * _pinned(state)
            )
        else:
            self._slack -= max(0, grown)
            self._refusals_left -= turned_away
        if self._slack < 0:
            block = writes[0].block if writes else None
            raise Violation(f"the planner spins: nobody asked, and it has {grown} more to do than before", block)
        if self._refusals_left < 0:
            raise Violation(f"the planner spins: {turned_away} blocks were set aside for S3 only to be refused")
        self._count_wakes(event, instructions, at_once)

    def _operated(self) -> int:
        """Blocks that operations have still to deal with, but for demands; of those that gather, all there can be."""
        total = 0
        for each in self._operations.running.values():
            total += self._blocks_max if each.gathering else len(each.left)
            total += sum(begun.ticket is None for begun in each.under_way)
        return total

    def _under_way(self) -> int:
        """Blocks that operations have begun with."""
        return sum(len(each.under_way) for each in self._operations.running.values())

    def _count_wakes(self, event: Event, instructions: list[Instruction], at_once: bool) -> None:
        if type(event) is ChunkLanded:
            return
        self._wakes = self._wakes + 1 if type(event) is TimePassed and at_once and not instructions else 0
        if self._wakes <= 1:
            self._wakes_max = WAKES_MIN + _slices(self._planner.state) + self._operated()
        if self._wakes > self._wakes_max:
            raise Violation(f"the planner spins: it woke {self._wakes} times in a row, and did nothing")


def _demanded(state: State) -> int:
    """Blocks that requests want, or will want, in a lower tier."""
    return sum(ticket.open + len(ticket.left) for ticket in state.tickets.values() if ticket.ack is not Tier.DRAM)


def _is_inside(event: Event) -> bool:
    """Whether an event only tells the planner that time passed, or that what it ordered has been done."""
    if type(event) is TransfersFinished:
        return all(result.fault is None for result in event.results)
    return type(event) in (TimePassed, ChunkLanded)


def potential_of(state: State) -> int:
    """See the table above."""
    paid = {row.copy for row in state.transfers.values() if _pays(row)}
    begun = {  # demands whose own writes run
        waiter
        for copy, waiters in state.waiters.items()
        for waiter in waiters
        if isinstance(waiter, Demand) and waiter.tier is copy.tier
    }
    total = 0
    for want in live_demands(state):
        dram, target = want.block.dram, want.block.copy_in(want.tier)
        if want.staged is None:
            promoted = dram is None and (target is None or target.state is not CopyState.READY)
            total += WEIGHT_WRITTEN if want in begun else WEIGHT_DEMAND + WEIGHT_DRAM * promoted
        elif want in begun:
            paid.add(want.staged)
        elif dram is not None and not dram.readers and (target is None or target.state is not CopyState.READY):
            paid.add(dram)
    for index in [*state.indexes.values(), *(index for reset in state.resets for index in reset.indexes)]:
        for block in index.blocks.values():
            total += _weight(state, block.dram, WEIGHT_DRAM, paid) + _weight(state, block.ssd, WEIGHT_SSD, paid)
    return total + _asked(state)


def _pays(row: Transfer) -> bool:
    """Whether a copy will stand ready to go once its write has ended; not if the record is known to be lost by then."""
    if row.kind is not MoveKind.DEMOTE or row.other is None or row.other.location < 0:
        return False
    return row.copy.readers == 1 and row.copy.block.uses == row.uses


def _asked(state: State) -> int:
    """What requests still wait for."""
    waiting = [entry for line in state.lines.values() for entry in line]
    waiting += [(ticket, position) for ticket in arrived(state) for position in range(ticket.seen, len(ticket.keys))]
    waiting += [
        (waiter.ticket, waiter.position)
        for waiters in state.waiters.values()
        for waiter in waiters
        if isinstance(waiter, Wish) and waiter.ticket.kind is TicketKind.SAVE
    ]
    total = WEIGHT_KEY * sum(not ticket.over and ticket.outcomes[position] is None for ticket, position in waiting)
    for row in state.transfers.values():
        if row.kind is TicketKind.SAVE and row.ticket is not None and row.ticket.ack is not Tier.DRAM:
            total += WEIGHT_DEMAND
    wants = [want for queue in (state.rows.coming, *state.rows.wants.values()) for want in queue]
    total += WEIGHT_SSD * sum(not want.reads for want in wants)
    return total + (WEIGHT_DEMAND + WEIGHT_DRAM) * sum(len(flush.left) for flush in state.flushes.values())


def _pinned(state: State) -> int:
    """Chunks that failed steps have, and must read once more if they yield them to steps that failed earlier."""
    waiting = (rank for request in state.rows.wants for rank in request.ranks.values())
    return sum(chunks.bit_count() for rank in waiting for chunks in rank.wanted.values())


def arrived(state: State) -> list[Ticket]:
    """Tickets with keys that were not yet looked at."""
    return [ticket for session in state.arrivals for ticket in session.arrived]


def _weight(state: State, copy: Copy | None, weight: int, paid: set[Copy]) -> int:
    if copy is None or copy.state is CopyState.DROPPED or copy in paid:
        return 0
    block = copy.block
    if copy.tier is Tier.DRAM and any(request.ranks for request in block.index.attached.get(block.key, ())):
        below = any(other.state is not CopyState.DROPPED for other in block.copies() if other is not copy)
        return 0 if below or block.index.closed else weight
    paid_for = is_below(block, copy.tier) or state.pushed_out.get(block) == block.uses
    return 0 if paid_for and copy.stands_ready else weight


def _slices(state: State) -> int:
    """How many events it may take to get through what is done in slices."""
    things = len(state.relink) + len(state.touches) + sum(len(waiting) for waiting in state.demands.values())
    things += sum(len(reset.left) for reset in state.resets)
    things += sum(len(level.undropped) for level in state.levels.values())
    ending = sum(1 + len(request.keys) + request.open + len(request._told) for request in state.rows.letting_go)
    keys = (
        ending
        + sum(len(line) for line in state.lines.values())
        + sum(1 + len(ticket.keys) for ticket in arrived(state))
    )
    return (
        keys + things // SLICE_MIN + sum(1 + len(flush.left) for flush in state.flushes.values())
    )  # one at a time, at worst
