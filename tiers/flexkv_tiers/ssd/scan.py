"""Finding the records of a segment that has no footer to believe: page by page, every checksum verified.

A page that starts with the segment's salt in a right header is a record's, whatever lies around it: the
salt is drawn by chance in each life of a segment and leaves the disk in no record. So holes of failed
writes hide nothing, and bytes of a chunk are never taken for a header.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from flexkv_py.core.messages import BlockName, Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import Header, may_be_header, parse_header
from flexkv_tiers.codec.record import StoredCheck
from flexkv_tiers.diskio import DiskFile, DiskIo
from flexkv_tiers.ssd.format import MAP_BIT_PAGES, PAGE_BYTES, DeadMap, Entry, Layout
from flexkv_tiers.ssd.records import verify_record

WINDOW_PAGES = 1024
"""Read at a time."""


@dataclass(slots=True)
class Scan:
    """What lies in a segment: whole records in order, torn ones by page, runs of pages that cannot be read.

    Whose a torn record is, is None when its header is damaged.
    """

    entries: list[Entry] = field(default_factory=list)
    torn: dict[int, BlockName | None] = field(default_factory=dict)
    unreadable: list[range] = field(default_factory=list)
    end: int = 0  # the first page behind everything that was found


@dataclass(slots=True)
class _Candidate:
    page: int
    header: Header | None  # None: it is damaged
    whole: bool | None  # None: it reaches beyond the window


async def scan(io: DiskIo, file: DiskFile, layout: Layout, salt: bytes, dead: DeadMap) -> Scan:
    """Look at every page where a record may start. Dropped ones are left out."""
    found = Scan(end=layout.first_page)
    pages_there = min(layout.trailer_page, os.fstat(file.fd).st_size // PAGE_BYTES)
    for first in range(layout.first_page, pages_there, WINDOW_PAGES):
        count = min(WINDOW_PAGES, pages_there - first)
        with io.pages(count) as memory:
            try:
                job = partial(_look, memory, first, salt, dead)
                candidates = await io.read(file, [memory], first * PAGE_BYTES, job)
            except TierFault:
                found.unreadable.append(range(first, first + count))
                continue
        for candidate in candidates:
            if candidate.page >= found.end:
                await _take(io, file, layout, candidate, found)
    return found


def _look(memory: memoryview, first: int, salt: bytes, dead: DeadMap) -> list[_Candidate]:
    """Off the loop: headers of this life in a window, and whether the records in it are whole."""
    candidates = []
    at, end = 0, len(memory)
    while at < end:
        page = first + at // PAGE_BYTES
        step = PAGE_BYTES
        raw = memory[at : at + PAGE_BYTES]
        if may_be_header(raw, salt) and not dead.is_dead(page):
            try:
                header = parse_header(raw, salt)
            except TierFault:
                if _is_damaged(raw):
                    candidates.append(_Candidate(page, None, whole=False))
            else:
                whole = _is_whole(memory[at:], salt) if at + header.record_bytes <= end else None
                candidates.append(_Candidate(page, header, whole))
                step = header.record_bytes if whole else PAGE_BYTES
        at += step
    return candidates


def _is_damaged(raw: memoryview) -> bool:
    """Whether a page that looks like a header is none, not even of an earlier life."""
    try:
        parse_header(raw)
    except TierFault:
        return True
    return False


def _is_whole(raw: memoryview, salt: bytes) -> bool:
    try:
        verify_record(raw, salt)
    except TierFault:
        return False
    return True


async def _take(io: DiskIo, file: DiskFile, layout: Layout, candidate: _Candidate, found: Scan) -> None:
    page, header = candidate.page, candidate.header
    if header is not None and await _is_there(io, file, layout, candidate, header):
        pages = header.record_bytes // PAGE_BYTES
        found.entries.append(Entry(page, pages, header.block, header.raw_bytes))
        found.end = page + pages
    else:
        found.torn[page] = header.block if header is not None else None
        found.end = max(found.end, page + (MAP_BIT_PAGES if header is not None else 1))


async def _is_there(io: DiskIo, file: DiskFile, layout: Layout, candidate: _Candidate, header: Header) -> bool:
    if candidate.whole is not None:
        return candidate.whole
    end = candidate.page + header.record_bytes // PAGE_BYTES
    return end <= layout.trailer_page and await verify_on_disk(io, file, candidate.page * PAGE_BYTES, header)


async def check_on_disk(
    io: DiskIo, file: DiskFile, offset: int, block: BlockName, lengths: Sequence[int], salt: bytes
) -> None:
    """Read a record where it lies. Raises TierFault: CORRUPT unless it is whole and that block's, IO if unreadable."""
    with io.pages(1) as page:
        header = await io.read(file, [page], offset, partial(parse_header, page, salt))
    if not header.matches(block) or header.raw_bytes != tuple(lengths):
        raise TierFault(Fault.CORRUPT, f"the record is another block's, or cut otherwise: {header.block.key.hex()}")
    if not await _chunks_hold(io, file, offset, header):
        raise TierFault(Fault.CORRUPT, "a chunk does not match its checksum")


async def verify_on_disk(io: DiskIo, file: DiskFile, offset: int, header: Header) -> bool:
    """Whether the chunks of a record at `offset` can be read and match the checksums of its header."""
    try:
        return await _chunks_hold(io, file, offset, header)
    except TierFault:
        return False


async def _chunks_hold(io: DiskIo, file: DiskFile, offset: int, header: Header) -> bool:
    """Read in windows. Raises TierFault."""
    with io.pages(min(WINDOW_PAGES, header.record_bytes // PAGE_BYTES)) as memory:
        for number, chunk in enumerate(header.chunks):
            check = StoredCheck(header.block.key, number, chunk)
            for at in range(0, chunk.room_bytes, len(memory)):
                part = memory[: min(len(memory), chunk.room_bytes - at)]
                await io.read(file, [part], offset + chunk.offset + at, partial(check.update, part))
            if not check.holds:
                return False
    return True
