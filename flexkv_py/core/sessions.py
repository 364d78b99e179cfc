"""Sessions and what dies with them: tickets and leases."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flexkv_py.core.blocks import PLAIN, Block, Index, Rule
from flexkv_py.core.messages import NamespaceSpec, Outcome, TicketKind, Tier
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.tenants.shelf import Tenant


@dataclass(slots=True, eq=False)
class Ticket:
    """One running load, save, prefetch or flush.

    Keys before position `seen` have been looked at; `waiting` of them stand in a line for room. `open` counts keys
    without an outcome (of a flush: demands under way, and `left` the blocks not yet looked at). `tiers` has the tier of
    each key, where the outcome names one.
    """

    id: int
    session: int
    kind: TicketKind
    keys: list[BlockKey]
    index: Index | None
    deadline_ns: int
    parent: BlockKey = ROOT
    ack: Tier = Tier.DRAM
    rule: Rule = PLAIN
    keep_until_ns: int = 0
    """SAVE: when its blocks are dropped from every tier; 0 = never."""
    seen: int = 0
    waiting: int = 0
    left: list[Block] = field(default_factory=list)
    stored: int = 0
    failed: int = 0
    detail: str = ""
    over: bool = False
    outcomes: list[Outcome | None] = field(init=False)
    open: int = field(init=False)
    tiers: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.keys)
        self.outcomes, self.tiers = [None] * self.open, bytearray(self.open)


@dataclass(slots=True, eq=False)
class Lease:
    """Blocks that stay usable until released, expired, or the session ends."""

    id: int
    session: int
    blocks: list[Block]


@dataclass(slots=True, eq=False)
class Session:
    """One live client connection; its tickets and leases die with it.

    `arrived` has its tickets with keys not yet looked at, in order. While there is one, the session stands in
    `State.arrivals`.
    """

    id: int
    spec: NamespaceSpec
    shard: int
    owner: Tenant
    instance: str = ""
    tickets: dict[int, Ticket] = field(default_factory=dict)
    arrived: deque[Ticket] = field(default_factory=deque)
    leases: dict[int, Lease] = field(default_factory=dict)
