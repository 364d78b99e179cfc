"""Rooms kept ready ahead of need, so that a save or a demotion seldom waits: whole tiers, and what quotas give tenants.

A share of DRAM, and of SSD above S3, is kept free or ready to be dropped at once, SSD drops ahead of what is written,
and S3 stays within its capacity. What is above a quota that was lowered goes. Called by the planner after every event;
every loop is bounded.
"""

from __future__ import annotations

from math import inf

from flexkv_py.core.blocks import Copy
from flexkv_py.core.messages import DRAM, S3, SSD
from flexkv_py.core.placement import Verdict, explain, judge
from flexkv_py.core.room import VICTIM_SCAN_MAX, drop_until, evict_one, send_down
from flexkv_py.core.state import Level, State
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.tenants.shelf import Shelf

CLEAN_PER_EVENT_MAX = 64
TENDED_PER_EVENT_MAX = 4
RESERVE_SHARE, RESERVE_SHARE_MAX = 0.01, 0.1
RESERVE_RECORDS = 16
CLEAN_SHARE_MAX = 0.5


def clean_ahead(state: State) -> None:
    """Keep a share of DRAM, and of SSD above S3, free or ready to be dropped at once; and S3 within its capacity."""
    if state.below:
        _tend_tiers(state)
    for _ in range(min(len(state.tended), TENDED_PER_EVENT_MAX)):
        _tend(state, next(iter(state.tended)))


def _tend_tiers(state: State) -> None:
    frames, ssd, s3 = state.frames, state.levels.get(SSD), state.levels.get(S3)
    capacity, used = frames.total_pages * ALIGN_BYTES, frames.used_pages * ALIGN_BYTES
    _keep_clean(state, state.dram, state.config.dram_clean_ahead * capacity, capacity - used, used)
    if ssd is not None and ssd.up:  # what is down can neither be read nor dropped
        _drop_ahead(state, ssd)
        if s3 is not None:
            free = ssd.capacity_bytes - ssd.used_bytes
            _keep_clean(state, ssd, state.config.ssd_clean_ahead * ssd.capacity_bytes, free, ssd.used_bytes)
    if s3 is not None and s3.capacity_bytes and s3.up and not s3.drop_failed:  # or each failed drop cost another
        drop_until(state, s3, s3.capacity_bytes)  # the ends of these drops are the events that go on with it


def _tend(state: State, shelf: Shelf) -> None:
    """Keep what a tenant has within its quota, and a share of that free or ready to go, as the tier's room is kept."""
    level, capacity = state.levels.get(shelf.tier), shelf.capacity_bytes
    del state.tended[shelf]
    if level is None or not capacity or not level.up:
        return
    if level.tier is DRAM:
        for _ in range(VICTIM_SCAN_MAX):
            if shelf.lacks(0) and evict_one(state, shelf) is None:
                break
        if state.below:
            free = capacity - shelf.used_bytes
            _keep_clean(state, shelf, state.config.dram_clean_ahead * capacity, free, capacity)
    elif not level.drop_failed:
        drop_until(state, shelf, capacity)
        if level.tier is SSD:
            _drop_ahead(state, shelf)
            free = capacity - shelf.used_bytes
            _keep_clean(state, shelf, state.config.ssd_clean_ahead * capacity, free, capacity)
    if shelf.used_bytes - shelf.dropping_bytes > capacity:
        state.tended[shelf] = None


def _keep_clean(state: State, room: Level | Shelf, share_bytes: float, free_bytes: int, used_bytes: int) -> None:
    """Have the coldest copies of a room written below, until this much is free, ready to go or on its way.

    In a tier that tenants share the fullest must have its part of that: it is who gives.
    """
    shelf = room if isinstance(room, Shelf) else room.ranking.fullest()
    for _ in range(CLEAN_PER_EVENT_MAX):
        copy = None if shelf is None else shelf.unclean()
        if shelf is None or copy is None:
            return
        index, clean, going = copy.block.index, shelf.reclaimable.count, 0
        copy_bytes = index.record_bytes
        if room.tier is DRAM:
            copy_bytes, going = index.frames_bytes, sum([lower.writes.count for lower in state.below])
        clean_bytes = clean * copy_bytes * max(1.0, used_bytes / (shelf.used_bytes or 1))
        ready_bytes = free_bytes + going * copy_bytes + clean_bytes
        if ready_bytes >= share_bytes or ready_bytes >= _room_below(state, shelf) or not _clean(state, shelf, copy):
            return


def _room_below(state: State, shelf: Shelf) -> float:
    """Bytes that may be kept clean: half of the smallest room below, or each record written would push out another's.

    The smallest, for gates and budgets may leave a block no other.
    """
    lower = [level for level in state.below if level.tier > shelf.tier]
    rooms = [room.capacity_bytes for level in lower for room in (level, shelf.owner.shelves[level.tier])]
    return min(filter(None, rooms), default=inf) * CLEAN_SHARE_MAX


def _drop_ahead(state: State, ssd: Level | Shelf) -> None:
    """SSD drops ahead of need, so that a demotion seldom waits for a drop to end."""
    copy = ssd.coldest()
    if copy is not None and not state.levels[SSD].drop_failed:  # else each failed drop cost another record
        record_bytes = copy.block.index.record_bytes
        burst_bytes = max(RESERVE_SHARE * ssd.capacity_bytes, RESERVE_RECORDS * record_bytes)
        reserve = min(
            RESERVE_SHARE_MAX * ssd.capacity_bytes,
            burst_bytes,
            state.config.demotions_in_flight_max * record_bytes,
            state.config.demotion_bytes_in_flight_max,
        )
        drop_until(state, ssd, int(ssd.capacity_bytes - reserve))


def _clean(state: State, shelf: Shelf, copy: Copy) -> bool:
    """Make the coldest copy reclaimable, or set it on its way down; False when that must wait."""
    verdict = judge(state, copy)
    if verdict.may_go:
        assert copy.queue is not None
        copy.queue.remove(copy)
        shelf.spare(copy)
        if verdict is not Verdict.COVERED:
            state.tell(copy.block.key, "not demoted", copy.tier, explain(state, copy, verdict))
        return True
    return verdict is not Verdict.HELD and send_down(state, copy)
