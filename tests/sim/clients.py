"""Workers and schedulers as the simulator has them: sessions, page slots with bytes, tickets, leases."""

from __future__ import annotations

from dataclasses import dataclass, field

from flexkv_py.core.messages import Outcome, TicketKind, Tier
from flexkv_py.keys import BlockKey
from tests.sim.names import Namespace

SLOTS_PER_WORKER = 24
"""Blocks that fit in one worker's paged memory."""

SCRIBBLE = b"\xab" * 16


@dataclass(eq=False)
class Ticket:
    """One ticket as its client sees it. `slots[i]` is where the bytes of `keys[i]` lie in the worker."""

    number: int
    client: Client
    kind: TicketKind
    keys: list[BlockKey]
    slots: list[int] = field(default_factory=list)
    ack: Tier = Tier.DRAM
    opened: int = 0
    deadline_ns: int = 0
    copies: int = 0
    over: bool = False
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass(eq=False)
class Lease:
    """Blocks held by a client: the first `length` keys in every shard."""

    number: int
    client: Client
    keys: list[BlockKey]
    shards: tuple[int, ...]
    until_ns: int
    taken: int


@dataclass(eq=False)
class Client:
    """One session. Slots are busy while a running ticket or copy may touch them."""

    number: int
    namespace: Namespace
    shard: int
    alive: bool = True
    slots: dict[int, list[bytes]] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(SLOTS_PER_WORKER)))
    tickets: dict[int, Ticket] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)

    def scribble(self, slot: int) -> None:
        """The engine reuses the pages for something else."""
        cut = self.namespace.spec.chunk_bytes
        self.slots[slot] = [SCRIBBLE * (length // len(SCRIBBLE)) for length in cut]

    def let_go(self, ticket: Ticket) -> None:
        """The ticket is over and none of its copies runs: its pages are free."""
        self.free.extend(ticket.slots)
        ticket.slots = []
