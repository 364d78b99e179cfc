"""Making room: frames for a fill, bytes for a record. What keeps both cheap is `tenants.tending`.

Room is made where it is needed, when it is needed. Every loop here is bounded, so the cost of one
eviction does not depend on how many candidates there are.
"""

from __future__ import annotations

from enum import Enum

from flexkv_py.core.blocks import Block, Copy, DramCopy, Index
from flexkv_py.core.messages import DRAM, S3, Priority
from flexkv_py.core.moves import evict, start_demotion, start_reading, unpin
from flexkv_py.core.placement import HELD, REFUSED, WRITE, explain, judge_now, refusal, refusals, write_may_start
from flexkv_py.core.state import Level, State
from flexkv_py.core.transfers import Demand
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.tenants.shelf import Shelf

VICTIMS_PER_TAKE_MAX = 64
VICTIM_SCAN_MAX = 8
RECORDS_PER_FULL = 2
SHRUNK_NS = 60_000_000_000  # how long a tier that had less room than was counted is taken for that small


class Room(Enum):
    """Is there room for one more record?"""

    NOW = 1
    SOON = 2  # when the drops under way have ended
    NONE = 3  # everything in the tier must first be written further down


def take_frames(state: State, index: Index, count: int) -> bytes | None:
    """Frames (packed) for `count` chunks of this index, evicting what may go; None when nothing may go now.

    A tenant at its quota gives up its own; else whoever is most above its share does.
    """
    pages, owner, dram = index.frame_pages, index.owner, state.dram
    more_bytes, shelf = count * pages * ALIGN_BYTES, owner.shelves[dram.tier]
    for _ in range(VICTIMS_PER_TAKE_MAX):
        owner.at_quota = at_quota = shelf.capacity_bytes > 0 and shelf.lacks(more_bytes)
        frames = None if at_quota else state.frames.take(pages, count)
        if frames is not None:
            index.charge(dram.tier, more_bytes)
            return frames
        victim = evict_one(state, shelf if at_quota else dram.giver(shelf, more_bytes))
        if victim is None and not at_quota and not any(level.writes.count for level in state.below):
            victim = evict_one(state, shelf)  # what others have is held, and waiting would bring no room: so its own
        if victim is None:
            state.rows.short(owner if at_quota else None, count * pages)
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
    stood_ready = [copy.stands_ready for copy in kept]
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


def evict_one(state: State, room: Level | Shelf) -> Copy | None:
    """Evict the room's coldest copy that may go, and say which; what must be written first is set on its way down."""
    for _ in range(VICTIM_SCAN_MAX):
        copy = room.coldest()
        if copy is None:
            return None
        verdict = judge_now(state, copy)
        if verdict is HELD:
            state.touch(copy)  # out of the way of the scan until its lease ends
        elif verdict is WRITE:
            if not send_down(state, copy):
                return None
        else:
            if verdict is REFUSED:
                for rule in refusals(state, copy):
                    state.count("refused_admissions", rule)
            if room.tier is not DRAM:
                had_their_turn(state, copy)
            evict(state, copy, explain(state, copy, verdict))
            return copy
    return None


def had_their_turn(state: State, record: Copy) -> None:
    """Copies that stand ready to go because of a record stay so when it makes room, until the block is used again.

    Written once more they would push out the next record, whose copy above would be written again, and so on for ever.
    """
    block = record.block
    if any(copy.tier < record.tier and copy.stands_ready for copy in block.copies()):
        state.pushed_out[block] = block.uses


def send_down(state: State, copy: Copy) -> bool:
    """Start what a copy needs before it may go; False when that must wait."""
    return demote(state, copy.block, Priority.DEMOTION) if copy.tier is DRAM else stage_down(state, copy)


def demote(state: State, block: Block, priority: Priority) -> bool:
    """Write a DRAM block to the next tier down; False when that must wait.

    A tier that is full of blocks not yet further down is passed by, whatever the gates below it say, or
    DRAM would wait for the staging that itself needs DRAM.
    """
    passed, insists = "", block.needed
    for level in state.below:
        if not level.takes(block.index, state.now_ns):
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
    """Whether one more record fits this tier and its tenant's quota there; starts drops when it does not."""
    answer, rooms = Room.NOW, (index.shelves[level.tier], level)
    for room in rooms:
        target = room.capacity_bytes - index.record_bytes
        if not room.capacity_bytes or room.used_bytes <= target:
            continue
        drop_until(state, room, target, level.giver(rooms[0], index.record_bytes) if room is level else room)
        if room.used_bytes - room.dropping_bytes > target:
            return Room.NONE
        answer = Room.SOON
    return answer


def drop_until(state: State, room: Level | Shelf, target_bytes: int, giver: Level | Shelf | None = None) -> None:
    """Drop the coldest records (of `giver`) until, once the drops have ended, at most `target_bytes` are used."""
    for _ in range(VICTIM_SCAN_MAX):
        if room.used_bytes - room.dropping_bytes <= target_bytes or evict_one(state, giver or room) is None:
            return


def make_room_after_fault(state: State, level: Level, index: Index) -> None:
    """A tier had less room than we counted: take it for smaller, and drop the coldest for this write and the next."""
    level.capacity_bytes = max(level.used_bytes, index.record_bytes)
    level.shrunk_until_ns = state.now_ns + SHRUNK_NS
    state.wake_at(level.shrunk_until_ns, "shrunk", level.tier)
    dropping_bytes = level.dropping_bytes
    drop_until(state, level, level.used_bytes - dropping_bytes - RECORDS_PER_FULL * index.record_bytes)
    level.full = level.dropping_bytes == dropping_bytes


def stage_down(state: State, copy: Copy) -> bool:
    """Set an SSD copy aside and ask for its block in S3; False when enough are on their way.

    Never what S3 would refuse at once: it would come back, be the coldest again soon, and be set aside again, for ever.
    """
    waiting, level = state.demands[S3], state.levels[S3]
    if level.is_full(state.now_ns) or not level.writes.takes(copy.block.index.record_bytes, waiting=len(waiting)):
        return False
    state.pin(copy)
    state.want(Demand(copy.block, S3, None, 0, staged=copy))
    state.more = True
    return True
