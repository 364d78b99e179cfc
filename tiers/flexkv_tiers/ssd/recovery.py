"""The warm restart: what the segments of the last life hold, read in order of age, in bounded batches.

A sealed segment is believed by its footer; one without is scanned and every checksum verified. Dropped
records are left out by the dead map. Of two records of one block the later one counts, and the older is
dropped. `SsdStore.found` is the only caller.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

from flexkv_py.core.messages import BlockName, FoundBlock
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.diskio import DiskFuture, settle
from flexkv_tiers.ssd.format import MAP_BIT_PAGES, PAGE_BYTES, Footer, Group, Layout, Row, parse_footer, parse_trailer
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.roller import Roller
from flexkv_tiers.ssd.scan import Scan, scan
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.stripe import Stripe

SEGMENTS_IN_FLIGHT = 4
"""Segments whose footers are read ahead."""
RESUME_SHARE_MIN = 8
"""A sealed segment is filled further only when at least one part in so many of it is left."""
BATCH_BLOCKS_MAX = 4096
"""Blocks told at a time: bounds how long whoever hears of them is busy."""


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


@dataclass(slots=True)
class Recovery:
    """One warm restart. `running` has ended when every segment was looked at."""

    log: Log
    stripes: Sequence[Stripe]
    roller: Roller
    census: Census
    failed: Callable[[TierFault], None]
    _locations: dict[Group, dict[bytes, int]] = field(default_factory=dict)
    _kills: list[DiskFuture[None]] = field(default_factory=list)
    _older: list[Segment] = field(default_factory=list)  # lost a record to the segment being entered

    async def found(self) -> AsyncIterator[FoundBatch]:
        """Every segment that was not looked at yet, oldest first."""
        unread = [each for each in self.log.segments if each.state is SegmentState.UNREAD]
        unread.sort(key=lambda segment: segment.sequence)
        newest = {segment.disk: segment for segment in unread}  # the last of each directory
        waiting = deque(unread)
        ahead: deque[asyncio.Task[Index]] = deque()
        try:
            while waiting or ahead:
                while waiting and len(ahead) < SEGMENTS_IN_FLIGHT:
                    segment = waiting.popleft()
                    reading = read_index(self.stripes[segment.disk], segment, self.roller.layout, self.failed)
                    ahead.append(asyncio.create_task(reading))
                index = await ahead[0]
                ahead.popleft()
                for batch in self._take(index, is_newest=newest[index.segment.disk] is index.segment):
                    yield batch
                await self._finish(index)
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    # --------------------------------------------------------------- one segment

    def _take(self, index: Index, *, is_newest: bool) -> list[FoundBatch]:
        """Enter what a segment holds into the log, and return its records in batches."""
        segment = index.segment
        segment.next_page = self.roller.layout.first_page
        self.census.maps_damaged += index.maps_damaged
        self.census.footers_damaged += index.footer_damaged
        if index.footer is not None:
            end = sum(index.footer.rows[-1][:2]) if index.footer.rows else 0
            segment.next_page = max(segment.next_page, end, segment.dead.end)
            index.resume = is_newest and index.footer.is_clean and self._has_room(segment)
            return self._enter(segment, index.footer)
        if index.scan is None:
            segment.state = SegmentState.RECLAIMING  # to be cleared
            return []
        self._count_scan(segment, index.scan)
        segment.state = SegmentState.SEALING
        index.resume = is_newest and not index.footer_damaged
        index.footer = _as_footer(index.scan)
        batches = self._enter(segment, index.footer)
        self._keep_entries(segment, index.footer)
        return batches

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
        segment.next_page = max(found.end, segment.dead.end)

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

    def _enter(self, segment: Segment, footer: Footer) -> list[FoundBatch]:
        """Records that are not dropped, and not met before."""
        known = [self._locations.setdefault(group, {}) for group in footer.groups]
        rows = footer.rows
        if segment.dead.any:
            rows = [row for row in rows if not segment.dead.is_dead(row[0])]
        if not _all_new(rows, known):
            rows = self._without_known(segment, footer, rows, known)
        slots = self.log.settle(segment, [row[0] for row in rows], [row[1] for row in rows])
        segment.slots.extend(slots)
        self.census.found += len(rows)
        return _batches(footer, rows, known, self.log.table.locations(slots)) if rows else []

    def _without_known(
        self, segment: Segment, footer: Footer, rows: list[Row], known: Sequence[dict[bytes, int]]
    ) -> list[Row]:
        """Rows of blocks that no earlier segment has; of two in this one the later counts."""
        fresh, here = [], set()
        for row in reversed(rows):
            page, pages, _, group, key, parent = row
            block = BlockName(*footer.groups[group], key, parent)
            if (group, key) in here:
                self._second(segment, page, block)
            elif key in known[group]:
                self._newer(segment, page, pages, known[group][key], block)
            else:
                fresh.append(row)
            here.add((group, key))
        return fresh[::-1]

    def _second(self, segment: Segment, page: int, block: BlockName) -> None:
        self.census.duplicates += 1
        self._bury(segment, block, page)

    def _newer(self, segment: Segment, page: int, pages: int, location: int, block: BlockName) -> None:
        """A record that is known already, written again later: it lies here from now on."""
        slot = self.log.table.slot(location)
        if slot is None or self.log.table.pages(slot) != pages:  # dropped since it was told, or cut otherwise
            self._second(segment, page, block)
            return
        old, old_page = self.log.take_newer(slot, segment, page)
        segment.slots.append(slot)
        self._older.append(old)
        self._second(old, old_page, block)

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
        for each in (segment, *self._older):
            self.log.free_if_empty(each)
        self._older.clear()

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


def _all_new(rows: list[Row], known: Sequence[dict[bytes, int]]) -> bool:
    """Whether no block of these rows was met before, here or in an earlier segment: the usual case, quickly told."""
    keys = {row[4] for row in rows}
    return len(keys) == len(rows) and all(each.keys().isdisjoint(keys) for each in known)


def _batches(footer: Footer, rows: list[Row], known: Sequence[dict[bytes, int]], locations: range) -> list[FoundBatch]:
    """Rows by group, length and shape, in bounded batches; `known` learns of them. A million pass here."""
    kinds: dict[tuple[int, int, int], list[FoundBlock]] = {}
    _, lengths, shapes, groups, keys, parents = zip(*rows, strict=True)
    blocks = list(map(FoundBlock, keys, parents, locations))
    if len(set(groups)) == len(set(lengths)) == len(set(shapes)) == 1:
        known[groups[0]].update(zip(keys, locations, strict=True))
        kinds[groups[0], lengths[0], shapes[0]] = blocks
    else:
        for group, pages, shape, block in zip(groups, lengths, shapes, blocks, strict=True):
            known[group][block.key] = block.location
            kinds.setdefault((group, pages, shape), []).append(block)
    return [
        FoundBatch(*footer.groups[group], pages * PAGE_BYTES, some[at : at + BATCH_BLOCKS_MAX], footer.shapes[shape])
        for (group, pages, shape), some in kinds.items()
        for at in range(0, len(some), BATCH_BLOCKS_MAX)
    ]


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
    return Footer(list(groups), list(shapes), rows)
