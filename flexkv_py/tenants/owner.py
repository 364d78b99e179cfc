"""Who owns blocks: a tenant by its name, or what stands for those without one. Its quota, its shelves, its counts.

Owns no copy and decides nothing. `registry` makes owners; an index names its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from flexkv_py.words import Tier

ShelfT = TypeVar("ShelfT")


class Marker(Enum):
    """Owners that no session can name, whatever it is called: a tenant's name is any text, and these are no text."""

    UNKNOWN = "unknown"
    """Of blocks found at start whose namespace no session has named yet."""
    OTHERS = "others"
    """All tenants that came when as many were known as may be (`tenants_max`)."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may use, in bytes, 0 = no limit; and its part of what is left, relative to others."""

    dram_bytes: int = 0
    """Of frames, also those being filled."""
    ssd_bytes: int = 0
    """Of records, also those being written or dropped."""
    s3_bytes: int = 0
    weight: float = 1.0

    def bytes_in(self, tier: Tier) -> int:
        return {Tier.DRAM: self.dram_bytes, Tier.SSD: self.ssd_bytes, Tier.S3: self.s3_bytes}.get(tier, 0)


NO_QUOTA = Quota()


class Owner(Generic[ShelfT]):
    """One tenant. `shelves[tier]` is its part of a tier."""

    __slots__ = ("at_quota", "counters", "evictions", "name", "quota", "sessions", "shelves")

    def __init__(self, name: str | Marker, quota: Quota = NO_QUOTA) -> None:
        self.name = name
        self.quota = quota
        self.shelves: list[ShelfT] = []  # by tier
        self.at_quota = False  # what it last asked of DRAM failed by its own quota, not for want of frames
        self.sessions = 0  # open ones
        self.evictions = [0] * len(Tier)  # by tier
        self.counters: dict[tuple[str, str], int] = {}  # running totals by (name, label), as the planner's own

    def count(self, name: str, label: str, amount: int = 1) -> None:
        at = (name, label)
        self.counters[at] = self.counters.get(at, 0) + amount

    def __repr__(self) -> str:
        return f"<owner {self.name!r}>"

    @property
    def called(self) -> str:
        """In a sentence for people."""
        return f"tenant {self.name!r}" if isinstance(self.name, str) else f"the {self.name.value} tenants"
