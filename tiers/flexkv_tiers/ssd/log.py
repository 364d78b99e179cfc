"""The log: which segment and page a record goes to, which segments are free, and every byte's account.

Pure and synchronous: it decides and counts, `SsdStore` and `Cleaner` carry out and report back. A place
is taken when it is decided; a write that fails leaves a void. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from flexkv_py.core.messages import BlockName
from flexkv_tiers.ssd.budget import RewriteBudget
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, DeadMap, Entry, FooterSize, Layout, Shape
from flexkv_tiers.ssd.table import LIVE, Pages, RecordTable

SPARE_SHARE = 32
"""One segment in so many is kept free, so that reclaim has somewhere to go; at least one of a directory."""


class SegmentState(StrEnum):
    """What a segment is doing."""

    FREE = "free"
    """Holds nothing. Opened again only when nobody reads it any more."""
    OPENING = "opening"
    """Its header is being written."""
    ACTIVE = "active"
    """Takes records. One of a directory."""
    SEALING = "sealing"
    """Takes no more; its last writes or its footer are under way."""
    SEALED = "sealed"
    """Ends in a footer, or its entries are kept in memory because the footer could not be written."""
    RECLAIMING = "reclaiming"
    """Its live records are being moved away."""
    BROKEN = "broken"
    """Its header cannot be written: what can be read is served, nothing else."""
    DELETED = "deleted"
    """Its file was deleted underneath: what can be read is served while it is open."""
    UNREAD = "unread"
    """From the last life and not looked at yet."""


_EMPTIED = (SegmentState.SEALING, SegmentState.SEALED, SegmentState.RECLAIMING, SegmentState.UNREAD)


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file of one directory. `index` is its number in the whole log, `number` that in its directory."""

    index: int
    disk: int
    number: int
    dead: DeadMap
    state: SegmentState = SegmentState.FREE
    salt: bytes = b""
    sequence: int = FREE
    next_page: int = 0  # where the next record goes; behind the last one when no more is taken
    live_pages: int = 0  # of records that are there or being written
    live_count: int = 0
    writes: int = 0  # running
    map_writes: int = 0  # drops that are not durable yet
    readers: int = 0
    entries: dict[int, tuple[int, Entry]] = field(
        default_factory=dict
    )  # page -> slot, entry; until the footer is there
    slots: array[int] = field(default_factory=lambda: array("I"))  # of records the footer names; some have left
    footer: FooterSize = field(default_factory=FooterSize)

    def begin(self, layout: Layout, salt: bytes, sequence: int) -> None:
        """A new life: empty, with a salt no earlier record has."""
        assert not self.live_pages
        assert not self.readers
        self.dead = DeadMap(layout.map_count)
        self.salt, self.sequence = salt, sequence
        self.next_page = layout.first_page
        self.entries, self.slots, self.footer = {}, array("I"), FooterSize()


@dataclass(slots=True)
class Disk:
    """The segments of one directory."""

    segments: list[Segment] = field(default_factory=list)
    active: Segment | None = None
    segments_planned: int = 0  # by capacity
    segments_max: int = 0  # what the file system has room for, of those
    writing_bytes: int = 0  # of writes placed here and not ended
    for_cleaner: bool = False  # the active segment was the last free one: only rewrites go there

    def free(self) -> list[Segment]:
        """Segments that could be opened now."""
        return [
            each
            for each in self.segments
            if each.state is SegmentState.FREE and not each.readers and not each.map_writes
        ]

    @property
    def made_count(self) -> int:
        """Segments that have a file."""
        return sum(each.state is not SegmentState.DELETED for each in self.segments)

    @property
    def free_count(self) -> int:
        """Segments that can be opened, those not made yet included."""
        return max(0, self.segments_max - self.made_count) + len(self.free())


@dataclass(slots=True, eq=False)
class Placed:
    """Room taken for one record."""

    segment: Segment
    entry: Entry


def spare_count(segment_count: int) -> int:
    """Segments of a directory's `segment_count` that hold no live records."""
    return max(1, segment_count // SPARE_SHARE)


class Log:
    """Segments of all directories, the records in them, and what may be written where."""

    def __init__(self, disk_count: int, usable_bytes: int, budget: RewriteBudget) -> None:
        self.disks = [Disk() for _ in range(disk_count)]
        self.segments: list[Segment] = []
        self.table = RecordTable()
        self.budget = budget
        self.layout: Layout | None = None  # until the first segment is met or made
        self.sequence = FREE
        self.live_pages = 0
        self.recovering = False  # segments of the last life are being read: more may come free
        self.older: dict[int, list[tuple[Segment, int]]] = {}  # slot -> where it lay, while those segments are not free
        self._usable_pages = usable_bytes // PAGE_BYTES
        self._claimed_pages = 0  # of writes admitted and not ended
        self._turn = 0

    # --------------------------------------------------------------- segments

    def fix(self, layout: Layout, segments_max: Sequence[int]) -> None:
        """From here on segments look like this, at most so many in each directory."""
        assert self.layout is None
        self.layout = layout
        for disk, most in zip(self.disks, segments_max, strict=True):
            disk.segments_planned = disk.segments_max = most

    def add_segment(self, disk: int, number: int, state: SegmentState) -> Segment:
        """A segment met at start, or made."""
        assert self.layout is not None
        segment = Segment(len(self.segments), disk, number, DeadMap(self.layout.map_count), state)
        self.segments.append(segment)
        self.disks[disk].segments.append(segment)
        return segment

    def next_number(self, disk: int) -> int:
        """A number no segment of this directory has."""
        return 1 + max((segment.number for segment in self.disks[disk].segments), default=0)

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def may_open(self, disk: int, *, rewriting: bool) -> bool:
        """Whether another segment may be opened: the last free one is for rewrites."""
        return self.disks[disk].free_count > (0 if rewriting else 1)

    def cut(self, disk: int) -> None:
        """The file system has no room for another segment: go on with those that are there."""
        self.disks[disk].segments_max = self.disks[disk].made_count

    def restore(self, disk: int) -> None:
        """The file system has room again."""
        self.disks[disk].segments_max = self.disks[disk].segments_planned

    def activate(self, segment: Segment, *, rewriting: bool) -> None:
        """Records go into this one from here on."""
        disk = self.disks[segment.disk]
        assert disk.active is None
        assert segment.state is SegmentState.OPENING
        segment.state = SegmentState.ACTIVE
        disk.active = segment
        disk.for_cleaner = rewriting and disk.free_count == 0

    def retire(self, disk: int) -> Segment | None:
        """The active segment takes no more; returns it, to be sealed when its writes have ended."""
        active, self.disks[disk].active = self.disks[disk].active, None
        self.disks[disk].for_cleaner = False
        if active is not None:
            active.state = SegmentState.SEALING
        return active

    def only_active(self, disk: int) -> bool:
        """Whether nothing but the active segment could be emptied."""
        segments = self.disks[disk].segments
        return not any(each.state in _EMPTIED for each in segments) and not self.disks[disk].for_cleaner

    def sealed(self, segment: Segment) -> bool:
        """No write to the segment is running and its footer is written, or not needed; True when it is free."""
        assert segment.state is SegmentState.SEALING
        assert not segment.writes
        segment.state = SegmentState.SEALED
        return self.free_if_empty(segment)

    def keep_footer(self, segment: Segment) -> None:
        """The footer on disk has at least the segment's entries: only the slots are kept."""
        segment.slots = array("I", [slot for slot, _ in segment.entries.values()])
        segment.entries = {}

    def free_if_empty(self, segment: Segment) -> bool:
        """Make a sealed segment without live records free.

        Not while a record lives that was moved away from it: its old place was never killed, so the cleaner must
        clear the segment first.
        """
        if segment.state is not SegmentState.SEALED or segment.live_count or segment.live_pages:
            return False
        if any(place[0] is segment for places in self.older.values() for place in places):
            return False
        segment.state = SegmentState.FREE
        return True

    def freed(self, segment: Segment) -> None:
        """A reclaimed segment's header says that it holds nothing."""
        assert segment.state is SegmentState.RECLAIMING
        assert not segment.live_pages
        segment.state = SegmentState.FREE
        segment.entries, segment.slots = {}, array("I")
        self._forget_older(segment)

    def _forget_older(self, segment: Segment) -> None:
        for slot, places in list(self.older.items()):
            left = [place for place in places if place[0] is not segment]
            if left:
                self.older[slot] = left
            else:
                del self.older[slot]

    # ----------------------------------------------------------------- places

    def admit(self, pages: int) -> bool:
        """Claim room for a record among the usable bytes. `release` gives it back."""
        if self.live_pages + self._claimed_pages + pages > self._usable_pages:
            return False
        self._claimed_pages += pages
        return True

    def release(self, pages: int) -> None:
        self._claimed_pages -= pages
        assert self._claimed_pages >= 0

    def choose_disk(self, shape: Shape, pages: int, down: Sequence[bool]) -> int:
        """The directory a new record goes to: with room at once, then with the least being written; in turns."""
        count = len(self.disks)
        self._turn = (self._turn + 1) % count
        best: tuple[bool, int] | None = None
        chosen = self._turn
        for step in range(count):
            number = (self._turn + step) % count
            if down[number]:
                continue
            disk = self.disks[number]
            has_room = disk.active is not None and not disk.for_cleaner and self._fits(disk.active, shape, pages)
            rank = (not has_room and not self.may_open(number, rewriting=False), disk.writing_bytes)
            if best is None or rank < best:
                best, chosen = rank, number
        return chosen

    def place(self, disk: int, block: BlockName, shape: Shape, pages: int, *, rewriting: bool = False) -> Placed | None:
        """Take room in the directory's active segment; None when it has none for this record."""
        active = self.disks[disk].active
        if active is None or (self.disks[disk].for_cleaner and not rewriting) or not self._fits(active, shape, pages):
            return None
        placed = Placed(active, Entry(active.next_page, pages, block, shape))
        active.next_page += pages
        active.live_pages += pages
        active.writes += 1
        active.footer.add(block, shape)
        self.disks[disk].writing_bytes += pages * PAGE_BYTES
        return placed

    def _fits(self, segment: Segment, shape: Shape, pages: int) -> bool:
        """Whether record and footer both fit."""
        assert self.layout is not None
        footer_pages = segment.footer.pages_with(shape)
        return footer_pages is not None and segment.next_page + pages + footer_pages <= self.layout.trailer_page

    def commit(self, placed: Placed) -> int:
        """A new record is durable: returns its location."""
        segment, entry = placed.segment, placed.entry
        self._end_write(placed)
        slot = self.table.add(segment.index, entry.page, entry.pages)
        self._enter(segment, slot, entry)
        self.live_pages += entry.pages
        self.budget.wrote(entry.pages * PAGE_BYTES)
        return self.table.location(slot)

    def commit_move(self, placed: Placed, slot: int) -> None:
        """A record is durable in its new place as well: from here on that is where it lies."""
        segment, entry = placed.segment, placed.entry
        self._end_write(placed)
        index, page = self.table.place(slot)
        old = self.segments[index]
        old.live_pages -= entry.pages
        old.live_count -= 1
        self.older.setdefault(slot, []).append((old, page))
        self.table.move(slot, segment.index, entry.page)
        self._enter(segment, slot, entry)
        self.budget.rewrote(entry.pages * PAGE_BYTES)

    def abandon(self, placed: Placed) -> None:
        """A write failed, or nobody wants it: its place is a void, and dead in case something got there."""
        self._end_write(placed)
        placed.segment.live_pages -= placed.entry.pages
        placed.segment.dead.kill(placed.entry.page)

    def _enter(self, segment: Segment, slot: int, entry: Entry) -> None:
        segment.live_count += 1
        segment.entries[entry.page] = (slot, entry)

    def _end_write(self, placed: Placed) -> None:
        placed.segment.writes -= 1
        self.disks[placed.segment.disk].writing_bytes -= placed.entry.pages * PAGE_BYTES
        assert placed.segment.writes >= 0

    def places(self, slot: int) -> list[tuple[Segment, int]]:
        """Everywhere on disk where the record can be found by a restart: its place, and those it was moved from."""
        index, page = self.table.place(slot)
        return [(self.segments[index], page), *self.older.get(slot, [])]

    def remove(self, slot: int) -> Segment:
        """The record is gone; returns the segment it lay in, which may be free now."""
        index, page = self.table.place(slot)
        segment, pages = self.segments[index], self.table.pages(slot)
        segment.live_pages -= pages
        segment.live_count -= 1
        segment.entries.pop(page, None)
        self.live_pages -= pages
        self.older.pop(slot, None)
        self.table.remove(slot)
        assert segment.live_pages >= 0
        assert segment.live_count >= 0
        self.free_if_empty(segment)
        return segment

    def settle(self, segment: Segment, first_pages: Pages, lengths: Pages) -> range:
        """Enter the records a restart met in a segment. Returns their slots."""
        slots = self.table.add_many(segment.index, first_pages, lengths)
        pages = int(lengths.sum())
        segment.live_pages += pages
        segment.live_count += len(lengths)
        self.live_pages += pages
        return slots

    # ---------------------------------------------------------------- account

    @property
    def room_pages(self) -> int:
        """Pages of a segment between its maps and its trailer."""
        assert self.layout is not None
        return self.layout.trailer_page - self.layout.first_page

    def used_pages(self, segment: Segment) -> int:
        """Pages taken by records, live, dead or void."""
        assert self.layout is not None
        return max(0, segment.next_page - self.layout.first_page)

    def live_slots(self, segment: Segment) -> Iterator[int]:
        """Slots of the records that lie in a segment now."""
        if segment.entries:
            for page, (slot, _) in segment.entries.items():
                if self.table.lies_at(slot, segment.index, page):
                    yield slot
        for slot in segment.slots:
            if self.table.has(slot, LIVE) and self.table.place(slot)[0] == segment.index:
                yield slot
