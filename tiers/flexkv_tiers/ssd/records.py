"""One record on a disk: written from frames, read into frames, verified where it lies.

One write carries header and chunks. Nothing else marks it as there: a restart believes a record without
a footer only after all its checksums. Keeps no state; `SsdStore`, `Cleaner` and `scan` call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import FrameSpan, TierFault
from flexkv_tiers.codec import HEADER_BYTES, Header, chunk_checksum, pack_header, parse_header
from flexkv_tiers.diskio import DiskFile, DiskFuture, DiskIo, settle
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd.format import PAGE_BYTES

READ_BYTES_MIN = 1 << 20
"""Small chunks are read several at a time: eight reads of 320 KiB cost 2.5 times the CPU of one of 2.5 MiB."""


def record_pages(chunks: Sequence[FrameSpan]) -> int:
    """Pages of 4 KiB a record of these chunks takes on disk, header included."""
    return (HEADER_BYTES + sum(chunk.length for chunk in chunks)) // PAGE_BYTES


async def write_record(
    io: DiskIo,
    file: DiskFile,
    offset: int,
    block: BlockName,
    chunks: Sequence[FrameSpan],
    arena: Arena,
    salt: bytes,
) -> None:
    """Write a record from frames at `offset` and make it durable. Raises TierFault."""
    lengths = [chunk.length for chunk in chunks]
    with io.pages(1) as page:
        page[:] = pack_header(block, lengths, [arena.checksum(chunk.frame) for chunk in chunks], salt)
        await io.write(file, [page, *(arena.view(chunk.frame, chunk.length) for chunk in chunks)], offset)
    await io.sync(file)


async def read_record(
    io: DiskIo,
    file: DiskFile,
    offset: int,
    block: BlockName,
    chunks: Sequence[FrameSpan],
    arena: Arena,
    salt: bytes,
) -> AsyncIterator[range]:
    """Read a record into frames, header and first chunk together; yields runs of chunks whose checksums hold.

    The checksums sit in the arena then. Raises TierFault(CORRUPT) unless header and chunks are exactly
    those of `block`. Ends only when no read is under way any more, also when closed early.
    """
    lengths = [chunk.length for chunk in chunks]
    views = [arena.view(chunk.frame, chunk.length) for chunk in chunks]
    runs = read_runs(lengths)
    with io.pages(1) as page:
        reads: list[DiskFuture[list[bytes]]] = []
        at = offset
        for run in runs:
            targets = [page, *views[:1]] if not run.start else views[run.start : run.stop]
            reads.append(io.read(file, targets, at, partial(_digests, block.key, run, views)))
            at += sum(len(target) for target in targets)
        try:
            header: Header | None = None
            for run, reading in zip(runs, reads, strict=True):
                digests = await reading
                header = header or _checked(page, block, lengths, salt)
                for number, digest in zip(run, digests, strict=True):
                    if digest != header.chunks[number].checksum:
                        raise TierFault(Fault.CORRUPT, f"chunk {number} does not match its checksum")
                    arena.set_checksum(chunks[number].frame, digest)
                yield run
        finally:
            cancelled = [await settle(reading) for reading in reads]  # the disk fills the frames until then
            if any(cancelled):
                raise asyncio.CancelledError


def read_runs(lengths: Sequence[int]) -> list[range]:
    """Chunks read together: the first alone, so that it lands early; then runs of at least READ_BYTES_MIN."""
    runs = [range(1)]
    start, run_bytes = 1, 0
    for number in range(1, len(lengths)):
        run_bytes += lengths[number]
        if run_bytes >= READ_BYTES_MIN or number == len(lengths) - 1:
            runs.append(range(start, number + 1))
            start, run_bytes = number + 1, 0
    return runs


def _digests(key: bytes, run: range, views: Sequence[memoryview]) -> list[bytes]:
    """Off the loop: checksums of chunks as they came."""
    return [chunk_checksum(key, number, views[number]) for number in run]


def _checked(page: memoryview, block: BlockName, lengths: Sequence[int], salt: bytes) -> Header:
    header = parse_header(page, salt)
    if not header.matches(block):
        raise TierFault(Fault.CORRUPT, f"the record is another block's: key {header.block.key.hex()}")
    if [entry.length for entry in header.chunks] != list(lengths):
        raise TierFault(Fault.CORRUPT, "the record is cut into other chunks than this block")
    return header


def verify_record(raw: memoryview, salt: bytes) -> Header:
    """The header of a whole record in memory. Raises TierFault(CORRUPT) unless every checksum of it holds."""
    header = parse_header(raw[:HEADER_BYTES], salt)
    if header.record_bytes > len(raw):
        raise TierFault(Fault.CORRUPT, f"a record of {header.record_bytes} bytes in {len(raw)}")
    for number, chunk in enumerate(header.chunks):
        if chunk_checksum(header.block.key, number, raw[chunk.offset : chunk.offset + chunk.length]) != chunk.checksum:
            raise TierFault(Fault.CORRUPT, f"chunk {number} does not match its checksum")
    return header


def move_record(raw: memoryview, header: Header, salt: bytes) -> None:
    """Give a record in memory the salt of the segment it moves to."""
    lengths = [chunk.length for chunk in header.chunks]
    raw[:HEADER_BYTES] = pack_header(header.block, lengths, [chunk.checksum for chunk in header.chunks], salt)
