"""A segment of the log, what it is doing, and the segments of one directory: which take records, which are free.

Pure bookkeeping; `log` decides with it, and `roller`, `reclaim` and `recovery` carry out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from flexkv_py.core.messages import BlockName
from flexkv_tiers.ssd.format import FREE, DeadMap, Entry, FooterSize, Layout

APART_SEGMENTS_MIN = 12
"""From so many segments on a directory keeps rewritten records apart from new ones. With fewer, a second segment that
is not full costs more than is gained."""


class SegmentState(StrEnum):
    """What a segment is doing."""

    FREE = "free"
    """Holds nothing. Opened again only when nobody reads it any more."""
    OPENING = "opening"
    """Its header is being written."""
    ACTIVE = "active"
    """Takes records. At most two of a directory: one for new records, one for rewritten ones."""
    SEALING = "sealing"
    """Takes no more; its last writes or its footer are under way."""
    SEALED = "sealed"
    """Ends in a footer, or its entries are kept in memory because the footer could not be written."""
    RECLAIMING = "reclaiming"
    """Its live records are being moved away."""
    BROKEN = "broken"
    """Not believed, and its header could not be written so far: it is to be cleared."""
    DELETED = "deleted"
    """Its file was deleted underneath: what can be read is served while it is open."""
    UNREAD = "unread"
    """From the last life and not looked at yet."""


EMPTIED = (SegmentState.SEALING, SegmentState.SEALED, SegmentState.RECLAIMING, SegmentState.UNREAD)
"""In these states a segment is to be emptied, or could be."""


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
    written_until: int = FREE  # the log's sequence when it took its last record: none in it is younger
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
    owed: dict[int, BlockName | None] = field(default_factory=dict)  # places no map on disk says are dead: see `owed`
    footer: FooterSize = field(default_factory=FooterSize)

    def begin(self, layout: Layout, salt: bytes, sequence: int) -> None:
        """A new life: empty, with a salt no earlier record has."""
        assert not self.live_pages
        assert not self.readers
        assert not self.owed
        self.dead = DeadMap(layout.map_count)
        self.salt, self.sequence, self.written_until = salt, sequence, sequence
        self.next_page = layout.first_page
        self.entries, self.slots, self.footer = {}, array("I"), FooterSize()


@dataclass(slots=True)
class Disk:
    """The segments of one directory."""

    segments: list[Segment] = field(default_factory=list)
    active: Segment | None = None  # takes new records
    survivors: Segment | None = None  # takes records that reclaim rewrites
    segments_planned: int = 0  # by capacity
    segments_max: int = 0  # what the file system has room for, of those
    writing_bytes: int = 0  # of writes placed here and not ended

    @property
    def keeps_apart(self) -> bool:
        """Whether new and rewritten records go to different segments as long as there is room for both."""
        return self.segments_max >= APART_SEGMENTS_MIN

    def taking(self, *, rewriting: bool) -> Segment | None:
        """The segment that takes records of this kind."""
        return self.survivors if rewriting else self.active

    def free(self) -> list[Segment]:
        """Segments that could be opened now."""
        return [
            each
            for each in self.segments
            if each.state is SegmentState.FREE and not (each.readers or each.map_writes or each.owed)
        ]

    @property
    def made_count(self) -> int:
        """Segments that have a file."""
        return sum(each.state is not SegmentState.DELETED for each in self.segments)

    @property
    def free_count(self) -> int:
        """Segments that can be opened, those not made yet included."""
        return max(0, self.segments_max - self.made_count) + len(self.free())
