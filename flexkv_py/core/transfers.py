"""What is in flight, and who waits for it.

A transfer names one block and holds what it needs for as long as it runs: frames, a reader on its
source, a FILLING target. It always runs to its end; nobody wanting it any more is a count of zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flexkv_py.core.blocks import Block, Copy, Index
from flexkv_py.core.messages import MoveKind, TicketKind, Tier
from flexkv_py.core.sessions import Ticket
from flexkv_py.keys import NamespaceDigest

IN_FLIGHT_BLOCKS_MIN = 4
"""So many may always be on their way, however large: one at a time would leave a link idle between them."""


class InFlight:
    """Blocks on their way along one link, limited by count and by bytes."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count = 0
        self.bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def takes(self, record_bytes: int, *, share: int = 1, waiting: int = 0) -> bool:
        """Whether one more fits into a `share`-th of the limits, `waiting` others counted as on their way."""
        count, used_bytes = self.count + waiting, self.bytes + waiting * record_bytes
        if count >= max(1, self._count_max // share):
            return False
        return count < IN_FLIGHT_BLOCKS_MIN // share or used_bytes + record_bytes <= self._bytes_max // share

    def begin(self, record_bytes: int) -> None:
        self.count += 1
        self.bytes += record_bytes

    def end(self, record_bytes: int) -> None:
        self.count -= 1
        self.bytes -= record_bytes
        assert self.count >= 0
        assert self.bytes >= 0


@dataclass(slots=True, eq=False)
class Transfer:
    """One row of the ledger. `copy` is what is read (load, demote, drop) or filled (save, promote).

    Loads and saves touch a worker; the others move a block between tiers. `id` is given when it is entered.
    """

    kind: TicketKind | MoveKind
    copy: Copy
    other: Copy | None = None
    """PROMOTE: the source below; DEMOTE: the target below."""
    ticket: Ticket | None = None
    position: int = 0
    source: Tier = Tier.DRAM
    """LOAD: the tier the block was in when it was asked for."""
    todo: int = 0
    """LOAD: mask of chunks not yet in the worker; PROMOTE: of those to be read, from the start to the end."""
    handed: int = 0
    """LOAD: mask of chunks given to the lanes."""
    running: int = 0
    """LOAD: copies handed out and not yet reported."""
    failed: bool = False
    started_ns: int = 0
    deadline_ns: int = 0
    """PROMOTE: when nobody has any more use for it; 0 = never."""
    ahead_bytes: int = 0
    """PROMOTE for a load: bytes of loads on their way from the same tier at the start, its own included."""
    uses: int = 0
    """DEMOTE: the block's uses at the start; unchanged means it is still cold."""
    id: int = 0


@dataclass(slots=True, eq=False)
class Demand:
    """A block that must get a copy in `tier`: an acknowledged save, a flush, or (without a ticket) staging to S3.

    It holds the block from its making to its end, so the block cannot be lost in between.
    """

    block: Block
    tier: Tier
    ticket: Ticket | None
    position: int
    tries: int = 0
    staged: Copy | None = None
    """The SSD copy, set aside while it is staged down to S3."""


@dataclass(slots=True, eq=False)
class Wish:
    """One key of a prefetch, or of a save that found another's fill of it."""

    ticket: Ticket
    position: int


Waiter = Transfer | Demand | Wish
"""Who is to hear of the end of a fill: a load that reads it, a demand it is a stage of, or a key that wants no more."""


@dataclass(slots=True, eq=False)
class Reset:
    """A namespace being forgotten: its closed indexes, and the blocks not yet looked at.

    While it runs nothing of the namespace is written below DRAM: an S3 object has one name, and a
    delete still on its way would take the new one.
    """

    session: int
    request: int
    namespace: NamespaceDigest
    indexes: list[Index]
    left: list[Block] = field(default_factory=list)
    found: list[Index] = field(default_factory=list)
    """Those of `indexes` that hold what recovery met only after the reset."""
