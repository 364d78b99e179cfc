"""The SSD tier of one directory: `TierStore` over slots, records and disk threads.

Owns the order of steps and what a fault leaves behind; which slot is decided in `slots`, what a
record is in `records`. The daemon's executor calls it, one coroutine per move. A move's I/O always
runs to its end: a cancelled caller waits for it, because the disk still uses the frames.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flexkv_py.core.messages import BlockName, Fault, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import ALIGN_BYTES, align_up
from flexkv_tiers.base import FoundBatch, FrameSpan, TierFault
from flexkv_tiers.diskio import DiskFile, DiskFuture, IoChoice, settle
from flexkv_tiers.diskio.files import choose_io_path
from flexkv_tiers.diskio.lineup import Kind
from flexkv_tiers.diskio.pages import PagePool
from flexkv_tiers.diskio.syncs import GroupSyncs
from flexkv_tiers.diskio.workers import DiskThreads
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.records import erase_record, read_record, record_bytes, write_record
from flexkv_tiers.ssd.recovery import SLOTS_PER_BATCH, Census, Slots, erase_slots, read_headers
from flexkv_tiers.ssd.slots import SLOT_BITS, SLOTS_MAX, Growth, Segment, SlotState, SlotTable

THREAD_COUNT = 8
"""More than eight transfers in flight only add latency, measured with direct I/O."""
SEGMENT_BYTES_MIN = 16 << 20
SEGMENTS_PER_CAPACITY = 64
"""Segments a directory is cut into unless told otherwise: few open files, and room moves between sizes."""

_END = range(0)  # no run is empty
_HOLDING = (SlotState.USED, SlotState.DAMAGED)


class SsdStore:
    """Records in `directory`, never more than `capacity_bytes` of segment files.

    `direct` False keeps to buffered I/O; status() says which path is in use and why.
    """

    tier = Tier.SSD

    def __init__(
        self,
        directory: Path,
        capacity_bytes: int,
        arena: Arena,
        *,
        segment_bytes: int | None = None,
        direct: bool = True,
        thread_count: int = THREAD_COUNT,
    ) -> None:
        if capacity_bytes < 2 * ALIGN_BYTES:
            raise FlexKVError(
                ErrorCode.BAD_CONFIG,
                f"the SSD capacity is {capacity_bytes} bytes, which holds no record: give it at least one block's size",
            )
        if segment_bytes is None:
            segment_bytes = max(SEGMENT_BYTES_MIN, align_up(capacity_bytes // SEGMENTS_PER_CAPACITY))
        self._directory = directory
        self._arena = arena
        self._direct = direct
        self._thread_count = thread_count
        self._table = SlotTable(capacity_bytes, min(segment_bytes, capacity_bytes))
        self._files: dict[int, DiskFile] = {}  # by segment; exactly the table's segments
        self._faults: Counter[Fault] = Counter()
        self._census = Census()
        self._segments_removed = 0
        self._serving = False
        self._growing = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._running = 0  # writes and drops that have not ended; a read is one job of the threads
        self._idle = asyncio.Event()  # set when the last of them ends
        self._threads: DiskThreads | None = None  # None before start and after close
        self._pages = PagePool()
        self._syncs = GroupSyncs(lambda file: self._disk.submit(Kind.SMALL, file.sync))
        self._lock: int | None = None
        self._io: IoChoice | None = None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Take the directory and open its segments. Raises FlexKVError (locked, foreign, not writable, full)."""
        assert self._threads is None
        self._threads = DiskThreads(self._thread_count)
        try:
            await self._threads.submit(Kind.SMALL, self._open)
        except BaseException:
            await self.close()
            raise
        self._serving = True

    async def close(self) -> None:
        """Let running moves end, close files, release the lock. Idempotent."""
        self._serving = False
        async with self._closing:  # a second caller returns when it is true
            while self._running:
                self._idle.clear()
                await self._idle.wait()
            if self._threads is not None:
                await self._threads.stop()
                self._threads = None
            for file in self._files.values():
                file.close()
            self._files.clear()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    @property
    def damaged_at_start(self) -> int:
        return self._census.damaged + self._census.blank

    def status(self) -> dict[str, object]:
        """Directory, I/O path and why, bytes, slots by state, faults, and what the warm restart met."""
        count = self._table.count
        return {
            "directory": str(self._directory),
            "io_path": str(self._io.path) if self._io else "",
            "io_reason": self._io.reason if self._io else "",
            "capacity_bytes": self._table.capacity_bytes,
            "used_bytes": self._table.used_bytes,
            "segments": len(self._table.segments),
            "segments_removed_at_start": self._segments_removed,
            "records": count(SlotState.USED),
            "records_quarantined": count(SlotState.DAMAGED),
            "slots_free": count(SlotState.FREE),
            "slots_lost": count(SlotState.LEAVING),
            "slots_unread": count(SlotState.UNREAD),
            "faults": {fault.value: self._faults[fault] for fault in Fault},
            "found": self._census.found,
            "found_damaged": self._census.damaged,
            "found_blank": self._census.blank,
            "found_duplicate": self._census.duplicates,
        }

    def _open(self) -> None:
        """On a disk thread: marker, lock, I/O path, segments of the last life."""
        self._lock, _ = directories.acquire(self._directory)
        try:
            self._io = choose_io_path(self._directory / directories.PROBE_NAME, self._direct)
            for found in directories.segments(self._directory):
                self._adopt(found)
            self._check_room()
        except OSError as error:
            raise directories.refusal(self._directory, error) from error

    def _adopt(self, found: directories.SegmentFile) -> None:
        """Open a segment of the last life, or remove it: cut to nothing, misnamed or over the capacity."""
        path = directories.segment_path(self._directory, found.number, found.slot_bytes)
        whole = found.slot_bytes >= 2 * ALIGN_BYTES and found.slot_bytes % ALIGN_BYTES == 0
        slot_count = min(found.file_bytes // found.slot_bytes, SLOTS_MAX) if whole else 0
        over = self._table.used_bytes + slot_count * found.slot_bytes > self._table.capacity_bytes
        if not slot_count or over or not found.number or found.number in self._files:
            path.unlink()
            self._segments_removed += 1
            return
        assert self._io is not None
        if found.file_bytes % found.slot_bytes:
            self._census.damaged += 1  # segments are made of whole slots: something cut this one in mid-slot
        self._keep(DiskFile(path, self._io.path), found.number)
        self._table.add(found.number, found.slot_bytes, slot_count, SlotState.UNREAD)

    def _check_room(self) -> None:
        """An empty tier must be able to hold something; one with segments serves those, full disk or not."""
        if not self._table.segments:
            directories.reserve_once(self._directory, self._table.segment_bytes)

    def _keep(self, file: DiskFile, number: int) -> None:
        self._files[number] = file

    # ------------------------------------------------------------ warm restart

    async def found(self) -> AsyncIterator[FoundBatch]:
        """Headers of the last life's segments, several batches in flight, yielded in order of place."""
        ahead: list[tuple[Segment, DiskFuture[Slots]]] = []
        try:
            for segment in tuple(self._table.segments.values()):
                if not segment.states.count(SlotState.UNREAD):
                    continue  # created in this life
                file = self._files[segment.number]
                for first in range(0, segment.slot_count, SLOTS_PER_BATCH):
                    count = min(SLOTS_PER_BATCH, segment.slot_count - first)
                    job = partial(read_headers, file, segment.slot_bytes, first, count, self._pages)
                    ahead.append((segment, self._disk.submit(Kind.READ, job)))
                    if len(ahead) >= self._thread_count:
                        for batch in await self._sort(*ahead.pop(0)):
                            yield batch
            while ahead:
                for batch in await self._sort(*ahead.pop(0)):
                    yield batch
            self._census.end()
        finally:
            for _, reading in ahead:
                await settle(reading)

    async def _sort(self, segment: Segment, reading: DiskFuture[Slots]) -> list[FoundBatch]:
        """Apply what a batch of slots holds to the table, and return its records."""
        if await settle(reading):
            raise asyncio.CancelledError
        slots = reading.result()
        base = segment.number << SLOT_BITS
        batches, second = self._census.take(slots, base, segment.slot_bytes)
        file = self._files[segment.number]
        unwanted = slots.damaged + second
        erase = partial(erase_slots, file, segment.slot_bytes, unwanted, self._pages)
        erased = await self._disk.submit(Kind.WRITE, erase) if unwanted else []
        states = dict.fromkeys(slots.records, SlotState.USED)
        states |= dict.fromkeys(unwanted, SlotState.LEAVING)
        states |= dict.fromkeys(slots.erased + slots.blank + erased, SlotState.FREE)
        for slot, state in states.items():
            self._table.set_state(base | slot, state)
        return batches

    # ------------------------------------------------------------------ moves

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        """Write one record and return its location; it outlives this process. Raises TierFault IO, FULL or DOWN."""
        with self._moving():
            location = await self._take(record_bytes(chunks))
            segment, offset = self._table.place(location)
            file = self._files[segment.number]
            try:
                job = partial(write_record, file, offset, block, chunks, self._arena, self._pages)
                await self._disk.submit(Kind.WRITE, job)
                await self._syncs.wait(file)
            except BaseException:  # a fault, or the caller was cancelled and nobody will ever hear of this record
                segment.retired |= file.deleted
                with suppress(TierFault):  # the slot is then lost, and the first fault is the one to tell
                    await self._erase(location)
                raise
            return location

    async def read(self, block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncIterator[int]:
        """Read a record into frames, chunk by chunk. Raises TierFault CORRUPT, MISSING, IO or DOWN."""
        self._check_serving()
        if self._table.state(location) not in _HOLDING:
            self._faults[Fault.MISSING] += 1
            raise TierFault(Fault.MISSING, f"no record at location {location:#x}")
        segment, offset = self._table.place(location)
        file = self._files[segment.number]
        landed: asyncio.Queue[range] = asyncio.Queue()
        wanted = True
        threads = self._disk

        def on_run(run: range) -> bool:
            threads.post(partial(landed.put_nowait, run))
            return wanted

        job = partial(read_record, file, offset, block, chunks, self._arena, on_run, self._pages)
        reading = threads.submit(Kind.READ, job)
        reading.add_done_callback(lambda _: landed.put_nowait(_END))
        try:
            while run := await landed.get():
                for number in run:
                    yield number
        finally:
            wanted = False
            if await settle(reading):
                raise asyncio.CancelledError
        self._end_read(location, reading)

    async def drop(self, block: BlockName, location: int) -> None:  # noqa: ARG002 - the location alone names a slot
        """Erase a record's header, then free its slot. Raises TierFault(IO): the drop may then be asked for again."""
        with self._moving():
            if self._table.state(location) in _HOLDING:  # else it is gone, or going
                await self._erase(location)

    async def _erase(self, location: int) -> None:
        segment, offset = self._table.place(location)
        file = self._files[segment.number]
        self._table.set_state(location, SlotState.LEAVING)
        erasing = self._disk.submit(Kind.WRITE, partial(erase_record, file, offset, self._pages))
        cancelled = await settle(erasing)
        try:
            erasing.result()
        except TierFault:
            self._table.set_state(location, SlotState.DAMAGED)
            raise
        self._table.set_state(location, SlotState.FREE)
        if cancelled:
            raise asyncio.CancelledError

    async def _take(self, slot_bytes: int) -> int:
        """A slot for a record of this size, out of a new segment if need be. Raises TierFault FULL or IO."""
        if (location := self._table.take(slot_bytes)) is not None:
            return location
        async with self._growing:  # files are made one at a time: room is counted before, used after
            if (location := self._table.take(slot_bytes)) is not None:
                return location
            growth = self._table.plan_growth(slot_bytes)
            if growth is None:
                raise TierFault(Fault.FULL, f"all {self._table.capacity_bytes} bytes of {self._directory} are taken")
            await self._grow(growth)
            location = self._table.take(slot_bytes)
            assert location is not None
            return location

    async def _grow(self, growth: Growth) -> None:
        leaving = [self._files.pop(number) for number in growth.remove]
        for number in growth.remove:
            self._table.remove(number)
        making = self._disk.submit(Kind.SMALL, lambda: self._remake(leaving, growth))
        cancelled = await settle(making)
        try:
            file = making.result()
        except OSError as error:
            refusal = directories.refusal(self._directory, error)
            fault = Fault.FULL if refusal.code is ErrorCode.DISK_FULL else Fault.IO
            raise TierFault(fault, refusal.message) from error
        self._keep(file, growth.number)
        self._table.add(growth.number, growth.slot_bytes, growth.slot_count, SlotState.FREE)
        if cancelled:
            raise asyncio.CancelledError

    def _remake(self, leaving: list[DiskFile], growth: Growth) -> DiskFile:
        """On a disk thread: remove segments, then make one in their room. Raises OSError."""
        for file in leaving:
            file.close()
            file.path.unlink(missing_ok=True)
        path = directories.segment_path(self._directory, growth.number, growth.slot_bytes)
        assert self._io is not None
        file = DiskFile(path, self._io.path, create_bytes=growth.slot_bytes * growth.slot_count)
        directories.sync_directory(self._directory)
        return file

    def _end_read(self, location: int, reading: DiskFuture[None]) -> None:
        """Raise what ended a read, after counting it; a record with wrong bytes is quarantined."""
        try:
            reading.result()
        except TierFault as fault:
            self._faults[fault.fault] += 1
            if fault.fault is Fault.CORRUPT and self._table.state(location) is SlotState.USED:
                self._table.set_state(location, SlotState.DAMAGED)
            raise

    @property
    def _disk(self) -> DiskThreads:
        assert self._threads is not None
        return self._threads

    def _check_serving(self) -> None:
        if not self._serving:
            raise TierFault(Fault.DOWN, f"the SSD tier in {self._directory} is closed")

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Around a write or drop: `close` waits for it, and its fault is counted."""
        self._check_serving()
        self._running += 1
        try:
            yield
        except TierFault as fault:
            self._faults[fault.fault] += 1
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
