"""What was promised to whom, seen from outside the planner, and whether it is kept.

The oracle hears what the world does (saves that really ended, records really written, faults that really
happened) and judges what the planner says. A miss is always legal; it looks for wrong hits, phantoms,
broken acknowledgements, lost leases and ledgers that do not add up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from flexkv_py.core.blocks import CopyState
from flexkv_py.core.messages import (
    BlockName,
    Fault,
    MatchAnswered,
    MoveKind,
    Outcome,
    StartMove,
    TicketFinished,
    TicketKind,
    Tier,
)
from flexkv_py.keys import BlockKey, NamespaceDigest
from tests.sim.clients import Client, Lease, Ticket
from tests.sim.faults import SECOND
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

FORECAST_AGE_NS_MAX = 5 * SECOND
"""How long a read may be past to count for what the next ones will take."""

SURE = (Outcome.STORED, Outcome.PRESENT)


class Oracle:
    """`moment` counts up with everything that happens; all memory of the past is by moments."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.moment = 0
        self._save_begun: dict[tuple[int, int], int] = {}  # by ticket and position
        self._saved: dict[BlockName, int] = {}  # when the newest good save of the block began
        self._reset: dict[NamespaceDigest, tuple[int, int]] = {}  # the newest answered reset: asked, answered
        self._resets_asked: dict[NamespaceDigest, int] = {}
        self._promised: dict[tuple[Tier, BlockName], int] = {}  # acknowledged there, and since when
        self._dropped: dict[tuple[Tier, BlockName], int] = {}  # when its record was last ordered away
        self._hurt: dict[BlockName, int] = {}  # when it last lost a record to a fault
        self._landed: dict[tuple[Tier, BlockName], int] = {}  # when a chunk of it last came from there
        self._written: dict[tuple[Tier, BlockName], int] = {}
        self._read_ns = -FORECAST_AGE_NS_MAX
        self.hits: Counter[Tier] = Counter()
        self.moves: Counter[tuple[MoveKind, Tier]] = Counter()

    def now(self) -> int:
        self.moment += 1
        return self.moment

    # -------------------------------------------------- what the world reports

    def save_started(self, ticket: Ticket, position: int) -> None:
        self._save_begun[ticket.number, position] = self.now()

    def save_ended(self, ticket: Ticket, position: int, fault: Fault | None) -> None:
        begun = self._save_begun.pop((ticket.number, position))
        if fault is None and not ticket.over and ticket.client.alive:
            block = self._world.name(ticket.client, ticket.keys[position])
            self._saved[block] = max(begun, self._saved.get(block, 0))

    def landed(self, move: StartMove) -> None:
        self._landed[move.tier, move.block] = self.now()

    def written(self, move: StartMove) -> None:
        self._written[move.tier, move.block] = self.now()

    def appeared(self, block: BlockName) -> None:
        """Another daemon saved this block and wrote it to the bucket."""
        self._saved[block] = self._written[Tier.S3, block] = self.now()

    def told(self, move: StartMove, fault: Fault | None) -> None:
        """The planner is about to hear how a move ended."""
        if fault is None:
            self.moves[move.kind, move.tier] += 1
            if move.kind is MoveKind.PROMOTE:
                self._read_ns = self._world.now_ns
        elif move.kind is MoveKind.PROMOTE and fault in (Fault.CORRUPT, Fault.MISSING):
            self.hurt(move.block)

    def hurt(self, block: BlockName) -> None:
        """A record of this block is worthless: whatever was promised of it is void."""
        self._hurt[block] = self.now()
        for tier in (Tier.SSD, Tier.S3):
            self._promised.pop((tier, block), None)

    def was_hurt(self, block: BlockName, since: int) -> bool:
        """Whether it lost a record to a fault since that moment."""
        return self._hurt.get(block, 0) > since

    def drop_started(self, move: StartMove) -> None:
        """Dropping what was promised needs a reason in the block's story."""
        store = self._world.stores[move.tier]
        if move.tier is Tier.SSD and store.places.get(move.block, move.location) != move.location:
            return  # an older record of a block that has been written anew
        self._dropped[move.tier, move.block] = self.now()
        since = self._promised.pop((move.tier, move.block), None)
        if since is None:
            return
        told = [event.what for event in self._world.planner.story(move.block.key) if event.tier is move.tier]
        if "evict" not in told and "fault" not in told:
            raise Violation(f"the record acknowledged in {move.tier.name} is dropped without a story", move.block)

    def reset_asked(self, namespace: NamespaceDigest) -> None:
        self._resets_asked[namespace] = self.now()

    def was_reset(self, namespace: NamespaceDigest, since: int) -> bool:
        """Whether somebody asked to forget a namespace since that moment."""
        return self._resets_asked.get(namespace, 0) > since

    def reset_answered(self, namespace: NamespaceDigest, asked: int) -> None:
        if asked > self._reset.get(namespace, (0, 0))[0]:
            self._reset[namespace] = (asked, self.now())

    def adopt_hits(self) -> None:
        """Tickets of a dead session end in silence; their hits are the planner's word alone."""
        for tier in self._world.config.tiers:
            self.hits[tier] = self._world.planner.counters.get(("hits", tier.name.lower()), 0)

    def restarted(self) -> None:
        """A new life counts from zero."""
        self.hits.clear()
        self.moves.clear()
        self._read_ns = -FORECAST_AGE_NS_MAX
        self._save_begun.clear()

    # ---------------------------------------------------- what the planner says

    def matched(self, client: Client, answer: MatchAnswered, keys: list[BlockKey], shards: tuple[int, ...]) -> None:
        """No block of the answer may be one that was never saved, or was forgotten."""
        if answer.length > len(keys) or sum(run.count for run in answer.runs) != answer.length:
            raise Violation(f"a match of {len(keys)} keys answered {answer.length} in runs {answer.runs}")
        for shard in shards:
            for key in keys[: answer.length]:
                self._check_known(self._world.name(client, key, shard), self.moment)

    def _check_known(self, block: BlockName, asked: int) -> None:
        """A hit asked for at this moment must be of a block saved after every reset answered before."""
        saved = self._saved.get(block)
        if saved is None:
            raise Violation("a hit on a block that nobody ever saved to the end", block)
        reset_asked, reset_answered = self._reset.get(block.namespace, (0, 0))
        if saved < reset_asked and reset_answered <= asked:
            raise Violation("a phantom: the block was forgotten by a reset and is back", block)

    def finished(self, ticket: Ticket, told: TicketFinished) -> None:
        if len(told.outcomes) != len(ticket.keys):
            raise Violation(f"a {ticket.kind} of {len(ticket.keys)} keys has {len(told.outcomes)} outcomes")
        for position, outcome in enumerate(told.outcomes):
            block = self._world.name(ticket.client, ticket.keys[position])
            if ticket.kind is TicketKind.SAVE and outcome in SURE:
                self._acknowledged(ticket, block)
            elif ticket.kind is TicketKind.LOAD and outcome is Outcome.LOADED:
                self._check_loaded(ticket, position, block, Tier(told.tiers[position]))
            elif outcome is Outcome.LATE and self._world.now_ns < ticket.deadline_ns:
                self._check_given_up(block)

    def _acknowledged(self, ticket: Ticket, block: BlockName) -> None:
        if ticket.ack is Tier.DRAM:
            return
        at = (ticket.ack, block)
        dropped = self._dropped.get(at, 0)
        if self._world.stores[ticket.ack].holds(block):
            if self._written[at] > max(dropped, self._hurt.get(block, 0)):
                self._promised[at] = ticket.opened  # some keys are settled long before their ticket ends
        elif max(self._hurt.get(block, 0), dropped) < ticket.opened:
            raise Violation(f"acknowledged in {ticket.ack.name}, but no record is there", block)

    def _check_given_up(self, block: BlockName) -> None:
        """A load is given up before its deadline only on the word of reads that ended lately."""
        if self._world.now_ns - self._read_ns > FORECAST_AGE_NS_MAX:
            raise Violation("a load is told late ahead of time, though nothing was read for long", block)

    def _check_loaded(self, ticket: Ticket, position: int, block: BlockName, tier: Tier) -> None:
        self._check_known(block, ticket.opened)
        slot = ticket.client.slots[ticket.slots[position]]
        if slot != self._world.right(block):
            raise Violation("told to be loaded, but not all of its bytes are in the worker", block)
        self.hits[tier] += 1
        if tier is not Tier.DRAM and self._landed.get((tier, block), 0) < ticket.opened:
            raise Violation(f"told to come from {tier.name}, which read nothing since", block)

    # ------------------------------------------------------------ at quiet times

    def check_lease(self, lease: Lease, answer: MatchAnswered) -> None:
        """What is leased stays usable, unless a fault or a reset took it."""
        if answer.length >= len(lease.keys):
            return
        names = [self._world.name(lease.client, key, shard) for shard in lease.shards for key in lease.keys]
        excused = self._resets_asked.get(lease.client.namespace.digest, 0) > lease.taken
        excused = excused or any(self._hurt.get(name, 0) > lease.taken for name in names)
        excused = excused or any(self._world.is_down(tier) for tier in self._world.stores)
        if not excused:
            lost = next((name for name in names if not self._world.is_ready(name)), names[answer.length])
            raise Violation(f"a lease of {len(lease.keys)} blocks is good for {answer.length}", lost)

    def check_ledger(self) -> None:
        """Counters of the planner are what the world has seen."""
        counters = self._world.planner.counters
        for tier in self._world.config.tiers:
            word = tier.name.lower()
            for name, seen in (
                ("hits", self.hits[tier]),
                ("promotions", self.moves[MoveKind.PROMOTE, tier]),
                ("demotions", self.moves[MoveKind.DEMOTE, tier]),
            ):
                counted = counters.get((name, word), 0)
                if counted != seen:
                    raise Violation(f"{counted} {name} of {word} are counted, {seen} were seen")

    def promised(self) -> list[tuple[Tier, BlockName]]:
        """Acknowledged below DRAM and not void, nor forgotten by a reset since."""
        return [
            (tier, block)
            for (tier, block), moment in self._promised.items()
            if moment > self._resets_asked.get(block.namespace, 0)
        ]

    def check_recovered(self, tier: Tier) -> None:
        """After recovery every block acknowledged in the tier is known to be there."""
        for at, block in self.promised():
            if at is not tier:
                continue
            index = self._world.planner.state.indexes.get((block.namespace, block.shard))
            found = None if index is None else index.blocks.get(block.key)
            copy = None if found is None else found.copy_in(tier)
            if copy is None or copy.state is CopyState.DROPPED:
                raise Violation(f"acknowledged in {tier.name} in an earlier life, but not found again", block)
