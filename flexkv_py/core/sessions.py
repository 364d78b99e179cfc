"""Sessions and what dies with them: tickets and leases."""

from __future__ import annotations

from dataclasses import dataclass, field

from flexkv_py.core.blocks import Block, Index
from flexkv_py.core.messages import NamespaceSpec, Outcome, SaveHints, TicketKind, Tier
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest


@dataclass(slots=True, eq=False)
class Ticket:
    """One running load, save, prefetch or flush.

    `waiting` has positions of keys of a save that wait for room, in order. `open` counts keys without an outcome.
    """

    id: int
    session: int
    kind: TicketKind
    keys: list[BlockKey]
    index: Index | None
    deadline_ns: int
    outcomes: list[Outcome | None]
    open: int
    parent: BlockKey = ROOT
    ack: Tier = Tier.DRAM
    hints: SaveHints | None = None
    waiting: dict[int, None] = field(default_factory=dict)
    tiers: bytearray = field(default_factory=bytearray)
    stored: int = 0
    detail: str = ""
    over: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """Blocks that stay usable until released, expired, or the session ends."""

    id: int
    session: int
    blocks: list[Block]


@dataclass(slots=True, eq=False)
class Session:
    """One live client connection; its tickets and leases die with it."""

    id: int
    namespace: NamespaceDigest
    shard: int
    spec: NamespaceSpec
    instance: str = ""
    tickets: dict[int, Ticket] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
