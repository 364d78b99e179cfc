"""One world of the SSD log: small, odd and different for every seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.diskio.faulty import DiskOperation, DiskTrouble


class Harm(StrEnum):
    """What may happen to the disk of a world, besides power cuts, which all have."""

    NONE = "none"
    FAULTS = "faults"
    """Operations fail and say so."""
    DAMAGE = "damage"
    """Bytes change between two lives."""
    LIES = "lies"
    """Writes and syncs are acknowledged and never happen, or bring other bytes. Nothing holds but exactness."""


Rates = dict[DiskOperation, Mapping[DiskTrouble, float]]

FAULT_RATES: Rates = {
    DiskOperation.OPEN: {DiskTrouble.ERROR: 0.02, DiskTrouble.FULL: 0.1},
    DiskOperation.READ: {
        DiskTrouble.ERROR: 0.02,
        DiskTrouble.PART: 0.01,
        DiskTrouble.SHORT: 0.02,
        DiskTrouble.FLIP: 0.02,
    },
    DiskOperation.WRITE: {DiskTrouble.ERROR: 0.02, DiskTrouble.PART: 0.02, DiskTrouble.FULL: 0.03},
    DiskOperation.SYNC: {DiskTrouble.ERROR: 0.03},
}
LIE_RATES: Rates = {
    DiskOperation.WRITE: {DiskTrouble.LOST: 0.01, DiskTrouble.FLIP: 0.01},
    DiskOperation.SYNC: {DiskTrouble.LOST: 0.05},
}


NAMES_MANY = 200


@dataclass(frozen=True)
class LogSettings:
    """How large everything is, what goes wrong, and how hard the store is used."""

    directories: int
    segment_bytes: int
    segments: int
    """Of each directory."""
    amplification_max: float
    harm: Harm
    callers: int
    """Operations at a time."""
    names: int
    """Blocks there are; those of one namespace are cut alike."""
    life_steps: int
    """Mean length of a life."""

    @property
    def share_bytes(self) -> int:
        """Capacity of each directory."""
        return self.segments * self.segment_bytes

    @property
    def rates(self) -> Rates:
        return {Harm.FAULTS: FAULT_RATES, Harm.LIES: LIE_RATES}.get(self.harm, {})


def make_settings(chance: random.Random) -> LogSettings:
    """Segments of a few records, so that sealing, reclaim and rewriting never stop.

    Where there are many blocks there are enough segments to keep rewritten records apart.
    """
    settings = LogSettings(
        directories=chance.choice((1, 1, 2, 3)),
        segment_bytes=ALIGN_BYTES * chance.randint(20, 48),
        segments=chance.randint(5, 10),
        amplification_max=chance.choice((1.1, 1.5, 1.5, 2.0)),
        harm=chance.choice((Harm.NONE, Harm.NONE, Harm.FAULTS, Harm.FAULTS, Harm.DAMAGE, Harm.DAMAGE, Harm.LIES)),
        callers=chance.choice((1, 4, 8)),
        names=chance.choice((30, 80, NAMES_MANY)),
        life_steps=chance.choice((60, 200)),
    )
    return replace(settings, segments=2 * settings.segments) if settings.names == NAMES_MANY else settings
