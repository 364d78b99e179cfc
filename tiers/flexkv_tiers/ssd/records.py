"""What a disk thread does with one record: write it, read it, erase it.

The order of writes lives here: chunks first, the header in a later write, so that a header on disk
never describes chunks that are not there. Functions block and keep no state; `SsdStore` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import FrameSpan, TierFault
from flexkv_tiers.codec import HEADER_BYTES, Header, chunk_checksum, pack_header, parse_header
from flexkv_tiers.diskio import DiskFile
from flexkv_tiers.diskio.pages import PagePool
from flexkv_tiers.memory import Arena

BLANK = bytes(HEADER_BYTES)
"""What lies where nothing was ever written."""
ERASED = b"flexkvd: erased record".ljust(HEADER_BYTES, b"\0")
"""What an erased header is replaced by; so a record that something else zeroed can be told and counted."""

READ_BYTES_MIN = 1 << 20
"""Small chunks are read several at a time: eight reads of 320 KiB cost 2.5 times the CPU of one of 2.5 MiB."""


def record_bytes(chunks: Sequence[FrameSpan]) -> int:
    """Bytes a record of these chunks takes on disk, header included."""
    return HEADER_BYTES + sum(chunk.length for chunk in chunks)


def write_record(
    file: DiskFile, offset: int, block: BlockName, chunks: Sequence[FrameSpan], arena: Arena, pages: PagePool
) -> None:
    """Write a record from frames at `offset`. Raises TierFault, then erase it."""
    header = pack_header(block, [chunk.length for chunk in chunks], [arena.checksum(chunk.frame) for chunk in chunks])
    file.write([arena.view(chunk.frame, chunk.length) for chunk in chunks], offset + HEADER_BYTES)
    _write_page(file, offset, header, pages)


def erase_record(file: DiskFile, offset: int, pages: PagePool) -> None:
    """Overwrite a record's header: from here on nobody can read it. Raises TierFault."""
    _write_page(file, offset, ERASED, pages)


def _write_page(file: DiskFile, offset: int, content: bytes, pages: PagePool) -> None:
    with pages.lend(1) as page:
        page[:] = content
        file.write([page], offset)


def read_record(
    file: DiskFile,
    offset: int,
    block: BlockName,
    chunks: Sequence[FrameSpan],
    arena: Arena,
    landed: Callable[[range], bool],
    pages: PagePool,
) -> None:
    """Read a record into frames, header and first chunk together.

    Calls `landed` with a run of chunks once their checksums hold and sit in the arena; stops when that
    answers False, because nobody wants the rest. Raises TierFault(CORRUPT) unless
    header and chunks are exactly those of `block`.
    """
    views = [arena.view(chunk.frame, chunk.length) for chunk in chunks]
    with pages.lend(1) as page:
        file.read([page, views[0]], offset)
        header = parse_header(page)
    _check(header, block, chunks)
    for run in read_runs([chunk.length for chunk in chunks]):
        if run.start:
            file.read(views[run.start : run.stop], offset + header.chunks[run.start].offset)
        for number in run:
            expected = header.chunks[number].checksum
            if chunk_checksum(block.key, number, views[number]) != expected:
                raise TierFault(Fault.CORRUPT, f"chunk {number} does not match its checksum")
            arena.set_checksum(chunks[number].frame, expected)
        if not landed(run):
            return


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


def _check(header: Header, block: BlockName, chunks: Sequence[FrameSpan]) -> None:
    if not header.matches(block):
        raise TierFault(Fault.CORRUPT, f"the record is another block's: key {header.block.key.hex()}")
    if [entry.length for entry in header.chunks] != [chunk.length for chunk in chunks]:
        raise TierFault(Fault.CORRUPT, "the record is cut into other chunks than this block")
