"""The SSD tier: `TierStore` over an append-only log that is striped over one or more directories.

Owns the life of the tier, the order of steps of each move, and what a fault leaves behind. Where records
go is decided in `log`, how space comes back in `reclaim`, what survives a restart in `recovery`. The
daemon's executor calls it, one coroutine per move; a move's I/O always runs to its end, because the disk
uses the frames.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path

from flexkv_py.core.messages import BlockName, Fault, Tier
from flexkv_tiers.base import FoundBatch, FrameSpan, StoreListener, TierFault
from flexkv_tiers.codec.pool import ChunksToWrite, TierCodec, codec_status
from flexkv_tiers.diskio import DiskFile, DiskFuture, DiskIo, nothing, open_disk_io, settle
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd.budget import RewriteBudget
from flexkv_tiers.ssd.format import PAGE_BYTES, Layout, Shape
from flexkv_tiers.ssd.health import Health
from flexkv_tiers.ssd.log import Log, Placed
from flexkv_tiers.ssd.mender import Mender
from flexkv_tiers.ssd.opening import adopt_segments, check_disks, open_stripes
from flexkv_tiers.ssd.owed import Owed
from flexkv_tiers.ssd.reclaim import Cleaner, Reclaimed
from flexkv_tiers.ssd.records import is_compressed, read_compressed, read_record, record_pages, write_record
from flexkv_tiers.ssd.recovery import Census, Recovery
from flexkv_tiers.ssd.roller import Roller
from flexkv_tiers.ssd.scan import check_on_disk
from flexkv_tiers.ssd.segment import Segment
from flexkv_tiers.ssd.sizes import (
    check_capacity,
    planned_usable_bytes,
    segment_bytes_for,
    target_segment_bytes,
    too_long,
    whole_pages,
)
from flexkv_tiers.ssd.status import status_of
from flexkv_tiers.ssd.stripe import Stripe
from flexkv_tiers.ssd.table import DAMAGED, LEAVING, WAS_READ

DEPTH = 8
"""More than eight transfers in flight only add latency, measured with direct I/O."""
AMPLIFICATION_MAX = 4.0
PLACE_ATTEMPTS_MAX = 64
"""Others may take the room a writer waited for; after so many times the tier is called full."""


class SsdStore:
    """Records in `directories`, never more than `capacity_bytes` of segment files.

    `segment_bytes` 0 chooses a size that fits the capacity and the first record. `reserve_bytes` of the
    file system stay free; None chooses. `forget_missing` goes on without directories of the set that are not there.
    `open_io` makes the I/O engine of a directory (None: the best there is); it may raise OSError.
    """

    tier = Tier.SSD

    def __init__(
        self,
        directory: Path | Sequence[Path],
        capacity_bytes: int,
        arena: Arena,
        *,
        listener: StoreListener | None = None,
        segment_bytes: int = 0,
        forget_missing: bool = False,
        amplification_max: float = AMPLIFICATION_MAX,
        reserve_bytes: int | None = None,
        open_io: Callable[[Path], DiskIo] | None = None,
        codec: TierCodec | None = None,
    ) -> None:
        self._codec = codec
        self._directories = [directory] if isinstance(directory, Path) else list(directory)
        self._share_bytes = capacity_bytes // len(self._directories)
        check_capacity(capacity_bytes, len(self._directories), segment_bytes)
        self._capacity_bytes = capacity_bytes
        self._segment_bytes = whole_pages(segment_bytes)
        self.usable_bytes = planned_usable_bytes(capacity_bytes, len(self._directories), segment_bytes)
        """What of the capacity live records may take: without spare segments, headers, maps and footers."""
        self._arena = arena
        self._listener = listener
        self._forget_missing = forget_missing
        self._reserve_bytes = reserve_bytes
        self._open_io = open_io or partial(open_disk_io, engine="auto", depth=DEPTH, direct=True)
        self.wear = RewriteBudget(amplification_max, self.usable_bytes)
        self._log = Log(len(self._directories), self.usable_bytes, self.wear)
        self._owed = Owed()
        self._stripes: list[Stripe] = []
        self._cleaners: list[Cleaner] = []
        restored = listener.restored if listener is not None else nothing
        self._roller = Roller(self._log, self._stripes, self._sealed, self._failed, restored)
        self._moving: dict[int, DiskFuture[None]] = {}  # records that are being rewritten, by slot
        self._health = Health(len(self._directories), self._changed)
        self._mender = Mender(self._log, self._stripes, self._owed, self._health, self._failed, self._sealed)
        self._census = Census()
        self._reclaimed = Reclaimed()
        self._faults: Counter[Fault] = Counter()
        self._background_faults: Counter[Fault] = Counter()
        self._recovering: DiskFuture[None] | None = None  # while `found` runs
        self._serving = False
        self._closing = asyncio.Lock()
        self._placing = asyncio.Lock()
        self._running = 0  # moves that have not ended
        self._idle = asyncio.Event()  # set when the last of them ends

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Take the directories and open their segments.

        Raises FlexKVError (locked, foreign, missing or outdated, not writable, full).
        """
        assert not self._stripes
        try:
            how = self._open_io, self._reserve_bytes, self._owed
            open_stripes(self._stripes, self._directories, *how, forget_missing=self._forget_missing)
            await adopt_segments(self._log, self._stripes, self._share_bytes, self._segment_bytes, self._census)
            if self._log.layout is None and self._segment_bytes:
                self._fix(self._segment_bytes)
            if not self._log.segments:
                check_disks(self._stripes, self._segment_bytes or target_segment_bytes(self._share_bytes))
        except BaseException:
            await self.close()
            raise
        for number, stripe in enumerate(self._stripes):
            parts = self._roller, self._moving, self._reclaimed, self._lost, self._failed
            self._cleaners.append(Cleaner(number, self._log, self._stripes, *parts))
            stripe.refused = self._mender.wake
        self._serving = True

    def _fix(self, segment_bytes: int) -> None:
        self._log.fix(Layout(segment_bytes), [self._share_bytes // segment_bytes] * len(self._stripes))

    async def close(self) -> None:
        """Let running moves end, close files, release the locks. Idempotent."""
        self._serving = False
        async with self._closing:  # a second caller returns when it is true
            for cleaner in self._cleaners:
                await cleaner.close()
            while self._running:
                self._idle.clear()
                await self._idle.wait()
            self._cleaners.clear()
            for number in range(len(self._stripes)):
                self._roller.retire_all(number)  # a footer says more than a scan; the next life takes one away again
            await self._roller.close()
            await self._mender.close()
            for stripe in self._stripes:
                await stripe.close()
            self._stripes.clear()

    @property
    def damaged_at_start(self) -> int:
        return self._census.damaged

    def status(self) -> dict[str, object]:
        """Directories, I/O, bytes, segments by state, write amplification, faults, and what the restart met."""
        return {
            "capacity_bytes": self._capacity_bytes,
            "usable_bytes": self.usable_bytes,
            **status_of(self._log, self._directories, self._stripes, self._reclaimed, self._health),
            "places_owed": len(self._owed),
            "codec": codec_status(self._codec),
            "faults": {fault.value: self._faults[fault] for fault in Fault},
            "background_faults": {fault.value: count for fault, count in self._background_faults.items()},
            **{f"found_{name}" if name != "found" else name: count for name, count in self._census.as_dict().items()},
        }

    async def found(self) -> AsyncIterator[FoundBatch]:
        """What survived the last life, in bounded batches, oldest first."""
        self._recovering, self._log.recovering = DiskFuture(), True
        try:
            recovery = Recovery(self._log, self._stripes, self._roller, self._census, self._failed)
            with self._moving_on():
                async for batch in recovery.found():
                    yield batch
        finally:
            self._recovering.set_result(None)
            self._recovering, self._log.recovering = None, False
            for cleaner in self._cleaners:
                cleaner.wake()

    # ------------------------------------------------------------------ moves

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        """Write one record and return its location; it outlives us. Raises TierFault IO, FULL, TOO_LONG or DOWN."""
        with self._moving_on():
            if self._health.down:
                raise TierFault(Fault.DOWN, self._health.because)
            if self._codec is None or not self._codec.compresses:
                return await self._store(block, chunks, ChunksToWrite.plain(chunks))
            async with self._codec.encoded(block.namespace, chunks) as encoded:
                return await self._store(block, chunks, encoded)

    async def _store(self, block: BlockName, chunks: Sequence[FrameSpan], encoded: ChunksToWrite) -> int:
        pages = record_pages(encoded)
        self._check_fits(pages)
        if not self._log.admit(pages):
            raise TierFault(Fault.FULL, f"live records take all {self.usable_bytes} usable bytes of the SSD tier")
        try:
            placed = await self._place(block, chunks, pages)
            return await self._write(placed, block, chunks, encoded)
        finally:
            self._log.release(pages)

    def _check_fits(self, pages: int) -> None:
        """The first record of an empty tier decides how large its segments are. Raises TierFault TOO_LONG."""
        if self._log.layout is None and (size_bytes := segment_bytes_for(pages, self._share_bytes)):
            self._fix(size_bytes)
        if self._log.layout is None or pages > self._log.layout.record_pages_max:
            room_bytes = self._log.layout.segment_bytes if self._log.layout else self._share_bytes // 2
            raise TierFault(Fault.TOO_LONG, too_long(pages, room_bytes, self._share_bytes))

    async def _place(self, block: BlockName, chunks: Sequence[FrameSpan], pages: int) -> Placed:
        shape = tuple(chunk.length for chunk in chunks)
        async with self._placing:  # in order of arrival: whoever waited for room takes it before who comes later
            return await self._place_next(block, shape, pages)

    async def _place_next(self, block: BlockName, shape: Shape, pages: int) -> Placed:
        for _ in range(PLACE_ATTEMPTS_MAX):
            if not self._serving:
                raise TierFault(Fault.DOWN, "the SSD tier was closed while a write waited for room")
            asked_s = self._now_s()
            paused = self._health.paused(asked_s)
            number = self._log.choose_disk(shape, pages, paused)
            active = self._log.disks[number].active
            if placed := self._log.place(number, block, shape, pages):
                return placed
            try:
                full = f"{self._directories[number]}: no segment is free and none can be reclaimed"
                opened = await self._roller.open_next(number, active, rewriting=False)
            except TierFault as fault:
                self._health.failed(number, fault, asked_s, self._now_s())
                if fault.fault is not Fault.FULL:
                    raise
                opened, full = False, fault.detail
            if not (opened or self._log.has_room(shape, pages, paused) or await self._reclaim(number, paused)):
                raise TierFault(Fault.FULL, full)
        raise TierFault(Fault.FULL, "others took the room every time some came free")

    async def _reclaim(self, first: int, paused: Sequence[bool]) -> bool:
        """Wait until a directory, `first` and then older before younger, can open a segment; False if none will."""
        others = sorted(range(len(self._cleaners)), key=self._log.oldest_sequence)
        for number in sorted(others, key=lambda number: number != first):
            if paused[number]:
                continue
            if self._log.only_active(number):
                self._roller.retire_all(number)  # the cleaner has no other to empty
            if await self._cleaners[number].room():
                return True
        return False

    async def _write(
        self, placed: Placed, block: BlockName, chunks: Sequence[FrameSpan], encoded: ChunksToWrite
    ) -> int:
        segment, page = placed.segment, placed.entry.page
        stripe, asked_s = self._stripes[segment.disk], self._now_s()
        file, offset = stripe.files[segment.index], page * PAGE_BYTES
        try:
            parts = encoded, self._arena, self._codec
            await write_record(stripe.io, file, offset, block, chunks, *parts, segment.salt)
        except BaseException as error:  # a fault, or the caller was cancelled and nobody will ever hear of this record
            self._log.abandon(placed)
            if isinstance(error, TierFault):
                self._roller.write_failed(segment, error)
                self._health.failed(segment.disk, error, asked_s, self._now_s())
            await settle(stripe.bury(segment, block, page))
            raise
        else:
            self._health.wrote(segment.disk)
            return self._log.commit(placed)
        finally:
            self._roller.write_ended(segment)

    async def read(self, block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncIterator[int]:
        """Read a record into frames, chunk by chunk. Raises TierFault CORRUPT, MISSING, IO or DOWN."""
        with self._reading(location, WAS_READ) as (stripe, file, offset, salt, pages):
            where = stripe.io, file, offset, block, chunks, self._arena
            if self._codec is not None and is_compressed(pages, chunks):
                reading = read_compressed(*where, self._codec, salt)
            else:
                reading = read_record(*where, salt)
            async with aclosing(reading) as runs:  # type: ignore[type-var]
                async for run in runs:
                    for chunk in run:
                        yield chunk

    async def verify(self, block: BlockName, location: int, lengths: Sequence[int]) -> None:
        """See `VerifiableStore`."""
        with self._reading(location, 0) as (stripe, file, offset, salt, _):
            await check_on_disk(stripe.io, file, offset, block, lengths, salt)

    @contextmanager
    def _reading(self, location: int, mark: int) -> Iterator[tuple[Stripe, DiskFile, int, bytes, int]]:
        """Where a record lies, with its salt and pages: for so long it is not moved; `mark` it afterwards."""
        with self._moving_on():
            slot = self._log.table.slot(location)
            if slot is None or self._log.table.has(slot, LEAVING):
                raise TierFault(Fault.MISSING, f"no record at location {location:#x}")
            number, page = self._log.table.place(slot)
            segment = self._log.segments[number]
            stripe = self._stripes[segment.disk]
            segment.readers += 1
            try:
                yield stripe, stripe.files[number], page * PAGE_BYTES, segment.salt, self._log.table.pages(slot)
            except TierFault as fault:
                self._mark(location, DAMAGED if fault.fault is Fault.CORRUPT else 0)
                raise
            finally:
                self._mark(location, mark)
                self._end_reader(segment)

    def _mark(self, location: int, bit: int) -> None:
        if (slot := self._log.table.slot(location)) is not None:
            self._log.table.mark(slot, bit)

    def _end_reader(self, segment: Segment) -> None:
        segment.readers -= 1
        if not segment.readers and self._serving:
            self._cleaners[segment.disk].wake()

    async def drop(self, block: BlockName, location: int) -> None:
        """Make a record unreadable, durably. Raises TierFault(IO): the drop may then be asked for again."""
        with self._moving_on():
            if self._recovering is not None:
                await self._recovering  # a second copy of the record may lie in a segment not yet read
                if not self._serving:
                    raise TierFault(Fault.DOWN, "the SSD tier was closed before all of it was read")
            while (slot := self._log.table.slot(location)) is not None and slot in self._moving:
                await self._moving[slot]
            if slot is None or self._log.table.has(slot, LEAVING):
                return  # gone, or going
            self._log.table.mark(slot, LEAVING)
            places = [*self._log.places(slot), *self._owed.of(block)]
            kills = [self._stripes[segment.disk].kill(segment, page) for segment, page in places]
            cancelled = [await settle(kill) for kill in kills]
            self._end_drop(location, [error for kill in kills if (error := kill.exception()) is not None])
            if any(cancelled):
                raise asyncio.CancelledError

    def _end_drop(self, location: int, errors: Sequence[BaseException]) -> None:
        slot = self._log.table.slot(location)
        if slot is None:
            return  # its segment was emptied meanwhile
        if errors:
            self._log.table.unmark(slot, LEAVING)
            self._log.table.mark(slot, DAMAGED)
            raise errors[0]
        segment = self._log.remove(slot)
        if self._serving:
            self._cleaners[segment.disk].wake()

    # --------------------------------------------------------------- the rest

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _changed(self, up: bool, reason: str) -> None:
        if self._listener is not None and self._serving:
            self._listener.changed(up, reason)
        if not up:
            self._mender.wake()

    def _sealed(self, number: int) -> None:
        if self._serving:
            self._cleaners[number].wake()

    def _failed(self, fault: TierFault) -> None:
        self._background_faults[fault.fault] += 1

    def _lost(self, records: Sequence[object], reason: str) -> None:
        if self._listener is not None:
            self._listener.lost(records, reason)  # type: ignore[arg-type]

    @contextmanager
    def _moving_on(self) -> Iterator[None]:
        """Around a move: `close` waits for it, and its fault is counted."""
        try:
            if not self._serving:
                raise TierFault(Fault.DOWN, f"the SSD tier in {self._directories[0]} is closed")
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()
        except TierFault as fault:
            if self._serving or fault.fault is not Fault.DOWN:
                self._faults[fault.fault] += 1
            raise
