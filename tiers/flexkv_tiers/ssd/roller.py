"""Opening the next segment and sealing the full one: the I/O that moves the log on.

`SsdStore` and `Cleaner` ask it for places and tell it when a write has ended; which segment, and whether
one may be opened at all, the log says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flexkv_py.core.messages import Fault
from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.ssd.format import Entry, Layout
from flexkv_tiers.ssd.log import Log, Placed
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.stripe import Stripe


class Roller:
    """`sealed` hears of every segment that was sealed, `failed` of every fault no caller is told, `restored` when a
    disk that had no room for a segment took one: before that, free space may be a quota's.
    """

    def __init__(
        self,
        log: Log,
        stripes: Sequence[Stripe],
        sealed: Callable[[int], None],
        failed: Callable[[TierFault], None],
        restored: Callable[[], None],
    ) -> None:
        self._log = log
        self._stripes = stripes
        self._sealed = sealed
        self._failed = failed
        self._restored = restored
        self._background = Background("the SSD tier")  # segments being opened or sealed
        self._sealing: set[int] = set()  # exactly the segments whose seal runs, by index
        self._full: set[int] = set()  # disks that did not take the last segment they were given

    @property
    def layout(self) -> Layout:
        assert self._log.layout is not None
        return self._log.layout

    async def open_next(self, number: int, seen: Segment | None, *, rewriting: bool) -> bool:
        """Open another segment unless somebody did since `seen` took records; False when none may be opened.

        Raises TierFault, FULL when the disk has no room for its file. Runs to its end even if the caller is cancelled.
        """
        return await asyncio.shield(self._background.spawn(self._open_next(number, seen, rewriting=rewriting)))

    async def _open_next(self, number: int, seen: Segment | None, *, rewriting: bool) -> bool:
        disk, stripe = self._log.disks[number], self._stripes[number]
        async with stripe.rolling:
            if disk.taking(rewriting=rewriting) is not seen:
                return True
            if not (rewriting or disk.keeps_apart) and self._share(number):
                return True
            if stripe.cut and await stripe.has_room(self.layout.segment_bytes):
                self._log.restore(number)
                stripe.cut = False
            if not self._log.may_open(number, rewriting=rewriting):
                return False
            if seen is not None:
                self.retire(seen)
            segment = await self._take_free(number)
            try:
                await stripe.begin(segment, self.layout, self._log.next_sequence())
            except BaseException:
                deleted = stripe.files[segment.index].deleted
                segment.state = SegmentState.DELETED if deleted else SegmentState.FREE
                raise
            self._log.activate(segment, rewriting=rewriting)
            return True

    async def place_rewrite(self, number: int, entry: Entry) -> Placed | None:
        """Room for a record that is moved within its directory, if need be among new ones; None when none is left."""
        disk = self._log.disks[number]
        while True:
            survivors = disk.survivors
            for rewriting in (True,) if disk.keeps_apart else (True, False):
                if placed := self._log.place(number, entry.block, entry.shape, entry.pages, rewriting=rewriting):
                    return placed
            try:
                if not await self.open_next(number, survivors, rewriting=True):
                    return self._log.place(number, entry.block, entry.shape, entry.pages, rewriting=False)
            except TierFault as fault:
                self._failed(fault)
                return None

    async def _take_free(self, number: int) -> Segment:
        """A segment to open: a free one, else a new file."""
        disk, stripe = self._log.disks[number], self._stripes[number]
        if free := disk.free():
            free[0].state = SegmentState.OPENING
            return free[0]
        name = self._log.next_number(number)
        try:
            file = await stripe.create(name, self.layout.segment_bytes)
        except TierFault as fault:
            if fault.fault is Fault.FULL:
                stripe.cut = True
                self._log.cut(number)
                self._full.add(number)
            raise
        if number in self._full:
            self._full.remove(number)
            self._restored()
        segment = self._log.add_segment(number, name, SegmentState.OPENING)
        stripe.files[segment.index] = file
        return segment

    async def share(self, number: int) -> bool:
        """Have new records go on where rewritten ones went; False when that may not be."""
        async with self._stripes[number].rolling:
            return self._share(number)

    def _share(self, number: int) -> bool:
        if not self._log.may_share(number):
            return False
        if (active := self._log.disks[number].active) is not None:
            self.retire(active)
        self._log.share(number)
        return True

    def retire(self, segment: Segment) -> None:
        """An active segment takes no more."""
        self._log.retire(segment)
        self.write_ended(segment)

    def retire_all(self, number: int) -> None:
        """No segment of a directory takes any more."""
        disk = self._log.disks[number]
        for segment in (disk.active, disk.survivors):
            if segment is not None:
                self.retire(segment)

    def write_failed(self, segment: Segment, fault: TierFault) -> None:
        """After a failed write: a segment whose file is gone or fails takes no more."""
        is_active = segment.state is SegmentState.ACTIVE
        if self._stripes[segment.disk].files[segment.index].deleted:
            if is_active:
                self._log.retire(segment)
            segment.state = SegmentState.DELETED
        elif fault.fault is Fault.IO and is_active:
            self.retire(segment)

    def write_ended(self, segment: Segment) -> None:
        """A write to the segment is over, or it was retired: seal it if nothing runs there any more."""
        if segment.state is not SegmentState.SEALING or segment.writes or segment.index in self._sealing:
            return
        self._sealing.add(segment.index)
        self._background.spawn(self._seal(segment))

    async def _seal(self, segment: Segment) -> None:
        try:
            await self._write_footer(segment)
        finally:
            self._sealing.remove(segment.index)
        if segment.state is SegmentState.SEALING:
            self._log.sealed(segment)
        self._sealed(segment.disk)

    async def _write_footer(self, segment: Segment) -> None:
        entries = sorted((entry for _, entry in segment.entries.values()), key=lambda entry: entry.page)
        if entries:
            try:
                await self._stripes[segment.disk].seal(segment, self.layout, entries)
            except TierFault as fault:  # its entries stay in memory, and a restart scans it
                self._failed(fault)
            else:
                self._log.keep_footer(segment)

    async def close(self) -> None:
        """Let segments that are being opened or sealed end that."""
        await self._background.settled()
