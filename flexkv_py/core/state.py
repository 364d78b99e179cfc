"""Everything the planner knows, and the few primitive changes all flows share.

Only `Planner.handle` reaches this, through the flow modules. `out` collects the instructions of the
event being handled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from flexkv_py.core.blocks import FILLING, Block, Copy, DramCopy, Index
from flexkv_py.core.budget import WriteBudget
from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.forecast import Forecast
from flexkv_py.core.frames import FramePool
from flexkv_py.core.history import History
from flexkv_py.core.messages import BlockName, Fault, Instruction, TicketKind, Tier, TransferResult
from flexkv_py.core.policies import POLICIES
from flexkv_py.core.sessions import Lease, Session, Ticket
from flexkv_py.core.transfers import Demand, InFlight, Reset, Transfer, Waiter
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_py.rows.table import Requests
from flexkv_py.tenants.line import Line
from flexkv_py.tenants.ranking import Ranking
from flexkv_py.tenants.registry import Registry
from flexkv_py.tenants.retention import Retention
from flexkv_py.tenants.shelf import Shelf, Tenant

NOT_THE_TIERS = (Fault.TOO_LONG, Fault.CORRUPT)
"""Faults of a write that say nothing of the tier: what was to be written was not as it should be."""
WRITE_PAUSE_NS_MIN = 50_000_000
WRITE_PAUSE_NS_MAX = 5_000_000_000
WRITE_FAULTS_IN_ROW_MAX = 3
S3_PATIENCE_NS = 250_000_000
"""Without the end of any write for so long, S3 is taken for sick by those who need room."""
TOUCHES_PER_EVENT_MAX = 64
LINES = (TicketKind.LOAD, TicketKind.PREFETCH, TicketKind.SAVE)


class Level:
    """One tier's room, which its tenants' shelves share: the fullest of them gives when room is needed."""

    def __init__(self, tier: Tier, config: PlannerConfig) -> None:
        self.tier = tier
        self.word = tier.name.lower()  # in counters
        self.room_bytes = {Tier.DRAM: 0, Tier.SSD: config.ssd_bytes, Tier.S3: config.s3_bytes}[tier]
        self.capacity_bytes = self.room_bytes  # 0 = no limit of ours; less than its room while it is taken for smaller
        self.shrunk_until_ns = 0
        self.hits_min = {Tier.DRAM: 0, Tier.SSD: config.ssd_hits_min, Tier.S3: config.s3_hits_min}[tier]
        self.budget = WriteBudget(config.ssd_bytes_per_day if tier is Tier.SSD else 0)
        self.used_bytes = 0  # records, also those being written or dropped (DRAM: see the frame pool)
        self.dropping_bytes = 0
        self.ranking: Ranking[Shelf] = Ranking()
        self.up = True
        self.down_reason = ""
        self.writes = InFlight(config.demotions_in_flight_max, config.demotion_bytes_in_flight_max)
        self.loading_bytes = 0  # of promotions for loads in flight from this tier
        self.forecast = Forecast()
        self.faults_in_row = 0
        self.pause_until_ns = 0
        self.wrote_ns = 0  # when the last write ended, or the first of those in flight began
        self.last_fault = ""
        self.full = False  # the last write found no room, whatever we counted, and nothing there may go
        self.too_long_bytes, self.too_long_because = 0, ""  # the shortest record the tier can never hold; 0: none known
        self.recovering = tier in config.recovers  # not all that the last life left here is known yet
        self.let_go: set[BlockName] = set()  # dropped since, while recovering: a listing may be older than that
        self.undropped: deque[tuple[int, Copy]] = deque()  # DROPPED, but the tier could not: when to ask again
        self.drop_failed = False  # the last one to end

    @property
    def failing(self) -> bool:
        """Several writes in a row failed: after each pause one is tried, and blocks need not wait for it."""
        return self.faults_in_row >= WRITE_FAULTS_IN_ROW_MAX

    @property
    def shelves(self) -> list[Shelf]:
        return self.ranking.shelves

    def coldest(self) -> Copy | None:
        """The next victim, of the tenant that is most above its share; it stays in the order until removed."""
        shelf = self.ranking.fullest()
        return None if shelf is None else shelf.coldest()

    def giver(self, shelf: Shelf, more_bytes: int) -> Level | Shelf:
        """Who gives room for so much more of a tenant: itself, where it would else be as full as any other."""
        if not self.ranking.several:
            return shelf
        fullest = self.ranking.fullest() if shelf.count else None
        own = fullest is not None and (shelf.used_bytes + more_bytes) / shelf.weight >= fullest.fullness
        return shelf if own else self

    def charge(self, index: Index, more_bytes: int) -> None:
        """Records of an index take this much more (or less) of the tier."""
        self.used_bytes += more_bytes
        index.charge(self.tier, more_bytes)

    def dropping(self, index: Index, more_bytes: int) -> None:
        """Of what is used, this much more (or less) is being dropped."""
        self.dropping_bytes += more_bytes
        index.shelves[self.tier].dropping_bytes += more_bytes

    def takes(self, index: Index, now_ns: int) -> bool:
        """Whether blocks of an index may count on this tier as their next place down."""
        tried = self.pause_until_ns <= now_ns and not self.writes.count
        return not self.hopeless(index) and (not self.failing or tried)

    def hopeless(self, index: Index) -> str:
        """Why no waiting would bring a block of this index into the tier; empty when it may."""
        record_bytes = index.record_bytes
        if not self.up:
            return f"the tier is down: {self.down_reason}"
        shelf: Shelf = index.shelves[self.tier]
        if why := shelf.hopeless(record_bytes):
            return why
        if self.capacity_bytes and record_bytes > self.capacity_bytes:
            return f"a record of {record_bytes} bytes is larger than the whole tier: give it more room"
        return self.too_long_because if 0 < self.too_long_bytes <= record_bytes else ""

    def ails(self, now_ns: int) -> bool:
        """S3 pauses after a fault, or answers no write: nobody who needs room waits for it (elsewhere they do)."""
        return self.tier is Tier.S3 and (self.pause_until_ns > now_ns or 0 < self.ails_from_ns <= now_ns)

    @property
    def ails_from_ns(self) -> int:
        """When an S3 that goes on not answering is taken for sick; 0 while it owes no answer."""
        return self.wrote_ns + S3_PATIENCE_NS if self.tier is Tier.S3 and self.writes.count else 0

    def is_full(self, now_ns: int) -> bool:
        """The last write found no room, and the next is not tried yet."""
        return self.full and self.pause_until_ns > now_ns

    def wrote(self, result: TransferResult, now_ns: int) -> None:
        """A write ended. Faults pause the tier, longer each time, so a broken disk is not hammered."""
        self.full = False
        self.wrote_ns = now_ns
        if result.fault is None:
            self.faults_in_row = 0
        elif result.fault not in NOT_THE_TIERS and self.pause_until_ns <= now_ns:  # those of one moment are one fault
            self.faults_in_row, self.last_fault = self.faults_in_row + 1, result.detail or result.fault.value
            self.pause_until_ns = now_ns + min(WRITE_PAUSE_NS_MIN << min(self.faults_in_row, 10), WRITE_PAUSE_NS_MAX)

    def restore(self) -> None:
        """What was counted is there again."""
        self.capacity_bytes, self.shrunk_until_ns = self.room_bytes, 0


class State:
    """See the module's docstring."""

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.now_ns = 0
        self.out: list[Instruction] = []
        self.indexes: dict[tuple[NamespaceDigest, int], Index] = {}
        self.resets: list[Reset] = []
        self.frames = FramePool(config.segment_bytes, config.dram_segments)
        self.levels = {tier: Level(tier, config) for tier in config.tiers}
        self.tenants = Registry(config.tenants_max, config.quotas, self._furnish)
        self.tended: dict[Shelf, None] = {}  # have a quota, and were filled since room was made in them
        self.moving: deque[Block] = deque()  # whose index has another owner now, and copies may not have moved yet
        self.retention = Retention()
        self.dram = self.levels[Tier.DRAM]
        self.below = tuple(self.levels[tier] for tier in config.tiers[1:])
        self.numbers = count(1)  # of transfers, leases and timers
        self.transfers: dict[int, Transfer] = {}
        self.promotions = InFlight(config.promotions_in_flight_max, config.promotion_bytes_in_flight_max)
        self.waiters: dict[Copy, list[Waiter]] = {}  # who wants to hear when a FILLING copy ends
        self.dropped: dict[Copy, None] = {}  # detached: failed fills still read, second records
        self.sessions: dict[int, Session] = {}
        self.leases: dict[int, Lease] = {}
        self.tickets: dict[int, Ticket] = {}
        self.arrivals: deque[Session] = deque()  # whose requests have keys not yet looked at, in turns
        self.lines: dict[TicketKind, Line[tuple[Ticket, int]]] = {kind: Line() for kind in LINES}  # waiting for room
        self.more = False  # something is left to do that needs no event but was too much for the last one
        self.touches: deque[Block] = deque()  # used, and to be told so to their orders
        self.demands: dict[Tier, Line[Demand]] = {level.tier: Line() for level in self.below}
        self.demands_abandoned = False  # some ticket with demands ended before they did
        self.flushes: dict[int, Ticket] = {}
        self.relink: deque[Block] = deque()  # children whose parent's link changed
        self.history = History()
        self.demotion_faults: dict[Block, int] = {}
        self.pushed_out: dict[Block, int] = {}  # records that made room below a copy ready to go: the uses by then
        self.timers: list[tuple[int, int, str, int]] = []
        self.story: deque[tuple[int, BlockKey, str, Tier, str]] = deque(maxlen=config.story_events_max)
        self.counters: dict[tuple[str, str], int] = {}
        self.draining = False
        self.pinned: dict[Copy, int] = {}  # by the operator: READY once, a reader more each, until then
        self.chores: list[Callable[[], None]] = []  # what extensions do after every event, each a bounded slice
        self.rows: Requests[DramCopy, Index] = Requests(config.rows)

    def index(self, namespace: NamespaceDigest, shard: int) -> Index:
        index = self.indexes.get((namespace, shard))
        if index is None:
            index = self.indexes[namespace, shard] = Index(namespace, shard, self.tenants.owner_of(namespace))
        return index

    def _furnish(self, owner: Tenant) -> None:
        """A new owner's shelves, one in each tier."""
        policy, tenants, nowhere = POLICIES[self.config.policy], len(self.dram.shelves) + 1, Ranking[Shelf]()
        for tier in Tier:
            ranking = self.levels[tier].ranking if tier in self.levels else nowhere
            owner.shelves.append(Shelf(owner, tier, policy(tenants), ranking, self.tended))

    def tell(self, key: BlockKey, what: str, tier: Tier, detail: str = "") -> None:
        self.story.append((self.now_ns, key, what, tier, detail))

    def count(self, name: str, label: str, amount: int = 1) -> None:
        at = (name, label)
        self.counters[at] = self.counters.get(at, 0) + amount

    def want(self, demand: Demand) -> None:
        """Have a block copied into a lower tier, and held until then."""
        demand.block.holds += 1
        self.demands[demand.tier].append(demand.block.index.owner, demand)

    def wake_at(self, when_ns: int, kind: str = "", subject: int = 0) -> None:
        heapq.heappush(self.timers, (when_ns, next(self.numbers), kind, subject))

    def pin(self, copy: Copy) -> None:
        """A reader more; a pinned copy stands in no order."""
        if copy.queue is not None:
            copy.queue.remove(copy)
        copy.readers += 1

    def wait_on(self, copy: Copy, waiter: Waiter) -> None:
        """Have the waiter told when this FILLING copy ends."""
        assert copy.state is FILLING
        self.waiters.setdefault(copy, []).append(waiter)

    def touch(self, copy: Copy) -> None:
        """The copy was just used."""
        if copy.queue is not None:
            copy.queue.remove(copy)
            copy.block.index.shelves[copy.tier].add(copy)

    def touch_tail_first(self, blocks: Sequence[Block]) -> None:
        """A chain was used until now. Its head is needed by longer chains, so it must stay longest: touched last."""
        self.touches.extend(reversed(blocks))

    def touch_slice(self) -> None:
        """Touch a bounded number of them.

        What was made ready to go since it was used stays so: else cleaning ahead would never end.
        """
        for _ in range(min(len(self.touches), TOUCHES_PER_EVENT_MAX)):
            block = self.touches.popleft()
            if block.linked:
                for copy in (block.dram, block.ssd, block.s3):
                    if copy is not None and not copy.stands_ready:
                        self.touch(copy)

    def begin(self, transfer: Transfer) -> Transfer:
        """Enter a transfer into the ledger."""
        transfer.id = next(self.numbers)
        self.transfers[transfer.id] = transfer
        return transfer
