"""Making room: frames for a fill, bytes for a record, and the clean-ahead that keeps both cheap.

Room is made where it is needed, when it is needed. Every loop here is bounded, so the cost of one
eviction does not depend on how many candidates there are.
"""

from __future__ import annotations

from enum import Enum
from math import inf

from flexkv_py.core.blocks import Block, Copy, DramCopy, Index
from flexkv_py.core.messages import Priority, Tier
from flexkv_py.core.moves import evict, start_demotion, start_reading, unpin
from flexkv_py.core.placement import Verdict, explain, judge, judge_now, refusal, refusals, write_may_start
from flexkv_py.core.state import Level, State
from flexkv_py.core.transfers import Demand
from flexkv_py.geometry import ALIGN_BYTES

VICTIMS_PER_TAKE_MAX = 64
VICTIM_SCAN_MAX = 8
CLEAN_PER_EVENT_MAX = 64
RECORDS_PER_FULL = 2
SHRUNK_NS = 60_000_000_000  # how long a tier that had less room than was counted is taken for that small
RESERVE_SHARE, RESERVE_SHARE_MAX = 0.01, 0.1
RESERVE_RECORDS = 16
CLEAN_SHARE_MAX = 0.5


class Room(Enum):
    """Is there room for one more record?"""

    NOW = 1
    SOON = 2  # when the drops under way have ended
    NONE = 3  # everything in the tier must first be written further down


def take_frames(state: State, index: Index, count: int) -> bytes | None:
    """Frames (packed) for `count` chunks of this index, evicting what may go; None when nothing may go now."""
    pages = index.frame_pages
    for _ in range(VICTIMS_PER_TAKE_MAX):
        frames = state.frames.take(pages, count)
        if frames is not None:
            return frames
        victim = _evict_one(state, state.dram)
        if victim is None:
            state.rows.short_pages = max(state.rows.short_pages, count * pages)
            return None
        if victim.block.index.frame_pages != pages:
            state.frames.drain_for(pages)  # its frames are of another size: a whole segment must come free
    state.more = True  # may go, but not in one event
    return None


def promote(
    state: State, block: Block, source: Copy, chunks: int, priority: Priority, deadline_ns: int = 0
) -> DramCopy | None:
    """Read chunks (mask) of a block from below into DRAM; None when that must wait for the link or for room.

    Half of the link is for loads: nothing else may keep them waiting.
    """
    if not state.promotions.takes(block.index.record_bytes, share=1 if priority is Priority.LOAD else 2):
        return None
    kept = [copy for copy in (source, block.dram) if copy is not None]
    stood_ready = [copy.queue is state.levels[copy.tier].reclaimable for copy in kept]
    for copy in kept:
        state.pin(copy)  # making room must not evict what we are about to read, or to fill
    frames = take_frames(state, block.index, chunks.bit_count())
    for copy, stood in zip(kept, stood_ready, strict=True):
        unpin(state, copy, cold=frames is None and stood)  # who waits uses nothing
    if frames is None:
        return None
    dram = block.dram
    if dram is None:
        dram = block.dram = DramCopy(block, bytes(block.index.frame_numbers.size))
        dram.filling = 0
    dram.fill(chunks, frames)
    start_reading(state, dram, source, priority, deadline_ns)
    return dram


def _evict_one(state: State, level: Level) -> Copy | None:
    """Evict the tier's coldest copy that may go, and say which; what must be written first is set on its way down."""
    for _ in range(VICTIM_SCAN_MAX):
        copy = level.reclaimable.oldest or level.policy.coldest()
        if copy is None:
            return None
        verdict = judge_now(state, copy)
        if verdict is Verdict.HELD:
            state.touch(copy)  # out of the way of the scan until its lease ends
        elif verdict is Verdict.WRITE:
            if not _send_down(state, copy):
                return None
        else:
            if verdict is Verdict.REFUSED:
                for rule in refusals(state, copy):
                    state.count("refused_admissions", rule)
            if level.tier is not Tier.DRAM:
                had_their_turn(state, copy)
            evict(state, copy, explain(state, copy, verdict))
            return copy
    return None


def had_their_turn(state: State, record: Copy) -> None:
    """Copies that stand ready to go because of a record stay so when it makes room, until the block is used again.

    Written once more they would push out the next record, whose copy above would be written again, and so on for ever.
    """
    block = record.block
    if any(copy.tier < record.tier and copy.queue is state.levels[copy.tier].reclaimable for copy in block.copies()):
        state.pushed_out[block] = block.uses


def _send_down(state: State, copy: Copy) -> bool:
    """Start what a copy needs before it may go; False when that must wait."""
    return demote(state, copy.block, Priority.DEMOTION) if copy.tier is Tier.DRAM else stage_down(state, copy)


def demote(state: State, block: Block, priority: Priority) -> bool:
    """Write a DRAM block to the next tier down; False when that must wait.

    A tier that is full of blocks not yet further down is passed by, whatever the gates below it say, or
    DRAM would wait for the staging that itself needs DRAM.
    """
    passed, insists = "", block.needed
    for level in state.below:
        if not level.takes(block.index.record_bytes, state.now_ns):
            continue
        if not insists and (why := refusal(state, level, block)):
            passed = f"not above: {why}"
            continue
        room = make_room(state, level, block.index)
        if room is Room.NONE:
            passed, insists = "not above: full of what must go down first", True
            continue
        if room is Room.SOON or not write_may_start(state, level, block) or block.copy_in(level.tier) is not None:
            return False
        start_demotion(state, block, level.tier, priority)
        state.tell(block.key, "demote", level.tier, passed)
        return True
    return False


def make_room(state: State, level: Level, index: Index) -> Room:
    """Whether one more record fits this tier; starts drops when it does not."""
    if not level.capacity_bytes or level.used_bytes + index.record_bytes <= level.capacity_bytes:
        return Room.NOW
    target = level.capacity_bytes - index.record_bytes
    _drop_until(state, level, target)
    return Room.SOON if level.used_bytes - level.dropping_bytes <= target else Room.NONE


def _drop_until(state: State, level: Level, target_bytes: int) -> None:
    """Drop the coldest records until, once the drops have ended, at most `target_bytes` are used."""
    for _ in range(VICTIM_SCAN_MAX):
        if level.used_bytes - level.dropping_bytes <= target_bytes or _evict_one(state, level) is None:
            return


def make_room_after_fault(state: State, level: Level, index: Index) -> None:
    """A tier had less room than we counted: take it for smaller, and drop the coldest for this write and the next."""
    level.capacity_bytes = max(level.used_bytes, index.record_bytes)
    level.shrunk_until_ns = state.now_ns + SHRUNK_NS
    state.wake_at(level.shrunk_until_ns, "shrunk", level.tier)
    dropping_bytes = level.dropping_bytes
    _drop_until(state, level, level.used_bytes - dropping_bytes - RECORDS_PER_FULL * index.record_bytes)
    level.full = level.dropping_bytes == dropping_bytes


def stage_down(state: State, copy: Copy) -> bool:
    """Set an SSD copy aside and ask for its block in S3; False when enough are on their way.

    Never what S3 would refuse at once: it would come back, be the coldest again soon, and be set aside again, for ever.
    """
    waiting, level = state.demands[Tier.S3], state.levels[Tier.S3]
    if level.is_full(state.now_ns) or not level.writes.takes(copy.block.index.record_bytes, waiting=len(waiting)):
        return False
    state.pin(copy)
    state.want(Demand(copy.block, Tier.S3, None, 0, staged=copy))
    state.more = True
    return True


def clean_ahead(state: State) -> None:
    """Keep a share of DRAM, and of SSD above S3, free or ready to be dropped at once; and S3 within its capacity."""
    frames, ssd, s3 = state.frames, state.levels.get(Tier.SSD), state.levels.get(Tier.S3)
    capacity, used = frames.total_pages * ALIGN_BYTES, frames.used_pages * ALIGN_BYTES
    _keep_clean(state, state.dram, state.config.dram_clean_ahead * capacity, capacity - used)
    if ssd is not None and ssd.up:  # what is down can neither be read nor dropped
        _drop_ahead(state, ssd)
        if s3 is not None:
            free = ssd.capacity_bytes - ssd.used_bytes
            _keep_clean(state, ssd, state.config.ssd_clean_ahead * ssd.capacity_bytes, free)
    if s3 is not None and s3.capacity_bytes and s3.up and not s3.drop_failed:  # or each failed drop cost another
        _drop_until(state, s3, s3.capacity_bytes)  # the ends of these drops are the events that go on with it


def _keep_clean(state: State, level: Level, share_bytes: float, free_bytes: int) -> None:
    """Have the coldest copies of a tier written below, until this much is free, ready to go or on its way."""
    goal_bytes = min(share_bytes, _room_below(state, level))
    for _ in range(CLEAN_PER_EVENT_MAX):
        copy = level.policy.coldest()
        if copy is None:
            return
        index, clean = copy.block.index, level.reclaimable.count
        copy_bytes = index.record_bytes
        if level.tier is Tier.DRAM:
            copy_bytes = index.frame_pages * index.chunk_count * ALIGN_BYTES
            clean += sum(lower.writes.count for lower in state.below)
        if free_bytes + clean * copy_bytes >= goal_bytes or not _clean(state, level, copy):
            return


def _room_below(state: State, level: Level) -> float:
    """Bytes that may be kept clean: half of the smallest tier below, or each record written would push out another's.

    The smallest, for gates and budgets may leave a block no other.
    """
    below = [lower.capacity_bytes for lower in state.below if lower.tier > level.tier and lower.capacity_bytes]
    return min(below) * CLEAN_SHARE_MAX if below else inf


def _drop_ahead(state: State, ssd: Level) -> None:
    """SSD drops ahead of need, so that a demotion seldom waits for a drop to end."""
    copy = ssd.reclaimable.oldest or ssd.policy.coldest()
    if copy is not None and not ssd.drop_failed:  # else each failed drop cost another record
        record_bytes = copy.block.index.record_bytes
        burst_bytes = max(RESERVE_SHARE * ssd.capacity_bytes, RESERVE_RECORDS * record_bytes)
        reserve = min(
            RESERVE_SHARE_MAX * ssd.capacity_bytes,
            burst_bytes,
            state.config.demotions_in_flight_max * record_bytes,
            state.config.demotion_bytes_in_flight_max,
        )
        _drop_until(state, ssd, int(ssd.capacity_bytes - reserve))


def _clean(state: State, level: Level, copy: Copy) -> bool:
    """Make the coldest copy reclaimable, or set it on its way down; False when that must wait."""
    verdict = judge(state, copy)
    if verdict.may_go:
        assert copy.queue is not None
        copy.queue.remove(copy)
        level.reclaimable.push_newest(copy)
        if verdict is not Verdict.COVERED:
            state.tell(copy.block.key, "not demoted", copy.tier, explain(state, copy, verdict))
        return True
    return verdict is not Verdict.HELD and _send_down(state, copy)
