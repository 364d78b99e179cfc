"""Which frame of the DRAM arena is free.

The arena is one linear space of 4 KiB pages, cut into segments of one size. A segment is given to one
frame size on demand and taken back when wholly free, so two geometries share an arena without
fragmenting it. A frame number is the index of the frame's first page. Called by the planner alone.
"""

from __future__ import annotations

from array import array

PAGE_BYTES = 4096


class FramePool:
    """Free lists by frame size. Taking and giving are O(1) per frame; an assignment is O(frames of it)."""

    def __init__(self, segment_bytes: int, segment_count: int) -> None:
        assert segment_bytes % PAGE_BYTES == 0
        assert segment_bytes * segment_count // PAGE_BYTES < 1 << 32, "frame numbers are u32"
        self.segment_pages = segment_bytes // PAGE_BYTES
        self.segment_count = segment_count
        self._unassigned = array("I", reversed(range(segment_count)))
        self._size = array("I", [0] * segment_count)  # pages per frame of each segment, 0 = unassigned
        self._used = array("I", [0] * segment_count)  # frames taken from each segment
        self._free: dict[int, array[int]] = {}  # free frames by pages per frame
        self._idle: dict[int, int] = {}  # assigned segments with no frame in use, by pages per frame
        self._draining = -1  # the one segment whose frames are not given out again
        self.used_pages = 0

    @property
    def total_pages(self) -> int:
        return self.segment_pages * self.segment_count

    def free_frames(self, frame_pages: int) -> int:
        """Frames of this size that could be taken now, without evicting anything."""
        per_segment = self.segment_pages // frame_pages
        return len(self._free.get(frame_pages, ())) + len(self._unassigned) * per_segment

    def fits(self, frame_pages: int, count: int) -> bool:
        """Whether the whole arena, empty, could hold `count` frames of this size."""
        return count <= self.segment_pages // frame_pages * self.segment_count

    def take(self, frame_pages: int, count: int) -> tuple[int, ...] | None:
        """`count` frames of `frame_pages` pages, or None: all or nothing."""
        free = self._free.get(frame_pages)
        if free is None:
            free = self._free[frame_pages] = array("I")
        while len(free) < count:
            if not self._unassigned and not self._take_back(frame_pages):
                return None
            if not self._assign(frame_pages, free):
                return None
        frames = tuple([free.pop() for _ in range(count)])
        used, segment_pages = self._used, self.segment_pages
        for frame in frames:
            segment = frame // segment_pages
            if used[segment] == 0:
                self._idle[frame_pages] -= 1
            used[segment] += 1
        self.used_pages += frame_pages * count
        return frames

    def give(self, frame_pages: int, frames: tuple[int, ...]) -> None:
        """Frames that no copy and no transfer names any more."""
        free, used, segment_pages = self._free[frame_pages], self._used, self.segment_pages
        for frame in frames:
            segment = frame // segment_pages
            assert self._size[segment] == frame_pages
            assert used[segment] > 0
            used[segment] -= 1
            if used[segment] == 0:
                self._idle[frame_pages] += 1
            if segment != self._draining:
                free.append(frame)
            elif used[segment] == 0:
                self._unassign(segment)
        self.used_pages -= frame_pages * len(frames)

    def drain_for(self, frame_pages: int) -> None:
        """Empty one segment of other sizes for this one: its freed frames are not given out again.

        The segment with the fewest frames in use is chosen; a drain under way is kept.
        """
        if self._draining >= 0:
            return
        others = [at for at in range(self.segment_count) if self._size[at] not in (0, frame_pages)]
        if not others:
            return
        segment = min(others, key=lambda at: self._used[at])
        self._draining = segment
        self._forget_free(segment)
        if self._used[segment] == 0:
            self._unassign(segment)

    def _assign(self, frame_pages: int, free: array[int]) -> bool:
        per_segment = self.segment_pages // frame_pages
        if per_segment == 0:
            return False
        segment = self._unassigned.pop()
        assert self._used[segment] == 0
        self._size[segment] = frame_pages
        self._idle[frame_pages] = self._idle.get(frame_pages, 0) + 1
        first = segment * self.segment_pages
        free.extend(reversed(range(first, first + per_segment * frame_pages, frame_pages)))
        return True

    def _take_back(self, frame_pages: int) -> bool:
        """Take one wholly free segment back from another size."""
        if not any(count for size, count in self._idle.items() if size != frame_pages):
            return False
        for segment in range(self.segment_count):
            if self._size[segment] not in (0, frame_pages) and self._used[segment] == 0:
                self._forget_free(segment)
                self._unassign(segment)
                return True
        return False

    def _forget_free(self, segment: int) -> None:
        pages, size = self.segment_pages, self._size[segment]
        self._free[size] = array("I", [frame for frame in self._free[size] if frame // pages != segment])

    def _unassign(self, segment: int) -> None:
        self._idle[self._size[segment]] -= 1
        self._size[segment] = 0
        self._unassigned.append(segment)
        if segment == self._draining:
            self._draining = -1

    def recount(self) -> dict[int, int]:
        """For the invariants: frames in use by segment, checked against the free lists."""
        for segment in range(self.segment_count):
            size = self._size[segment]
            if size == 0:
                assert self._used[segment] == 0
                continue
            free = sum(frame // self.segment_pages == segment for frame in self._free[size])
            if segment == self._draining:
                assert free == 0
            else:
                assert free + self._used[segment] == self.segment_pages // size
        return {at: used for at, used in enumerate(self._used) if used}
