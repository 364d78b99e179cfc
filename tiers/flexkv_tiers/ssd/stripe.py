"""One directory at work: its lock, its I/O, its open segment files, and every write that is not a record.

Owns the bytes of segment headers, dead maps and footers on their way to the disk; when they are written
is `SsdStore`'s and `Cleaner`'s affair, what they say is the log's. Every failure is a TierFault.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from functools import partial
from pathlib import Path

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import SALT_BYTES
from flexkv_tiers.diskio import DiskFile, DiskFuture, DiskIo
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.format import (
    FREE,
    PAGE_BYTES,
    Entry,
    Layout,
    SegmentHeader,
    pack_footer,
    pack_segment_header,
)
from flexkv_tiers.ssd.segment import Segment


class Stripe:
    """A held directory. `files` has the file of every segment of it, by the segment's index in the log."""

    def __init__(self, held: directories.Held, io: DiskIo, reserve_bytes: int) -> None:
        self.held = held
        self.io = io
        self.files: dict[int, DiskFile] = {}
        self.rolling = asyncio.Lock()  # around opening a segment: one at a time
        self.cut = False  # the disk had no room for another segment when last asked
        self._reserve_bytes = reserve_bytes
        self._drops: dict[int, list[tuple[int, DiskFuture[None]]]] = {}
        """By segment, exactly those a map write of which runs: drops asked since it began."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def directory(self) -> Path:
        return self.held.directory

    # --------------------------------------------------------------- segments

    async def create(self, number: int, segment_bytes: int) -> DiskFile:
        """Make a segment file. Raises TierFault FULL or IO."""
        return await self.io.run(partial(self._create, number, segment_bytes))

    def _create(self, number: int, segment_bytes: int) -> DiskFile:
        self._check_marker()
        try:
            self._check_room(segment_bytes)
            partial_path = self.directory / directories.PARTIAL_SEGMENT_NAME  # a segment is whole or not there
            partial_path.unlink(missing_ok=True)
            file = self.io.open(partial_path, create_bytes=segment_bytes)
            file.path = partial_path.rename(directories.segment_path(self.directory, number))
            directories.sync_directory(self.directory)
        except OSError as error:
            raise self._fault(error) from error
        return file

    def _check_marker(self) -> None:
        """A directory emptied underneath takes nothing new: no start would accept what is put there."""
        if not (self.directory / directories.MARKER_NAME).exists():
            raise TierFault(
                Fault.IO,
                f"{self.directory} was emptied underneath the daemon, its {directories.MARKER_NAME} is gone: "
                "empty it wholly and restart the daemon",
            )

    def _check_room(self, segment_bytes: int) -> None:
        disk = os.statvfs(self.directory)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < segment_bytes + self._reserve_bytes:
            raise OSError(errno.ENOSPC, f"No space left beyond the {self._reserve_bytes} bytes that stay free")

    async def has_room(self, segment_bytes: int) -> bool:
        """Whether the disk would take another segment now."""
        try:
            await self.io.run(partial(self._check_room, segment_bytes))
        except OSError:
            return False
        return True

    async def begin(self, segment: Segment, layout: Layout, sequence: int) -> None:
        """Give a segment a new life: header and empty dead maps in one write. Raises TierFault."""
        segment.begin(layout, secrets.token_bytes(SALT_BYTES), sequence)
        maps = [segment.dead.pack(number, segment.salt) for number in range(layout.map_count)]
        file = self.files[segment.index]
        await self.io.run(partial(self._restore_length, file, layout.segment_bytes))
        await self._write(segment, 0, self._header(segment, layout, segment.salt, sequence) + b"".join(maps))

    def _restore_length(self, file: DiskFile, segment_bytes: int) -> None:
        """A file that something cut off is preallocated again before it is trusted with records."""
        try:
            if os.fstat(file.fd).st_size < segment_bytes:
                self._check_room(segment_bytes)
                os.posix_fallocate(file.fd, 0, segment_bytes)
        except OSError as error:
            raise self._fault(error) from error

    async def clear(self, segment: Segment, layout: Layout) -> None:
        """Say durably that a segment holds nothing: nobody will find its records again. Raises TierFault."""
        if not self.files[segment.index].deleted:
            header = self._header(segment, layout, secrets.token_bytes(SALT_BYTES), FREE)
            await self._write(segment, 0, header, sync=True)

    async def seal(self, segment: Segment, layout: Layout, entries: list[Entry]) -> None:
        """Write footer and trailer, durably. Raises TierFault."""
        first, raw = await self.io.run(partial(pack_footer, layout, segment.salt, entries))
        await self._write(segment, first, raw, sync=True)

    async def unseal(self, segment: Segment, layout: Layout) -> None:
        """Take the trailer away, durably, so that records can be added behind those of the footer. Raises TierFault."""
        await self._write(segment, layout.trailer_page, bytes(PAGE_BYTES), sync=True)

    def _header(self, segment: Segment, layout: Layout, salt: bytes, sequence: int) -> bytes:
        return pack_segment_header(SegmentHeader(self.held.id, segment.number, layout.segment_bytes, salt, sequence))

    async def _write(self, segment: Segment, page: int, raw: bytes, *, sync: bool = False) -> None:
        file = self.files[segment.index]
        with self.io.pages(len(raw) // PAGE_BYTES) as memory:
            memory[:] = raw
            await self.io.write(file, [memory], page * PAGE_BYTES)
        if sync:
            await self.io.sync(file)

    # ------------------------------------------------------------------ drops

    def kill(self, segment: Segment, page: int) -> DiskFuture[None]:
        """Mark the record at `page` as dropped; the future ends when that is durable.

        All who ask while one write of the segment's maps runs share the next.
        """
        future: DiskFuture[None] = DiskFuture()
        number = segment.dead.kill(page)
        if self.files[segment.index].deleted:  # nobody will ever read that map
            future.set_result(None)
            return future
        segment.map_writes += 1
        waiting = self._drops.get(segment.index)
        if waiting is not None:
            waiting.append((number, future))
            return future
        self._drops[segment.index] = [(number, future)]
        task = asyncio.create_task(self._write_maps(segment))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def _write_maps(self, segment: Segment) -> None:
        while group := self._drops[segment.index]:
            self._drops[segment.index] = []
            try:
                for number in {number for number, _ in group}:
                    page = 1 + 2 * number
                    await self._write(segment, page, segment.dead.pack(number, segment.salt))
                await self.io.sync(self.files[segment.index])
            except TierFault as fault:
                for _, future in group:
                    future.set_exception(fault)
            else:
                for _, future in group:
                    future.set_result(None)
            segment.map_writes -= len(group)
        del self._drops[segment.index]

    # -------------------------------------------------------------------- end

    async def close(self) -> None:
        """Let what runs end, close the files, release the lock."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.io.stop()
        for file in self.files.values():
            file.close()
        self.files.clear()
        os.close(self.held.lock)

    def _fault(self, error: OSError) -> TierFault:
        refusal = directories.refusal(self.directory, error)
        return TierFault(Fault.FULL if refusal.code is ErrorCode.DISK_FULL else Fault.IO, refusal.message)
