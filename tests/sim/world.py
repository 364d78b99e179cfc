"""One simulated world: the clock, the heap of what happens next, the daemon's lives, and the answers.

The loop is plain and synchronous: whatever is due next, a completion, an operation of the workload or a
deadline of the planner, happens, and virtual time jumps to it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from typing import Any

from xxhash import xxh3_64

from flexkv_py import damage
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import (
    AttachAnswered,
    BlockName,
    BlocksFound,
    ChangePages,
    EndSession,
    Event,
    FoundBlock,
    Instruction,
    LoseSession,
    MatchAnswered,
    NamespaceSpec,
    RecordsLost,
    RecoveryFinished,
    RefuseReplay,
    RequestDone,
    RequestRefused,
    SessionClosed,
    SessionOpened,
    StartCopies,
    StartMove,
    TicketFinished,
    Tier,
    TierChanged,
    TimePassed,
    TransferResult,
    TransfersFinished,
)
from flexkv_py.core.planner import Planner
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_py.operating.extension import Operating
from flexkv_tiers.base import FoundBatch
from flexkv_tiers.codec import chunk_checksum
from tests import invariants
from tests.sim.clients import Client, Lease, Ticket
from tests.sim.effort import Effort
from tests.sim.executor import Executor
from tests.sim.faults import MICROSECOND, MILLISECOND, Faults
from tests.sim.memory import FakeArena, WatchedFrames
from tests.sim.names import Namespace, chunks_of, make_namespaces
from tests.sim.oracle import Oracle
from tests.sim.rows import RowTraffic
from tests.sim.settings import make_config
from tests.sim.stores import Bucket, Disk
from tests.sim.tenants import Tenants
from tests.sim.violation import Violation
from tests.sim.whims import Whims
from tests.sim.wishes import Wishes

CHECK_EVERY_STEPS = 50
TIMER_MIN_NS = 500_000
FAIR_REFUSALS = (
    ErrorCode.LIMIT_EXCEEDED,
    ErrorCode.DRAINING,
    ErrorCode.TIER_UNAVAILABLE,
    ErrorCode.UNKNOWN_LEASE,
)
SHARDS = 2
STORE_SLACK_BYTES = 8 * ALIGN_BYTES
"""Stores have a little more room than the planner believes, as disks do."""


class World:
    """See the module's docstring. A step is one event given to the planner."""

    planner: Planner
    executor: Executor
    _ended: list[tuple[TransferResult, StartMove | None]]
    """Results the planner has not heard of yet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.namespaces = make_namespaces(self.chance)
        self._row_chance = random.Random(seed)  # its own: worlds without workers of the row path stay as they are
        self._whims = self._row_chance.random() < 0.4
        self._wish_chance = random.Random(seed)  # likewise
        self._wish_gap_ns = self._wish_chance.choice((0, 0, 200, 2000)) * MICROSECOND
        self._row_gap_ns = self._row_chance.choice((0, 0, 100, 1000)) * MICROSECOND
        specs = [space.spec for space in self.namespaces]
        self.tenants = Tenants(seed, specs)
        self.config: PlannerConfig = make_config(self.chance, self._row_chance, specs, self.tenants)
        self.faults = Faults(self.chance)
        self.stores: dict[Tier, Disk | Bucket] = {}
        if Tier.SSD in self.config.tiers:
            self.stores[Tier.SSD] = Disk(self.config.ssd_bytes + self.chance.choice((0, STORE_SLACK_BYTES, 1 << 20)))
        if Tier.S3 in self.config.tiers:
            self.stores[Tier.S3] = Bucket(1 << 40)
        self.parents = {
            key: space.parent(chain, at)
            for space in self.namespaces
            for chain in space.chains
            for at, key in enumerate(chain)
        }
        self.now_ns = 0
        self.steps = 0
        self.life = 0
        self.oracle = Oracle(self)
        self.digest = xxh3_64()
        self._specs = {space.digest: space.spec for space in self.namespaces}
        self.recompute: Callable[[Client, list[BlockKey]], None] = lambda _client, _keys: None
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._numbers = 0
        self._down: set[Tier] = set()
        self._begin_life()

    # ------------------------------------------------------------ time and steps

    def after(self, delay_ns: int, then: Callable[..., None], *details: Any, outlives: bool = False) -> None:
        """Do something later, in this life of the daemon or, if it `outlives` it, whatever happens."""
        self._pushed += 1
        life = 0 if outlives else self.life
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._pushed, life, then, details))

    def tick(self) -> bool:
        """Let the next thing happen. False when nothing is left that could."""
        due = self.planner.next_deadline_ns()
        if due is not None:
            due = max(due, self.now_ns + TIMER_MIN_NS)
        if self._heap and (due is None or self._heap[0][0] <= due):
            when, _, life, then, details = heapq.heappop(self._heap)
            if life in (0, self.life):
                self.now_ns = when
                then(*details)
            return True
        if due is None:
            return False
        self.now_ns = due
        self.post(TimePassed(due))
        return True

    def post(self, event: Event) -> None:
        """One step: the planner handles an event, and its instructions are carried out."""
        self.steps += 1
        due = self.planner.next_deadline_ns()
        at_once = due is not None and due <= self.planner.state.now_ns
        instructions = self.planner.handle(event)
        self.effort.note(event, instructions, at_once=at_once)
        self.tenants.check(self, event)
        if instructions:
            self.digest.update(repr(instructions).encode())
        for instruction in instructions:
            self._answers[type(instruction)](instruction)
        if type(event) is SessionClosed:
            self.oracle.adopt_hits()
        if self.steps % CHECK_EVERY_STEPS == 0:
            self.check()

    def check(self) -> None:
        """The whole state and all ledgers."""
        invariants.check(self.planner)
        self.oracle.check_ledger()
        self._check_orders()
        self.rows.check()
        self.wishes.check()

    def _check_orders(self) -> None:
        """Each list, walked from its oldest, leads to its newest and has as many copies as it says."""
        for level in self.planner.state.levels.values():
            for order in (order for shelf in level.shelves for order in shelf.lists):
                count, last, copy = 0, None, order.oldest
                while copy is not None and count <= order.count:
                    if copy.queue is not order or copy.older is not last:
                        raise Violation(f"an order of {level.tier.name} is broken", copy.block.name)
                    count, last, copy = count + 1, copy, copy.newer
                if count != order.count or last is not order.newest:
                    raise Violation(f"an order of {level.tier.name} has {count} copies and counts {order.count}")

    def next_number(self) -> int:
        """Tickets, sessions and requests never share a number."""
        self._numbers += 1
        return self._numbers

    # ---------------------------------------------------------------- transfers

    def finish(self, result: TransferResult, move: StartMove | None = None) -> None:
        """A transfer has ended; the planner hears of it with others that end at about the same time."""
        if not self._ended:
            self.after(self.chance.choice((0, 0, 5, 200)) * MICROSECOND, self._tell_ended)
        self._ended.append((result, move))

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        for result, move in ended:
            if move is not None:
                self.oracle.told(move, result.fault)
        self.post(TransfersFinished([result for result, _ in ended], self.now_ns))

    def copies_ended(self, ticket: Ticket) -> None:
        ticket.copies -= 1
        if ticket.over and not ticket.copies:
            ticket.client.let_go(ticket)

    # ------------------------------------------------------------------ answers

    def _match_answered(self, answer: MatchAnswered) -> None:
        client, keys, shards, then = self.asked.pop(answer.request)
        self.oracle.matched(client, answer, keys, shards)
        then(answer)

    def _ticket_finished(self, told: TicketFinished) -> None:
        ticket = self.tickets[told.ticket]
        if ticket.over:
            raise Violation(f"ticket {told.ticket} was ended twice")
        if ticket.keys:
            self.oracle.finished(ticket, told)
        ticket.outcomes = told.outcomes
        self._end_ticket(ticket)

    def _end_ticket(self, ticket: Ticket) -> None:
        """The client goes on: it may write over the pages of a save at once, copies running or not."""
        ticket.over = True
        ticket.client.tickets.pop(ticket.number, None)
        if ticket.kind.value == "save":
            for slot in ticket.slots:
                ticket.client.scribble(slot)
        if not ticket.copies:
            ticket.client.let_go(ticket)

    def _request_done(self, done: RequestDone) -> None:
        _, then = self.requests.pop(done.request)
        then()

    def _request_refused(self, refused: RequestRefused) -> None:
        attach = self.refused.pop(refused.request, None)
        if attach is not None:
            attach(refused.code)
        elif refused.code not in FAIR_REFUSALS:
            raise Violation(f"a legal request is refused: {refused.code}: {refused.message}")
        if refused.ticket:
            self._end_ticket(self.tickets[refused.ticket])
        elif refused.request:
            self.asked.pop(refused.request, None)
            self.requests.pop(refused.request, None)
        else:
            self.clients.pop(refused.session).alive = False

    def _session_ended(self, ended: EndSession) -> None:
        assert not self.clients[ended.session].alive
        del self.clients[ended.session]

    # ----------------------------------------------------------------- sessions

    def open_session(self, namespace: Namespace, shard: int, instance: str = "") -> Client:
        number = self.next_number()
        client = self.clients[number] = Client(number, namespace, shard)
        tenant = self.tenants.tenant(namespace.digest)
        self.post(SessionOpened(number, namespace.spec, shard, self.now_ns, instance, tenant))
        return client

    def close_session(self, client: Client) -> None:
        """The socket is gone, whatever was going on."""
        client.alive = False
        tickets = list(client.tickets.values())
        self.post(SessionClosed(client.number, self.now_ns))
        for ticket in tickets:
            if not ticket.over:
                self._end_ticket(ticket)
        self.rows.closed(client)

    # -------------------------------------------------------------------- tiers

    def is_down(self, tier: Tier) -> bool:
        return tier in self._down

    def set_tier(self, tier: Tier, *, up: bool) -> None:
        if up is (tier not in self._down):
            return
        (self._down.discard if up else self._down.add)(tier)
        self.post(TierChanged(tier, up, "" if up else "planned", self.now_ns))

    def reclaim(self, tier: Tier) -> None:
        """A store lets go of a record by itself and tells at once, or a save could be acknowledged for what is gone."""
        lost = self.stores[tier].reclaim(self.chance)
        if lost is not None:
            self.oracle.hurt(lost.block)
            self.post(RecordsLost(tier, [lost], "planned", self.now_ns))

    def another_daemon_writes(self, block: BlockName) -> None:
        """A daemon elsewhere puts a block into the bucket, and ours is told of it."""
        chunks = self.right(block)
        checksums = [chunk_checksum(block.key, number, chunk) for number, chunk in enumerate(chunks)]
        self.stores[Tier.S3].write(block, chunks, checksums)
        self.oracle.appeared(block)
        record_bytes = ALIGN_BYTES + sum(map(len, chunks))
        found = [FoundBlock(block.key, block.parent, 0)]
        self.post(BlocksFound(Tier.S3, block.namespace, block.shard, record_bytes, found, self.now_ns))

    # -------------------------------------------------------------------- lives

    def _begin_life(self) -> None:
        self.life += 1
        self.arena = FakeArena()
        self.executor = Executor(self, self.arena)
        self.planner = Planner(self.config, [self._extend])
        self.planner.state.frames = WatchedFrames(
            self.config.segment_bytes, self.config.dram_segments, self.arena.given_back
        )
        if self._whims:
            self.planner.state.rows.policy = Whims(self._row_chance)
        self.effort = Effort(self.planner, self.operating.operations, SHARDS * len(self.parents))
        self._ended = []
        self.clients: dict[int, Client] = {}
        self.tickets: dict[int, Ticket] = {}
        self.asked: dict[int, tuple[Client, list[BlockKey], tuple[int, ...], Callable[[MatchAnswered], None]]] = {}
        self.requests: dict[int, tuple[Client, Callable[[], None]]] = {}
        self.refused: dict[int, Callable[[ErrorCode], None]] = {}
        self.rows = RowTraffic(self, self._row_chance, 0 if self.faults.stopped else self._row_gap_ns, self.recompute)
        self.wishes = Wishes(self, self._wish_chance, 0 if self.faults.stopped else self._wish_gap_ns)
        self.recovering = list(self.stores)
        self._answers: dict[type[Instruction], Callable[[Any], None]] = {
            StartMove: self.executor.start_move,
            StartCopies: self.executor.start_copies,
            MatchAnswered: self._match_answered,
            TicketFinished: self._ticket_finished,
            RequestDone: self._request_done,
            RequestRefused: self._request_refused,
            EndSession: self._session_ended,
            AttachAnswered: self.rows.answered,
            ChangePages: self.rows.changed,
            RefuseReplay: self.rows.refused,
            LoseSession: self.rows.lost,
            **self.wishes.answers(),
        }
        self.tenants.begin_life(self)
        for tier, store in self.stores.items():
            if tier in self._down:
                self.post(TierChanged(tier, False, "planned", self.now_ns))
            self.after(self.chance.choice((0, 1, 20)) * MILLISECOND, self._read_in, tier, store.pages())

    def _extend(self, state: State) -> Mapping[type[Any], Callable[[Any], None]]:
        self.operating = Operating(state)
        return {**self.operating.handlers(), **damage.handlers(state)}

    def crash(self) -> None:
        """SIGKILL: DRAM, sessions and all that ran are gone; a record being written may be torn, an object there."""
        disk = self.stores.get(Tier.SSD)
        for move, data, checksums in self.executor.torn():
            if self.chance.random() < 0.5:
                continue
            if isinstance(disk, Disk) and move.tier is Tier.SSD:
                disk.tear(move.block, data, checksums, self.chance)
            else:
                self.stores[move.tier].write(move.block, data, checksums)
            self.oracle.written(move)
        for store in self.stores.values():
            store.crash(self.chance)
        self.oracle.restarted()
        self._begin_life()

    def _read_in(self, tier: Tier, pages: Any) -> None:
        """One more batch of what a tier still has; traffic goes on meanwhile."""
        batches: list[FoundBatch] | None = next(pages, None)
        if batches is None:
            self.recovering.remove(tier)
            self.post(RecoveryFinished(tier, self.now_ns))
            self.oracle.check_recovered(tier)
            return
        self.after(self.chance.choice((0, 100, 2000)) * MICROSECOND, self._tell_found, tier, pages, batches)

    def _tell_found(self, tier: Tier, pages: Any, batches: list[FoundBatch]) -> None:
        for batch in batches:
            self.post(BlocksFound(tier, batch.namespace, batch.shard, batch.record_bytes, batch.blocks, self.now_ns))
        self._read_in(tier, pages)

    # ------------------------------------------------------------------ look-ups

    def spec(self, namespace: NamespaceDigest) -> NamespaceSpec:
        return self._specs[namespace]

    def name(self, client: Client, key: BlockKey, shard: int | None = None) -> BlockName:
        shard = client.shard if shard is None else shard
        return BlockName(client.namespace.digest, shard, key, self.parents[key])

    def right(self, block: BlockName) -> list[bytes]:
        """The bytes a block must have, by chunk."""
        return chunks_of(block, self._specs[block.namespace].chunk_bytes)

    def is_ready(self, block: BlockName) -> bool:
        index = self.planner.state.indexes.get((block.namespace, block.shard))
        found = None if index is None else index.blocks.get(block.key)
        return found is not None and found.ready

    def leases(self) -> list[Lease]:
        return [lease for client in self.clients.values() for lease in client.leases.values()]
