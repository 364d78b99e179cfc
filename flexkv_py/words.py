"""The words events and instructions are made of: tiers, faults, outcomes, priorities, names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from flexkv_py.keys import BlockKey, NamespaceDigest


class Tier(IntEnum):
    """Where a copy lies; a larger number is further from the GPU."""

    HBM = 0
    DRAM = 1
    SSD = 2
    S3 = 3


DRAM, SSD, S3 = Tier.DRAM, Tier.SSD, Tier.S3
"""Python 3.11 takes 0.1 µs to find a member in its class, and one event asks for hundreds: those have names here."""


class Fault(StrEnum):
    """Why a transfer failed. Expected in production; the planner chooses what happens next."""

    CORRUPT = "corrupt"
    """The bytes are not that key's bytes: wrong checksum, wrong header, torn, swapped."""
    MISSING = "missing"
    """Nothing is there any more."""
    IO = "io"
    """The device or server failed; another try may work."""
    FULL = "full"
    """No room in the target tier."""
    TOO_LONG = "too_long"
    """A record of this length fits nowhere in the target tier, however much room is made."""
    LATE = "late"
    """It did not end within its deadline."""
    DOWN = "down"
    """The whole tier is unavailable."""
    MEMORY = "memory"
    """The worker's memory is gone or cannot be read."""
    INTERNAL = "internal"
    """A bug in the shell; counted and logged, never hidden."""


class Outcome(StrEnum):
    """What became of one key of a ticket."""

    LOADED = "loaded"
    STORED = "stored"
    PRESENT = "present"
    MISS = "miss"
    FAILED = "failed"
    THROTTLED = "throttled"
    REFUSED = "refused"
    LATE = "late"
    CANCELLED = "cancelled"


class ReplayOutcome(StrEnum):
    """Why what a step of the row path missed will not come."""

    TOO_MANY = "too_many"
    """The step failed `absent_replays_max` times in a row."""
    NO_ROOM = "no_room"
    """More than DRAM can hold at once is asked for by steps that wait."""
    LOST = "lost"
    """The block is in no tier any more, or its tier does not give it."""


class TicketKind(StrEnum):
    """What a ticket runs."""

    LOAD = "load"
    SAVE = "save"
    PREFETCH = "prefetch"
    FLUSH = "flush"


LOAD, SAVE, PREFETCH = TicketKind.LOAD, TicketKind.SAVE, TicketKind.PREFETCH


class Priority(IntEnum):
    """Order on a link; smaller goes first."""

    LOAD = 0
    SAVE = 1
    PREFETCH = 2
    DEMOTION = 3
    WRITE_BEHIND = 4


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """What the planner must know of a namespace: its digest and how its blocks are cut."""

    digest: NamespaceDigest
    chunk_bytes: tuple[int, ...]

    @property
    def frame_bytes(self) -> int:
        return max(self.chunk_bytes)

    @property
    def block_bytes(self) -> int:
        return sum(self.chunk_bytes)


@dataclass(slots=True)
class SaveHints:
    """Wishes of the engine for what it saves."""

    skip_below: bool = False
    """Keep in DRAM only; never demote."""
    high_priority: bool = False
    """Admit below whatever the admission rule says, and evict after all others of the tenant."""
    low_priority: bool = False
    """Evict before all others of the tenant, and write below only what was used again."""
    retention_ns: int = 0
    """Drop from every tier after so long; 0 = keep."""


class MoveKind(StrEnum):
    """What a transfer between tiers does."""

    PROMOTE = "promote"
    """Read chunks of a record into frames; reports ChunkLanded for each, then the end."""
    DEMOTE = "demote"
    """Write a whole block from its frames as one record."""
    DROP = "drop"
    """Make a record unreadable and free its place."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """Everything a record's header says of whose bytes these are."""

    namespace: NamespaceDigest
    shard: int
    key: BlockKey
    parent: BlockKey


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One line of a block's story."""

    now_ns: int
    key: BlockKey
    what: str
    tier: Tier
    detail: str
