"""What a planner is doing, in numbers for people and metrics. Reads its state and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from flexkv_py.core.blocks import Block, DramCopy, S3Copy, SsdCopy
from flexkv_py.core.messages import TicketKind, Tier
from flexkv_py.core.state import Level, State
from flexkv_py.geometry import ALIGN_BYTES


def facts_of(state: State) -> dict[str, Any]:
    """Per tier, and of the planner as a whole."""
    return {
        "tiers": {tier.name.lower(): tier_facts(state, level) for tier, level in state.levels.items()},
        "blocks": sum(len(index.blocks) for index in state.indexes.values()),
        "indexes": len(state.indexes),
        "sessions": len(state.sessions),
        "tickets": len(state.tickets),
        "leases": len(state.leases),
        "transfers": len(state.transfers),
        "promotions_in_flight": state.promotions.count,
        "loads_waiting": len(state.lines[TicketKind.LOAD]) + len(state.lines[TicketKind.PREFETCH]),
        "saves_waiting": len(state.lines[TicketKind.SAVE]),
        "demands_waiting": sum(len(waiting) for waiting in state.demands.values()),
        "draining": state.draining,
    }


def by_name(counters: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """The planner's counters: first by name, then by what each counts."""
    named: dict[str, dict[str, int]] = {}
    for (name, label), count in counters.items():
        named.setdefault(name, {})[label] = count
    return named


def index_bytes(state: State) -> int:
    """About what blocks and their copies take in this process: exact for tables, counted by their bytes for copies.

    A copy below DRAM is one record of its tier; where indexes have records of several lengths, their mean is taken.
    """
    indexes = [index for index in state.indexes.values() if index.record_bytes]
    blocks = sum(len(index.blocks) for index in indexes)
    if not blocks:
        return 0
    record_bytes = sum(index.record_bytes * len(index.blocks) for index in indexes) / blocks
    frame_pages = sum(index.frame_pages * index.chunk_count * len(index.blocks) for index in indexes) / blocks
    frames_bytes = sum(index.frame_numbers.size * len(index.blocks) for index in indexes) / blocks
    copies = blocks * _BLOCK_BYTES + state.frames.used_pages / max(frame_pages, 1) * (_DRAM_COPY_BYTES + frames_bytes)
    for level in state.below:
        copies += level.used_bytes / record_bytes * (_SSD_COPY_BYTES if level.tier is Tier.SSD else _S3_COPY_BYTES)
    return round(copies) + sum(sys.getsizeof(index.blocks) for index in state.indexes.values())


def _object_bytes(of: type) -> int:
    """Of an object with slots, and of what the collector of garbage keeps in front of it."""
    return of.__basicsize__ + 16


_KEY_BYTES = sys.getsizeof(bytes(16)) + 15 & ~15
_LOCATION_BYTES = 32
_BLOCK_BYTES = _object_bytes(Block) + _KEY_BYTES
_DRAM_COPY_BYTES = _object_bytes(DramCopy) + _KEY_BYTES
_SSD_COPY_BYTES = _object_bytes(SsdCopy) + _LOCATION_BYTES
_S3_COPY_BYTES = _object_bytes(S3Copy) + _LOCATION_BYTES


def tier_facts(state: State, level: Level) -> dict[str, Any]:
    """One tier's room and order."""
    frames, dram = state.frames, level.tier is Tier.DRAM
    return {
        "up": level.up,
        "down_reason": level.down_reason or (level.last_fault if level.failing else ""),
        "used_bytes": frames.used_pages * ALIGN_BYTES if dram else level.used_bytes,
        "capacity_bytes": frames.total_pages * ALIGN_BYTES if dram else level.capacity_bytes,
        "evictable_blocks": sum(shelf.count for shelf in level.shelves),
        "reclaimable_blocks": sum(shelf.reclaimable.count for shelf in level.shelves),
        "writes_in_flight": level.writes.count,
    }
