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
from flexkv_tiers.codec import CODEC_NONE, HEADER_BYTES, Header, Stored, chunk_checksum, pack_header, parse_header
from flexkv_tiers.codec.pool import ChunksToWrite, TierCodec
from flexkv_tiers.codec.record import check_stored
from flexkv_tiers.diskio import DiskFile, DiskFuture, DiskIo, settle
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd.format import PAGE_BYTES

WHOLE_BYTES_MAX = 1 << 20
"""Chunks of a record up to this are read in one go: its first chunk would hardly come earlier alone."""
RUN_BYTES_MAX = 4 << 20
"""Of a longer record the first chunk is read alone, so that it lands early, and the rest in runs of at most this,
but at least a chunk: every read costs the CPU of copying 64 KiB or more."""


def record_pages(encoded: ChunksToWrite) -> int:
    """Pages of 4 KiB a record takes on disk, header included."""
    return (HEADER_BYTES + encoded.total_bytes) // PAGE_BYTES


def is_compressed(pages: int, chunks: Sequence[FrameSpan]) -> bool:
    """Whether a record of so many pages has a compressed chunk: each leaves a page free, or it is stored as it is."""
    return pages * PAGE_BYTES < HEADER_BYTES + sum(chunk.length for chunk in chunks)


async def write_record(
    io: DiskIo,
    file: DiskFile,
    offset: int,
    block: BlockName,
    chunks: Sequence[FrameSpan],
    encoded: ChunksToWrite,
    arena: Arena,
    codec: TierCodec | None,
    salt: bytes,
) -> None:
    """Write the record of these chunks, encoded like this, at `offset` and make it durable. Raises TierFault."""
    lengths, view = [chunk.length for chunk in chunks], codec.pool.view if codec else partial(_view, arena)
    with io.pages(1) as page:
        checksums = [arena.checksum(chunk.frame) for chunk in chunks]
        page[:] = pack_header(block, lengths, checksums, salt, encoded.stored)
        await io.write(file, [page, *map(view, encoded.spans)], offset)
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
    """Read wanted chunks into frames, header and first chunk together; yields runs of them whose checksums hold.

    The checksums sit in the arena then. Raises TierFault(CORRUPT) unless header and chunks are exactly
    those of `block`. Ends only when no read is under way any more, also when closed early.
    """
    lengths = [chunk.length for chunk in chunks]
    views = [arena.view(chunk.frame, chunk.length) for chunk in chunks]
    runs = read_runs(lengths, [chunk.wanted for chunk in chunks])
    if not runs or runs[0].start:
        runs.insert(0, range(0))  # the header alone
    with io.pages(1) as page:
        reads: list[DiskFuture[list[bytes]]] = []
        for run in runs:
            targets = views[run.start : run.stop] if run.start else [page, *views[: run.stop]]
            at = offset + (HEADER_BYTES + sum(lengths[: run.start]) if run.start else 0)
            reads.append(io.read(file, targets, at, partial(_digests, block.key, run, views)))
        try:
            header: Header | None = None
            for run, reading in zip(runs, reads, strict=True):
                digests = await reading
                header = header or _checked(page, block, lengths, salt)
                if any(chunk.codec != CODEC_NONE for chunk in header.chunks):
                    raise TierFault(Fault.MISSING, "the record is compressed, and nothing here decompresses")
                for number, digest in zip(run, digests, strict=True):
                    if digest != header.chunks[number].checksum:
                        if number > run.start:
                            yield range(run.start, number)
                        raise TierFault(Fault.CORRUPT, f"chunk {number} does not match its checksum")
                    arena.set_checksum(chunks[number].frame, digest)
                yield run
        finally:
            cancelled = [await settle(reading) for reading in reads]  # the disk fills the frames until then
            if any(cancelled):
                raise asyncio.CancelledError


async def read_compressed(
    io: DiskIo,
    file: DiskFile,
    offset: int,
    block: BlockName,
    chunks: Sequence[FrameSpan],
    arena: Arena,
    codec: TierCodec,
    salt: bytes,
) -> AsyncIterator[range]:
    """As `read_record` where chunks are compressed: the header first, for it alone says where they lie."""
    with io.pages(1) as page:
        parse = partial(_checked, page, block, [chunk.length for chunk in chunks], salt)
        header = await io.read(file, [page], offset, parse)
    for number, (entry, chunk) in enumerate(zip(header.chunks, chunks, strict=True)):
        if not chunk.wanted:
            continue
        if entry.codec == CODEC_NONE:
            view = _view(arena, chunk)
            check = partial(check_stored, block.key, number, entry, view)
            await io.read(file, [view], offset + entry.offset, check)
        else:
            async with codec.room_for(entry) as room:
                await io.read(file, [codec.pool.view(room)], offset + entry.offset, _nothing)
                await codec.decode(block.key, number, entry, room, chunk)
        arena.set_checksum(chunk.frame, entry.checksum)
        yield range(number, number + 1)


def read_runs(lengths: Sequence[int], wanted: Sequence[bool]) -> list[range]:
    """Wanted chunks read together, in order: see WHOLE_BYTES_MAX and RUN_BYTES_MAX."""
    whole = sum(lengths) <= WHOLE_BYTES_MAX
    runs: list[range] = []
    run_bytes = 0
    for number in [number for number, is_wanted in enumerate(wanted) if is_wanted]:
        follows = bool(runs) and runs[-1].stop == number
        if follows and (whole or (runs[-1].start and run_bytes + lengths[number] <= RUN_BYTES_MAX)):
            runs[-1] = range(runs[-1].start, number + 1)
            run_bytes += lengths[number]
        else:
            runs.append(range(number, number + 1))
            run_bytes = lengths[number]
    return runs


def _view(arena: Arena, span: FrameSpan) -> memoryview:
    return arena.view(span.frame, span.length)


def _nothing() -> None:
    """What is to be checked off the loop: nothing, a child does that."""


def _digests(key: bytes, run: range, views: Sequence[memoryview]) -> list[bytes]:
    """Off the loop: checksums of chunks as they came."""
    return [chunk_checksum(key, number, views[number]) for number in run]


def _checked(page: memoryview, block: BlockName, lengths: Sequence[int], salt: bytes) -> Header:
    header = parse_header(page, salt)
    if not header.matches(block):
        raise TierFault(Fault.CORRUPT, f"the record is another block's: key {header.block.key.hex()}")
    if header.raw_bytes != tuple(lengths):
        raise TierFault(Fault.CORRUPT, "the record is cut into other chunks than this block")
    return header


def verify_record(raw: memoryview, salt: bytes) -> Header:
    """The header of a whole record in memory. Raises TierFault(CORRUPT) unless every checksum of it holds."""
    header = parse_header(raw[:HEADER_BYTES], salt)
    if header.record_bytes > len(raw):
        raise TierFault(Fault.CORRUPT, f"a record of {header.record_bytes} bytes in {len(raw)}")
    for number, chunk in enumerate(header.chunks):
        check_stored(header.block.key, number, chunk, raw[chunk.offset : chunk.offset + chunk.room_bytes])
    return header


def move_record(raw: memoryview, header: Header, salt: bytes) -> None:
    """Give a record in memory the salt of the segment it moves to."""
    checksums = [chunk.checksum for chunk in header.chunks]
    stored = [Stored(chunk.codec, chunk.stored_bytes) for chunk in header.chunks]
    raw[:HEADER_BYTES] = pack_header(header.block, header.raw_bytes, checksums, salt, stored)
