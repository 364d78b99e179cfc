"""One directory at work: its lock, its I/O, its open segment files, and every write that is not a record.

Owns the bytes of segment headers, dead maps and footers on their way to the disk; when they are written
is `SsdStore`'s and `Cleaner`'s affair, what they say is the log's. Every failure is a TierFault.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.errors import ErrorCode
from flexkv_tiers.background import Background, tell_bug
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import SALT_BYTES
from flexkv_tiers.diskio import DiskFile, DiskFuture, DiskIo, nothing
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
from flexkv_tiers.ssd.owed import WHOLE, Owed
from flexkv_tiers.ssd.segment import Segment

_OWNER = "the SSD tier"


class Stripe:
    """A held directory. `files` has the file of every segment of it, by the segment's index in the log."""

    def __init__(self, held: directories.Held, io: DiskIo, reserve_bytes: int, owed: Owed) -> None:
        self.held = held
        self.io = io
        self.files: dict[int, DiskFile] = {}
        self.rolling = asyncio.Lock()  # around opening a segment: one at a time
        self.cut = False  # the disk had no room for another segment when last asked
        self._reserve_bytes = reserve_bytes
        self.owed = owed  # of all directories
        self.refused: Callable[[], None] = nothing  # hears when the disk did not take what is owed
        self._drops: dict[int, list[tuple[set[int], DiskFuture[None]]]] = {}
        """By segment, exactly those a map write of which runs: the map pages of drops asked since it began."""
        self._background = Background(_OWNER)

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
        """A directory emptied or replaced underneath takes nothing new: no start would accept what is put there."""
        if not self.held.is_in_place():
            raise TierFault(
                Fault.IO,
                f"{self.directory} was emptied underneath the daemon, moved, or mounted over, its "
                f"{directories.MARKER_NAME} is gone: put it back, or empty it wholly, and restart the daemon",
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
        said = list(segment.owed)
        if not self.files[segment.index].deleted:
            header = self._header(segment, layout, secrets.token_bytes(SALT_BYTES), FREE)
            await self._write(segment, 0, header, sync=True)
        self.owed.settle(segment, said)

    async def seal(self, segment: Segment, layout: Layout, entries: list[Entry]) -> None:
        """Write footer and trailer, durably. Raises TierFault."""
        is_clean = not segment.owed and not segment.map_writes  # else something may lie behind the last entry
        first, raw = await self.io.run(partial(pack_footer, layout, segment.salt, entries, is_clean=is_clean))
        await self._write(segment, first, raw, sync=True)

    async def discard(self, segment: Segment) -> None:
        """Remove a segment's file, durably: what its maps should say nobody will ever read. Raises TierFault."""

        def remove() -> None:
            try:
                self.files[segment.index].path.unlink(missing_ok=True)
                directories.sync_directory(self.directory)
            except OSError as error:
                raise self._fault(error) from error

        said = list(segment.owed)
        await self.io.run(remove)
        self.owed.settle(segment, said)

    async def probe(self) -> None:
        """Whether the directory takes writes: a page in a file of its own, made durable. Raises TierFault."""

        def make() -> DiskFile:
            self._check_marker()
            try:
                (self.directory / directories.PROBE_NAME).unlink(missing_ok=True)
                return self.io.open(self.directory / directories.PROBE_NAME, create_bytes=PAGE_BYTES)
            except OSError as error:
                raise self._fault(error) from error

        def remove() -> None:
            file.close()
            with suppress(OSError):
                file.path.unlink()

        file = await self.io.run(make)
        try:
            with self.io.pages(1) as memory:
                memory[:] = bytes(PAGE_BYTES)
                await self.io.write(file, [memory], 0)
            await self.io.sync(file)
        finally:
            await self.io.run(remove)

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

    def kill(self, segment: Segment, *pages: int) -> DiskFuture[None]:
        """Mark the records at `pages` as dropped; the future ends when that is durable.

        All who ask while one write of the segment's maps runs share the next.
        """
        future: DiskFuture[None] = DiskFuture()
        numbers = {segment.dead.kill(page) for page in pages}
        if self.files[segment.index].deleted:  # nobody will ever read that map
            self.owed.settle(segment, list(segment.owed))
            future.set_result(None)
            return future
        segment.map_writes += 1
        waiting = self._drops.get(segment.index)
        if waiting is not None:
            waiting.append((numbers, future))
            return future
        self._drops[segment.index] = [(numbers, future)]
        self._background.spawn(self._write_maps(segment))
        return future

    def bury(self, segment: Segment, block: BlockName | None, *pages: int) -> DiskFuture[None]:
        """Mark places as dead where nobody shall find a record, of `block` if that is known.

        A caller need not wait: what the disk does not take at once is owed.
        """
        self.owed.add(segment, pages, block)
        future = self.kill(segment, *pages)
        future.add_done_callback(self._buried)
        return future

    def owe_clearing(self, segment: Segment) -> None:
        """The segment could not be cleared, and must be: nothing in it is to be found again."""
        self.owed.add(segment, [WHOLE], None)
        self.refused()

    def _buried(self, future: asyncio.Future[None]) -> None:
        if future.exception() is not None:
            self.refused()

    async def _write_maps(self, segment: Segment) -> None:
        while group := self._drops[segment.index]:
            self._drops[segment.index] = []
            error: Exception | None = None
            try:
                await self._write_map_pages(segment, set().union(*(numbers for numbers, _ in group)))
            except Exception as caught:  # whatever it is, everybody who waits is told
                tell_bug(_OWNER, caught)
                error = caught
            segment.map_writes -= len(group)
            for _, future in group:
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        del self._drops[segment.index]

    async def _write_map_pages(self, segment: Segment, numbers: set[int]) -> None:
        said = [page for page in segment.owed if page != WHOLE and segment.dead.map_number(page) in numbers]
        for number in sorted(numbers):
            await self._write(segment, 1 + 2 * number, segment.dead.pack(number, segment.salt))
        await self.io.sync(self.files[segment.index])
        self.owed.settle(segment, said)

    # -------------------------------------------------------------------- end

    async def close(self) -> None:
        """Let what runs end, close the files, release the lock."""
        await self._background.settled()
        await self.io.stop()
        for file in self.files.values():
            file.close()
        self.files.clear()
        os.close(self.held.lock)

    def _fault(self, error: OSError) -> TierFault:
        refusal = directories.refusal(self.directory, error)
        return TierFault(Fault.FULL if refusal.code is ErrorCode.DISK_FULL else Fault.IO, refusal.message)
