"""Getting space back: one task per directory that empties segments when few are free or a writer waits.

It reads and verifies what stays, appends it, makes that durable, and only then switches the table; the old
place stays readable until its segment's header says that it is empty, and is used again only when its
readers are gone. What is emptied and what stays is chosen in `victims`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flexkv_py.core.messages import Fault, LostRecord
from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import parse_header
from flexkv_tiers.diskio import DiskFuture, settle
from flexkv_tiers.ssd.format import PAGE_BYTES, Entry, corrupt
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.records import move_record, verify_record
from flexkv_tiers.ssd.recovery import read_footer
from flexkv_tiers.ssd.roller import Roller
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.sizes import spare_count
from flexkv_tiers.ssd.stripe import Stripe
from flexkv_tiers.ssd.table import DAMAGED, LEAVING
from flexkv_tiers.ssd.victims import Victim, choose_rewrites, choose_victim

REWRITES_IN_FLIGHT = 8

Lost = Callable[[Sequence[LostRecord], str], None]


@dataclass(slots=True)
class Reclaimed:
    """What reclaim did so far, of all directories."""

    segments: int = 0
    let_go: int = 0
    damaged: int = 0
    """Records let go of because their bytes were wrong."""
    nameless: int = 0
    """Records let go of whose footer and header were both gone: nobody could be told, a read of one is MISSING."""


class Cleaner:
    """Empties segments of one directory. `moving` has a future for every record that is being rewritten."""

    def __init__(
        self,
        number: int,
        log: Log,
        stripes: Sequence[Stripe],
        roller: Roller,
        moving: dict[int, DiskFuture[None]],
        counts: Reclaimed,
        lost: Lost,
        failed: Callable[[TierFault], None],
    ) -> None:
        self._number = number
        self._log = log
        self._disk = log.disks[number]
        self._stripes = stripes
        self._stripe = stripes[number]
        self._roller = roller
        self._moving = moving
        self._counts = counts
        self._lost = lost
        self._failed = failed
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[bool]] = []
        self._spared: set[Segment] = set()  # could not be emptied; tried again when something has changed
        self._closing = False
        self._background = Background("the SSD tier")
        self._background.spawn(self._run())

    def wake(self) -> None:
        """Something changed: look whether there is something to do."""
        self._wake.set()

    async def room(self) -> bool:
        """Wait for a segment that may be opened; False when nothing can be reclaimed, or will be any more."""
        if self._closing:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake.set()
        return await waiter

    async def close(self) -> None:
        """Stop after the records that are under way."""
        self._closing = True
        self._wake.set()
        await self._background.settled()

    def _answer(self, room: bool) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(room)

    async def _run(self) -> None:
        try:
            while not self._closing:
                await self._wake.wait()
                self._wake.clear()
                self._spared.clear()
                while not self._closing and await self._step():
                    pass
        finally:  # also after a bug: nobody waits for a cleaner that is gone
            self._closing = True
            self._answer(False)

    async def _step(self) -> bool:
        """Empty one segment if that is due; False when there is nothing to do now."""
        self._waiters = [waiter for waiter in self._waiters if not waiter.done()]  # some were cancelled
        if self._waiters and self._log.may_open(self._number, rewriting=False):
            self._answer(True)
        few = self._disk.free_count < spare_count(self._disk.segments_planned) + 1
        if not self._waiters and (not few or self._log.layout is None):
            return False
        urgent = bool(self._waiters)
        may_lose = not self._log.is_cut  # where one disk is full, whoever counts the room is told instead
        victim = choose_victim(self._log, self._number, urgent=urgent, may_lose=may_lose, spared=self._spared)
        if urgent and (victim is None or victim.may_lose) and await self._roller.share(self._number):
            self._answer(True)  # before anything is let go of
            return True
        if victim is None:
            busy = any(each.state is SegmentState.SEALING or each.readers for each in self._disk.segments)
            if urgent and not busy and not self._log.recovering:
                self._answer(False)
            return False  # the end of a seal, a read, a drop or the recovery wakes this again
        try:
            emptied = await self._reclaim(victim)
        except TierFault as fault:  # its header could not be written, so it still holds what it held
            self._failed(fault)
            victim.segment.state = SegmentState.SEALED
            self._answer(False)
            return False
        if not emptied:
            victim.segment.state = SegmentState.SEALED
            self._spared.add(victim.segment)
            return True
        self._spared.clear()
        self._counts.segments += 1
        return True

    async def _reclaim(self, chosen: Victim) -> bool:
        """Empty a segment; False when something that must not be lost found no other place. Raises TierFault."""
        victim = chosen.segment
        victim.state = SegmentState.RECLAIMING
        names = await self._names(victim)
        slots = list(self._log.live_slots(victim))
        rewrites = choose_rewrites(self._log, slots, may_lose=chosen.may_lose)
        for at in range(0, len(rewrites), REWRITES_IN_FLIGHT):
            if self._closing:
                return False
            group = rewrites[at : at + REWRITES_IN_FLIGHT]
            await asyncio.gather(*(self._rewrite(victim, slot, names) for slot in group))
        left = [slot for slot in self._log.live_slots(victim) if not self._log.table.has(slot, DAMAGED | LEAVING)]
        if left and not chosen.may_lose:
            return False
        if self._is_owed(victim, names) or not await self._kill_left(victim):
            return False
        self._let_go(victim, names)
        await self._stripe.clear(victim, self._roller.layout)
        deleted = self._stripe.files[victim.index].deleted
        self._log.freed(victim)
        if deleted:
            victim.state = SegmentState.DELETED
        return True

    def _is_owed(self, victim: Segment, names: dict[int, Entry]) -> bool:
        """Whether an earlier record of a block that is let go of may still be found: then the block is not gone yet."""
        entries = (names.get(self._log.table.place(slot)[1]) for slot in self._log.live_slots(victim))
        return any(self._stripe.owed.of(entry.block) for entry in entries if entry is not None)

    async def _kill_left(self, victim: Segment) -> bool:
        """Make what is let go of dead wherever a restart would find it, in any directory; False when a disk failed."""
        places = [place for slot in self._log.live_slots(victim) for place in self._log.places(slot)]
        kills = [self._stripes[segment.disk].kill(segment, page) for segment, page in places]
        outcomes = await asyncio.gather(*kills, return_exceptions=True)
        faults = [outcome for outcome in outcomes if isinstance(outcome, TierFault)]
        for fault in faults:
            self._failed(fault)
        return not faults

    def _let_go(self, victim: Segment, names: dict[int, Entry]) -> None:
        """Whoever is still there is dead on disk, and gone from here on."""
        table, lost = self._log.table, []
        for slot in list(self._log.live_slots(victim)):
            location, (_, page) = table.location(slot), table.place(slot)
            if not table.has(slot, LEAVING):
                self._counts.let_go += 1
                self._counts.damaged += table.has(slot, DAMAGED)
                if (entry := names.get(page)) is not None:
                    lost.append(LostRecord(entry.block, location))
                else:
                    self._counts.nameless += 1
            self._log.remove(slot)
        if lost:
            self._lost(lost, "reclaimed: the SSD tier needs the room, and rewriting more would wear the disk too much")

    async def _rewrite(self, victim: Segment, slot: int, names: dict[int, Entry]) -> None:
        """Move one record. Whatever fails, the record stays where it is, to be let go of."""
        table = self._log.table
        _, page = table.place(slot)
        entry = names.get(page)
        if entry is None or not table.lies_at(slot, victim.index, page) or table.has(slot, LEAVING):
            return  # dropped meanwhile
        moving = self._moving[slot] = DiskFuture()
        victim.readers += 1
        try:
            await self._move(victim, slot, entry)
        except TierFault as fault:
            self._failed(fault)
            if fault.fault is Fault.CORRUPT:
                table.mark(slot, DAMAGED)
        finally:
            victim.readers -= 1
            del self._moving[slot]
            moving.set_result(None)

    async def _move(self, victim: Segment, slot: int, entry: Entry) -> None:
        io, files = self._stripe.io, self._stripe.files
        with io.pages(entry.pages) as memory:
            verify = partial(verify_record, memory, victim.salt)
            header = await io.read(files[victim.index], [memory], entry.page * PAGE_BYTES, verify)
            if header.block != entry.block:
                raise corrupt("the record is another block's than its footer says")
            placed = await self._roller.place_rewrite(self._number, entry)
            if placed is None:
                return
            target = placed.segment
            try:
                move_record(memory, header, target.salt)
                await io.write(files[target.index], [memory], placed.entry.page * PAGE_BYTES)
                await io.sync(files[target.index])
            except TierFault as fault:
                self._log.abandon(placed)
                self._roller.write_failed(target, fault)
                await settle(self._stripe.bury(target, entry.block, placed.entry.page))
                raise
            else:
                self._log.commit_move(placed, slot)
            finally:
                self._roller.write_ended(target)

    # ------------------------------------------------------------------ names

    async def _names(self, victim: Segment) -> dict[int, Entry]:
        """Records of a segment by first page: from memory, from its footer, or else from their own headers."""
        if victim.entries:
            return {page: entry for page, (_, entry) in victim.entries.items()}
        try:
            footer = await read_footer(self._stripe, victim, self._roller.layout)
            if footer is None:
                raise corrupt("a sealed segment has no trailer")
        except TierFault as fault:
            self._failed(fault)
            pages = [self._log.table.place(slot)[1] for slot in self._log.live_slots(victim)]
            entries = [await self._name(victim, page) for page in pages]
            return {entry.page: entry for entry in entries if entry is not None}
        return {entry.page: entry for entry in footer.entries()}

    async def _name(self, victim: Segment, page: int) -> Entry | None:
        io = self._stripe.io
        with io.pages(1) as memory:
            parse = partial(parse_header, memory, victim.salt)
            try:
                header = await io.read(self._stripe.files[victim.index], [memory], page * PAGE_BYTES, parse)
            except TierFault:
                return None
        shape = header.raw_bytes
        return Entry(page, header.record_bytes // PAGE_BYTES, header.block, shape)
