"""Which slot of which segment a record goes to: pure bookkeeping, no I/O.

A segment is one preallocated file cut into slots of one size, given to a record size on demand and
taken back when wholly free and another size needs the room. A location is one integer,
`segment << SLOT_BITS | slot`; segment numbers start at 1 and are never used twice in one life, so an
old location can only miss. `SsdStore` is the only caller and does the I/O that belongs to each step.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

SLOT_BITS = 24
SLOTS_MAX = 1 << SLOT_BITS
SEGMENTS_MAX = 4096
"""Each segment is an open file; beyond this the tier is full whatever its capacity."""


class SlotState(IntEnum):
    """What a slot holds."""

    FREE = 0
    """Nothing; its header on disk is no valid one."""
    USED = 1
    """A record, or one being written."""
    DAMAGED = 2
    """A record whose bytes were found wrong, or whose header could not be erased: not reused until dropped."""
    LEAVING = 3
    """Its header is being erased, or (at start) could not be: not readable, not reusable."""
    UNREAD = 4
    """From the last life and not looked at yet."""


@dataclass(slots=True)
class Segment:
    """One file of equal slots."""

    number: int
    slot_bytes: int
    states: bytearray
    free: array[int] = field(default_factory=lambda: array("I"))  # exactly the slots in state FREE
    retired: bool = False  # its file is gone: serves what is open, takes nothing new

    @property
    def slot_count(self) -> int:
        return len(self.states)

    @property
    def file_bytes(self) -> int:
        return self.slot_bytes * self.slot_count


@dataclass(frozen=True, slots=True)
class Growth:
    """What makes room: remove these segments, then create one of `slot_count` slots."""

    remove: tuple[int, ...]
    number: int
    slot_bytes: int
    slot_count: int


class SlotTable:
    """All slots of one directory. `used_bytes` counts whole files, full or not."""

    def __init__(self, capacity_bytes: int, segment_bytes: int) -> None:
        assert 0 < segment_bytes <= capacity_bytes
        self.capacity_bytes = capacity_bytes
        self.segment_bytes = segment_bytes
        self.used_bytes = 0
        self.segments: dict[int, Segment] = {}
        self._next_number = 1
        self._open: dict[int, list[int]] = {}  # slot size -> heap of segments that may have a FREE slot

    def add(self, number: int, slot_bytes: int, slot_count: int, state: SlotState) -> Segment:
        """Take in a segment whose file exists; all its slots are in `state`."""
        assert number not in self.segments
        assert 1 <= slot_count <= SLOTS_MAX
        segment = Segment(number, slot_bytes, bytearray([state]) * slot_count)
        self.segments[number] = segment
        self.used_bytes += segment.file_bytes
        self._next_number = max(self._next_number, number + 1)
        if state is SlotState.FREE:
            segment.free.extend(range(slot_count - 1, -1, -1))  # popped from the end: lowest first
            self._offer(segment)
        return segment

    def take(self, slot_bytes: int) -> int | None:
        """A free slot of this size, now USED. Lowest segment first, so that the last ones run empty."""
        heap = self._open.get(slot_bytes, [])
        while heap:
            segment = self.segments.get(heap[0])
            if segment is None or segment.retired or not segment.free:
                heapq.heappop(heap)
                continue
            slot = segment.free.pop()
            assert segment.states[slot] == SlotState.FREE
            segment.states[slot] = SlotState.USED
            return segment.number << SLOT_BITS | slot
        return None

    def plan_growth(self, slot_bytes: int) -> Growth | None:
        """How to get room for one more record of this size within the capacity, or None."""
        room, remove = self.capacity_bytes - self.used_bytes, []
        if room < slot_bytes:
            for segment in self.segments.values():
                if len(segment.free) == segment.slot_count:
                    room += segment.file_bytes
                    remove.append(segment.number)
                if room >= slot_bytes:
                    break
        wanted = min(max(1, self.segment_bytes // slot_bytes), SLOTS_MAX)
        slot_count = min(wanted, room // slot_bytes)
        if slot_count < 1 or len(self.segments) - len(remove) >= SEGMENTS_MAX:
            return None
        return Growth(tuple(remove), self._next_number, slot_bytes, slot_count)

    def remove(self, number: int) -> None:
        """Forget a wholly free segment; nothing can be taken from it any more."""
        segment = self.segments.pop(number)
        assert len(segment.free) == segment.slot_count
        self.used_bytes -= segment.file_bytes

    def set_state(self, location: int, state: SlotState) -> None:
        """Move a slot that is not FREE to another state."""
        segment, slot = self.segments[location >> SLOT_BITS], location & (SLOTS_MAX - 1)
        assert segment.states[slot] != SlotState.FREE
        segment.states[slot] = state
        if state is SlotState.FREE:
            segment.free.append(slot)
            if len(segment.free) == 1:
                self._offer(segment)

    def state(self, location: int) -> SlotState:
        """State of a slot; one that does not exist is FREE."""
        segment, slot = self.segments.get(location >> SLOT_BITS), location & (SLOTS_MAX - 1)
        if location < 0 or segment is None or slot >= segment.slot_count:
            return SlotState.FREE
        return SlotState(segment.states[slot])

    def place(self, location: int) -> tuple[Segment, int]:
        """Segment of a location, and the byte offset of the slot in its file."""
        segment = self.segments[location >> SLOT_BITS]
        return segment, (location & (SLOTS_MAX - 1)) * segment.slot_bytes

    def count(self, state: SlotState) -> int:
        return sum(segment.states.count(state) for segment in self.segments.values())

    def _offer(self, segment: Segment) -> None:
        heap = self._open.setdefault(segment.slot_bytes, [])
        if segment.number not in heap:
            heapq.heappush(heap, segment.number)
