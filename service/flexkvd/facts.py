"""What a planner is doing, in numbers for people and metrics. Reads its state and changes nothing."""

from __future__ import annotations

from typing import Any

from flexkv_py.core.messages import TicketKind, Tier
from flexkv_py.core.state import Level, State
from flexkv_py.geometry import ALIGN_BYTES


def facts_of(state: State) -> dict[str, Any]:
    """Per tier, and of the planner as a whole."""
    return {
        "tiers": {tier.name.lower(): _tier_facts(state, level) for tier, level in state.levels.items()},
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


def _tier_facts(state: State, level: Level) -> dict[str, Any]:
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
