"""The warm restart: what the segments of the last life hold, read in order of age, in bounded batches.

A sealed segment is believed by its footer; one without is scanned and every checksum verified. Dropped
records are left out by the dead map. Of two records of one block the later one counts, and the older is
dropped. `SsdStore.found` is the only caller.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np

from flexkv_py.core.messages import BlockName, FoundBlock
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.diskio import DiskFuture, settle
from flexkv_tiers.ssd.editions import Place, editions
from flexkv_tiers.ssd.format import (
    ENTRY,
    MAP_BIT_PAGES,
    PAGE_BYTES,
    Footer,
    Group,
    Layout,
    Rows,
    parse_footer,
    parse_trailer,
)
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.roller import Roller
from flexkv_tiers.ssd.scan import Scan, scan
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.stripe import Stripe

_log = logging.getLogger(__name__)

SEGMENTS_IN_FLIGHT = 4
"""Segments whose footers are read ahead."""
RESUME_SHARE_MIN = 8
"""A sealed segment is filled further only when at least one part in so many of it is left."""
BATCH_BLOCKS_MAX = 4096
"""Blocks told at a time: bounds how long whoever hears of them is busy."""
_found_block = partial(tuple.__new__, FoundBlock)
"""A tuple of three as a FoundBlock; half the time of calling it."""


@dataclass(slots=True)
class Census:
    """What the restart met. Each damaged thing is counted once, by its cause."""

    found: int = 0
    duplicates: int = 0
    torn: int = 0
    """Records without a footer whose bytes are not whole: interrupted writes, or damage."""
    headers_damaged: int = 0
    """Segments whose header is no header of this directory: nothing in them is believed."""
    maps_damaged: int = 0
    """Segments whose dead map is damaged in both copies: nothing in them is believed."""
    footers_damaged: int = 0
    """Sealed segments whose footer or trailer is damaged: they were scanned instead."""
    unreadable: int = 0
    """Places that could not be read at all."""
    segments_removed: int = 0
    scanned: int = 0

    @property
    def damaged(self) -> int:
        return self.torn + self.headers_damaged + self.maps_damaged + self.footers_damaged + self.unreadable

    def tell(self) -> None:
        """One line in the log when anything was lost, in the words of the status."""
        causes = ("torn", "headers_damaged", "maps_damaged", "footers_damaged", "unreadable", "segments_removed")
        if met := [f"found_{name} {count}" for name in causes if (count := getattr(self, name))]:
            _log.warning("SSD: damaged, or over the capacity, and so not served: %s", ", ".join(met))

    def as_dict(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(slots=True)
class Index:
    """What one segment holds: by its footer, or by a scan; neither when it is not to be believed."""

    segment: Segment
    footer: Footer | None = None
    scan: Scan | None = None
    maps_damaged: bool = False
    footer_damaged: bool = False
    resume: bool = False  # records may be added to it
    rows: Rows = field(default_factory=lambda: np.zeros(0, ENTRY))  # records that count: not dropped, not replaced
    slots: range = range(0)  # of those


@dataclass(slots=True)
class Recovery:
    """One warm restart. `running` has ended when every segment was looked at."""

    log: Log
    stripes: Sequence[Stripe]
    roller: Roller
    census: Census
    failed: Callable[[TierFault], None]
    _kills: list[DiskFuture[None]] = field(default_factory=list)

    async def found(self) -> AsyncIterator[FoundBatch]:
        """Every segment that was not looked at yet, oldest first. All are read before the first record is told."""
        unread = [each for each in self.log.segments if each.state is SegmentState.UNREAD]
        unread.sort(key=lambda segment: segment.sequence)
        newest = {segment.disk: segment for segment in unread}  # the last of each directory
        indexes = await self._read(unread)
        self._enter(indexes)
        for index in _used_up(indexes):
            self._begin(index, is_newest=newest[index.segment.disk] is index.segment)
            for batch in _batches(index, self.log.table.locations(index.slots)):
                yield batch
            await self._finish(index)
        self.census.tell()

    async def _read(self, unread: list[Segment]) -> list[Index]:
        waiting, ahead = deque(unread), deque[asyncio.Task[Index]]()
        indexes: list[Index] = []
        try:
            while waiting or ahead:
                while waiting and len(ahead) < SEGMENTS_IN_FLIGHT:
                    segment = waiting.popleft()
                    reading = read_index(self.stripes[segment.disk], segment, self.roller.layout, self.failed)
                    ahead.append(asyncio.create_task(reading))
                indexes.append(await ahead[0])
                ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)
        return indexes

    # --------------------------------------------------------------- all of them

    def _enter(self, indexes: list[Index]) -> None:
        """Enter every record that counts into the log: of those of one block the last written."""
        believed, footers = [], []
        for index in indexes:
            segment = index.segment
            assert not segment.live_count  # a restart is read to its end, once
            segment.next_page = self.roller.layout.first_page
            if index.footer is None:
                continue
            end = index.footer.end if index.scan is None else index.scan.end
            segment.next_page = max(segment.next_page, segment.dead.end, end)
            believed.append(index)
            index.rows = index.segment.dead.alive(index.footer.rows)
            footers.append(Footer(index.footer.groups, index.footer.shapes, index.rows))
        several = editions(footers)
        replaced: dict[int, list[int]] = {}
        for *older, _ in several:
            for at, row in older:
                replaced.setdefault(at, []).append(row)
        for at, index in enumerate(believed):
            if at in replaced:
                index.rows = np.delete(index.rows, replaced[at])
            index.slots = self.log.settle(index.segment, index.rows["page"], index.rows["pages"])
            index.segment.slots.extend(index.slots)
            self.census.found += len(index.rows)
        for *older, last in several:
            self._replace(believed, footers, older, last)

    def _replace(self, believed: list[Index], footers: list[Footer], older: list[Place], last: Place) -> None:
        """The last record of a block counts; the others are dropped, and are known as long as they may be found."""
        index, row = believed[last[0]], footers[last[0]].rows[last[1]]
        slot = index.slots[int(np.searchsorted(index.rows["page"], row["page"]))]
        group = footers[last[0]].groups[int(row["group"])]
        self.log.older[slot] = [(believed[at].segment, int(footers[at].rows["page"][number])) for at, number in older]
        self.census.duplicates += len(older)
        for (segment, page), (at, number) in zip(self.log.older[slot], older, strict=True):
            key, parent = footers[at].rows[["key", "parent"]][number].tolist()
            self._bury(segment, BlockName(*group, key, parent), page)

    # --------------------------------------------------------------- one segment

    def _begin(self, index: Index, *, is_newest: bool) -> None:
        """What a segment is from here on."""
        segment, footer = index.segment, index.footer
        self.census.maps_damaged += index.maps_damaged
        self.census.footers_damaged += index.footer_damaged
        if index.scan is not None:
            assert footer is not None
            self._count_scan(segment, index.scan)
            segment.state = SegmentState.SEALING
            index.resume = is_newest and not index.footer_damaged
            self._keep_entries(segment, footer)
        elif footer is not None:
            index.resume = is_newest and footer.is_clean and self._has_room(segment)
            if not footer.is_clean:
                self._bury_unnamed(segment, footer)
        else:
            segment.state = SegmentState.RECLAIMING  # to be cleared

    def _has_room(self, segment: Segment) -> bool:
        layout = self.roller.layout
        return (layout.trailer_page - segment.next_page) * RESUME_SHARE_MIN >= layout.pages

    def _count_scan(self, segment: Segment, found: Scan) -> None:
        self.census.scanned += 1
        self.census.torn += len(found.torn)
        self.census.unreadable += len(found.unreadable)
        starts = {entry.page // MAP_BIT_PAGES for entry in found.entries}  # whose bits no other page may set
        for page, block in found.torn.items():
            if page // MAP_BIT_PAGES not in starts:
                self._bury(segment, block, page)
        for run in found.unreadable:  # what this life does not know must not come up in a later one
            self._bury(segment, None, *(page for page in run if page // MAP_BIT_PAGES not in starts))
        segment.next_page = max(segment.next_page, segment.dead.end)  # a record there would be born dead

    def _bury_unnamed(self, segment: Segment, footer: Footer) -> None:
        """Nothing but what the footer names is to be found: a life that loses the footer would scan the segment."""
        starts = {page // MAP_BIT_PAGES for page in footer.rows["page"].tolist()}
        pages = range(self.roller.layout.first_page, self.roller.layout.trailer_page, MAP_BIT_PAGES)
        unsaid = (page for page in pages if page // MAP_BIT_PAGES not in starts and not segment.dead.is_dead(page))
        self._bury(segment, None, *unsaid)

    def _bury(self, segment: Segment, block: BlockName | None, *pages: int) -> None:
        if pages:
            self._kills.append(self.stripes[segment.disk].bury(segment, block, *pages))

    def _keep_entries(self, segment: Segment, footer: Footer) -> None:
        """What a footer will be made of."""
        entries = {entry.page: entry for entry in footer.entries()}
        for entry in entries.values():
            segment.footer.add(entry.block, entry.shape)
        slots, segment.slots = segment.slots, array("I")
        for slot in slots:
            page = self.log.table.place(slot)[1]
            if self.log.table.lies_at(slot, segment.index, page):
                segment.entries[page] = (slot, entries[page])

    async def _finish(self, index: Index) -> None:
        """What a segment needs on disk after it was read: drops of what is not wanted, an end, or emptying."""
        segment = index.segment
        if segment.state is SegmentState.UNREAD:  # until now nothing could be reclaimed that was not told yet
            segment.state = SegmentState.SEALED
        kills, self._kills = self._kills, []
        cancelled = [await settle(kill) for kill in kills]
        if any(cancelled):  # what failed is owed
            raise asyncio.CancelledError
        if index.footer is None:  # by its state one could not tell: the cleaner may be emptying it by now
            try:
                await self.stripes[segment.disk].clear(segment, self.roller.layout)
            except TierFault as fault:
                self.failed(fault)
                segment.state = SegmentState.BROKEN
                self.stripes[segment.disk].owe_clearing(segment)
            else:
                self.log.freed(segment)
        if index.resume:
            await self._resume(segment, index)
        self.roller.write_ended(segment)
        self.log.free_if_empty(segment)

    async def _resume(self, segment: Segment, index: Index) -> None:
        """Go on filling the segment the last life wrote to last, unless another was opened meanwhile."""
        stripe, disk = self.stripes[segment.disk], self.log.disks[segment.disk]
        async with stripe.rolling:
            if disk.active is not None or segment.state not in (SegmentState.SEALED, SegmentState.SEALING):
                return  # or it is being emptied already
            if segment.state is SegmentState.SEALED:
                segment.state = SegmentState.OPENING  # no victim any more
                try:
                    await stripe.unseal(segment, self.roller.layout)
                except TierFault as fault:
                    self.failed(fault)
                    segment.state = SegmentState.SEALED
                    return
                assert index.footer is not None
                self._keep_entries(segment, index.footer)
            segment.state = SegmentState.ACTIVE
            disk.active = segment


async def read_index(stripe: Stripe, segment: Segment, layout: Layout, failed: Callable[[TierFault], None]) -> Index:
    """Read a segment's dead maps, then its footer or else all of it. `failed` hears what was damaged.

    Neither of one without a salt, whose header is not believed.
    """
    io, file = stripe.io, stripe.files[segment.index]
    index = Index(segment)
    if not segment.salt:
        return index
    with io.pages(layout.first_page - 1) as memory:
        try:
            await io.read(file, [memory], PAGE_BYTES, partial(_load_maps, segment, memory, layout))
        except TierFault as fault:
            failed(fault)
            index.maps_damaged = True
            return index
    try:
        index.footer = await read_footer(stripe, segment, layout)
    except TierFault as fault:
        failed(fault)
        index.footer_damaged = True
    if index.footer is None:
        index.scan = await scan(io, file, layout, segment.salt, segment.dead)
        index.footer = _as_footer(index.scan)
    return index


async def read_footer(stripe: Stripe, segment: Segment, layout: Layout) -> Footer | None:
    """A segment's footer; None when this life of it was never sealed. Raises TierFault, CORRUPT when it is damaged."""
    io, file = stripe.io, stripe.files[segment.index]
    with io.pages(1) as memory:
        parse = partial(parse_trailer, memory, layout, segment.salt)
        trailer = await io.read(file, [memory], layout.trailer_page * PAGE_BYTES, parse)
    if trailer is None:
        return None
    with io.pages(max(1, trailer.footer_count)) as memory:
        job = partial(parse_footer, memory, trailer, layout, segment.salt)
        return await io.read(file, [memory], trailer.footer_page * PAGE_BYTES, job)


def _used_up(indexes: list[Index]) -> Iterator[Index]:
    """One after the other, each let go of when the next is asked for: together they take as much as all footers."""
    indexes.reverse()
    while indexes:
        yield indexes.pop()


def _batches(index: Index, locations: range) -> Iterator[FoundBatch]:
    """A segment's records by group, length and shape, in bounded batches. A million pass here."""
    footer, rows = index.footer, index.rows
    kinds = rows[["pages", "shape", "group"]].tolist() if footer else []
    for kind in dict.fromkeys(kinds):
        assert footer is not None
        pages, shape, group = kind
        same = (rows["pages"] == pages) & (rows["shape"] == shape) & (rows["group"] == group)
        numbers = np.flatnonzero(same)
        for at in range(0, len(numbers), BATCH_BLOCKS_MAX):
            some = numbers[at : at + BATCH_BLOCKS_MAX]
            columns = rows["key"][some].tolist(), rows["parent"][some].tolist(), (some + locations.start).tolist()
            blocks = list(map(_found_block, zip(*columns, strict=True)))
            namespace, shard = footer.groups[group]
            yield FoundBatch(namespace, shard, pages * PAGE_BYTES, blocks, footer.shapes[shape])


def _load_maps(segment: Segment, memory: memoryview, layout: Layout) -> None:
    for number in range(layout.map_count):
        at = 2 * number * PAGE_BYTES
        segment.dead.load(number, memory[at : at + 2 * PAGE_BYTES], segment.salt)


def _as_footer(found: Scan) -> Footer:
    """A scan in the footer's words."""
    groups: dict[Group, int] = {}
    shapes: dict[tuple[int, ...], int] = {}
    rows = []
    for entry in found.entries:
        block = entry.block
        group = groups.setdefault((block.namespace, block.shard), len(groups))
        shape = shapes.setdefault(entry.shape, len(shapes))
        rows.append((entry.page, entry.pages, shape, group, block.key, block.parent))
    return Footer(list(groups), list(shapes), np.array(rows, ENTRY))
