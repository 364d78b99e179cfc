"""The log: which segment and page a record goes to, which segments are free, and every byte's account.

Pure and synchronous: it decides and counts, `SsdStore` and `Cleaner` carry out and report back. A place
is taken when it is decided; a write that fails leaves a void. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flexkv_py.core.messages import BlockName
from flexkv_tiers.ssd.budget import RewriteBudget
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, DeadMap, Entry, Layout, Shape
from flexkv_tiers.ssd.segment import EMPTIED, Disk, Segment, SegmentState
from flexkv_tiers.ssd.table import LIVE, Pages, RecordTable


@dataclass(slots=True, eq=False)
class Placed:
    """Room taken for one record."""

    segment: Segment
    entry: Entry


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

    @property
    def is_cut(self) -> bool:
        """Whether some file system has less room than its share: live records may be more than there is room for."""
        return any(disk.segments_max < disk.segments_planned for disk in self.disks)

    def activate(self, segment: Segment, *, rewriting: bool) -> None:
        """Records of this kind go into this one from here on."""
        disk = self.disks[segment.disk]
        assert disk.taking(rewriting=rewriting) is None
        assert segment.state is SegmentState.OPENING
        segment.state = SegmentState.ACTIVE
        if rewriting:
            disk.survivors = segment
        else:
            disk.active = segment

    def retire(self, segment: Segment) -> None:
        """An active segment takes no more; it is to be sealed when its writes have ended."""
        disk = self.disks[segment.disk]
        assert segment.state is SegmentState.ACTIVE
        assert segment in (disk.active, disk.survivors)
        if disk.active is segment:
            disk.active = None
        else:
            disk.survivors = None
        segment.state = SegmentState.SEALING
        segment.written_until = self.sequence  # not when it was opened: new records may have come last

    def may_share(self, disk: int) -> bool:
        """Whether new records may go on where rewritten ones went: there are such, and reclaim has a free segment."""
        return self.disks[disk].survivors is not None and self.may_open(disk, rewriting=True)

    def share(self, disk: int) -> None:
        """New records go on where rewritten ones went; the next of those will open a segment."""
        assert self.disks[disk].active is None
        self.disks[disk].active, self.disks[disk].survivors = self.disks[disk].survivors, None

    def only_active(self, disk: int) -> bool:
        """Whether nothing but segments that take records could be emptied, and none can be shared."""
        return not any(each.state in EMPTIED for each in self.disks[disk].segments) and not self.may_share(disk)

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

    def mended(self, segment: Segment) -> None:
        """A header says at last that the segment holds nothing."""
        if segment.state is SegmentState.BROKEN:
            segment.state = SegmentState.FREE

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
        """The directory a new record goes to: with room at once, then with the least being written; in turns.

        Where none has room, the one that holds the oldest segment: live records may have to go to make some.
        """
        count = len(self.disks)
        self._turn = (self._turn + 1) % count
        best: tuple[bool, int, int] | None = None
        chosen = self._turn
        for step in range(count):
            number = (self._turn + step) % count
            if down[number]:
                continue
            is_full = not self._has_room(number, shape, pages)
            rank = (is_full, self.oldest_sequence(number) if is_full else 0, self.disks[number].writing_bytes)
            if best is None or rank < best:
                best, chosen = rank, number
        return chosen

    def oldest_sequence(self, disk: int) -> int:
        """When the oldest sealed segment of a directory was last written; later than all where none is sealed."""
        sealed = (each.written_until for each in self.disks[disk].segments if each.state is SegmentState.SEALED)
        return min(sealed, default=self.sequence + 1)

    def has_room(self, shape: Shape, pages: int, down: Sequence[bool]) -> bool:
        """Whether a directory takes a new record at once, or can open a segment for it."""
        return any(not down[number] and self._has_room(number, shape, pages) for number in range(len(self.disks)))

    def _has_room(self, disk: int, shape: Shape, pages: int) -> bool:
        active = self.disks[disk].active
        return (active is not None and self._fits(active, shape, pages)) or self.may_open(disk, rewriting=False)

    def place(self, disk: int, block: BlockName, shape: Shape, pages: int, *, rewriting: bool = False) -> Placed | None:
        """Take room in the directory's segment for this kind; None when it has none for this record."""
        active = self.disks[disk].taking(rewriting=rewriting)
        if active is None or not self._fits(active, shape, pages):
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
