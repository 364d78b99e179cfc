"""Which frame of the DRAM arena is free.

The arena is one linear space of 4 KiB pages, cut into segments of one size. A segment is given to one
frame size on demand and taken back when wholly free, so two geometries share an arena without
fragmenting it. A frame number is the index of the frame's first page. Called by the planner alone.

Frames travel packed (u32 each, in native order): a block's worth is taken and given back by one slice,
with no work per frame. How full a segment is, is counted only in the rare case that a size runs out
while others hold segments.
"""

from __future__ import annotations

from array import array
from collections import Counter

from flexkv_py.geometry import ALIGN_BYTES

FRAME_NUMBER_BYTES = 4


class FramePool:
    """Free frames by size. Taking and giving cost the same however many frames there are."""

    def __init__(self, segment_bytes: int, segment_count: int) -> None:
        assert segment_bytes % ALIGN_BYTES == 0
        assert segment_bytes * segment_count // ALIGN_BYTES < 1 << 32, "frame numbers are u32"
        self.segment_pages = segment_bytes // ALIGN_BYTES
        self.segment_count = segment_count
        self._unassigned = array("I", reversed(range(segment_count)))
        self._size = array("I", [0] * segment_count)  # pages per frame of each segment, 0 = unassigned
        self._segments: Counter[int] = Counter()  # assigned segments by pages per frame
        self._free: dict[int, array[int]] = {}  # free frames by pages per frame
        self._draining = -1  # the one segment whose frames are not given out again
        self._drained = 0  # frames of it that have come back
        self.used_pages = 0

    @property
    def total_pages(self) -> int:
        return self.segment_pages * self.segment_count

    def fits(self, frame_pages: int, count: int) -> bool:
        """Whether the whole arena, empty, could hold `count` frames of this size."""
        return count <= self._per_segment(frame_pages) * self.segment_count

    def take(self, frame_pages: int, count: int) -> bytes | None:
        """`count` frames of `frame_pages` pages, packed, or None: all or nothing."""
        free = self._free.get(frame_pages)
        if free is None:
            free = self._free[frame_pages] = array("I")
        while len(free) < count:
            if not self._unassigned and not self._take_back(frame_pages):
                return None
            if not self._assign(frame_pages, free):
                return None
        frames = free[-count:].tobytes()
        del free[-count:]
        self.used_pages += frame_pages * count
        return frames

    def give(self, frame_pages: int, frames: bytes) -> None:
        """Frames that no copy and no transfer names any more."""
        if self._draining >= 0 and self._size[self._draining] == frame_pages:
            frames = self._keep_drained(frames)
        self._free[frame_pages].frombytes(frames)
        self.used_pages -= frame_pages * (len(frames) // FRAME_NUMBER_BYTES)
        assert self.used_pages >= 0

    def drain_for(self, frame_pages: int) -> None:
        """Empty one segment of other sizes for this one: its freed frames are not given out again.

        The segment with the most free frames is chosen; a drain under way is kept.
        """
        if self._draining >= 0:
            return
        others = [at for at in range(self.segment_count) if self._size[at] not in (0, frame_pages)]
        if not others:
            return
        free = self._free_by_segment()
        segment = max(others, key=lambda at: free[at] / self._per_segment(self._size[at]))
        self._draining, self._drained = segment, free[segment]
        self._forget_free(segment)
        self._end_drain()

    def _per_segment(self, frame_pages: int) -> int:
        return self.segment_pages // frame_pages

    def _assign(self, frame_pages: int, free: array[int]) -> bool:
        per_segment = self._per_segment(frame_pages)
        if per_segment == 0:
            return False
        segment = self._unassigned.pop()
        self._size[segment] = frame_pages
        self._segments[frame_pages] += 1
        first = segment * self.segment_pages
        free.extend(range(first, first + per_segment * frame_pages, frame_pages))
        return True

    def _take_back(self, frame_pages: int) -> bool:
        """Take one wholly free segment back from another size, where there can be one."""
        for size, count in self._segments.items():
            if count and size != frame_pages and len(self._free[size]) >= self._per_segment(size):
                break
        else:
            return False  # so whenever there is only one size: no more may be paid for that
        for segment, free in self._free_by_segment().items():
            size = self._size[segment]
            if size != frame_pages and free == self._per_segment(size):
                self._forget_free(segment)
                self._unassign(segment)
                return True
        return False

    def _free_by_segment(self) -> Counter[int]:
        return Counter(frame // self.segment_pages for free in self._free.values() for frame in free)

    def _forget_free(self, segment: int) -> None:
        pages, size = self.segment_pages, self._size[segment]
        self._free[size] = array("I", [frame for frame in self._free[size] if frame // pages != segment])

    def _keep_drained(self, frames: bytes) -> bytes:
        """Hold back what belongs to the draining segment; the rest is returned."""
        kept = array("I")
        pages, size = self.segment_pages, self._size[self._draining]
        for frame in array("I", frames):
            if frame // pages == self._draining:
                self._drained += 1
                self.used_pages -= size
            else:
                kept.append(frame)
        self._end_drain()
        return kept.tobytes()

    def _end_drain(self) -> None:
        if self._drained == self._per_segment(self._size[self._draining]):
            segment, self._draining = self._draining, -1
            self._unassign(segment)

    def _unassign(self, segment: int) -> None:
        self._segments[self._size[segment]] -= 1
        self._size[segment] = 0
        self._unassigned.append(segment)
