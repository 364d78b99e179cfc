"""Where things lie in the segment files of an SSD directory, and hands that reach into them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flexkv_py.core.messages import BlockName
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import HEADER_MAGIC, parse_header
from flexkv_tiers.ssd.directory import segment_path, segments
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, DeadMap, Layout, parse_segment_header, parse_trailer


@dataclass(frozen=True)
class Place:
    """A run of bytes of a segment file."""

    path: Path
    offset: int
    length: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)

    def write(self, data: bytes) -> None:
        """Put bytes there, durably; a shorter piece than the place leaves the rest."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def flip(self, at: int) -> None:
        """One bit of the byte at `at`, unless the file was cut off before it."""
        byte = Place(self.path, self.offset + at, 1)
        if there := byte.read():
            byte.write(bytes([there[0] ^ 0x10]))


def regions(path: Path) -> dict[str, Place]:
    """What of a segment is not a record: header, dead maps, and, when it is sealed, footer and trailer."""
    raw = path.read_bytes()
    header = parse_segment_header(raw[:PAGE_BYTES])
    layout = Layout(header.segment_bytes)
    found = {
        "segment header": Place(path, 0, PAGE_BYTES),
        "dead map": Place(path, PAGE_BYTES, 2 * layout.map_count * PAGE_BYTES),
    }
    trailer = parse_trailer(raw[layout.trailer_page * PAGE_BYTES :], layout, header.salt)
    if trailer is not None:
        found["footer"] = Place(path, trailer.footer_page * PAGE_BYTES, trailer.footer_count * PAGE_BYTES)
        found["trailer"] = Place(path, layout.trailer_page * PAGE_BYTES, PAGE_BYTES)
    return found


def records(directory: Path) -> Iterator[tuple[BlockName, Place]]:
    """Every record that is not dropped, segment by segment in order of place."""
    for found in segments(directory):
        yield from records_of(segment_path(directory, found.number))


def records_of(path: Path) -> Iterator[tuple[BlockName, Place]]:
    """Those of one segment. Raises TierFault when its header or dead map is damaged."""
    raw = memoryview(path.read_bytes())
    header = parse_segment_header(raw[:PAGE_BYTES])
    if header.sequence == FREE:
        return
    layout = Layout(header.segment_bytes)
    dead = DeadMap(layout.map_count)
    for number in range(layout.map_count):
        at = (1 + 2 * number) * PAGE_BYTES
        dead.load(number, raw[at : at + 2 * PAGE_BYTES], header.salt)
    for page in range(layout.first_page, min(layout.trailer_page, len(raw) // PAGE_BYTES)):
        head = raw[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
        if head[:8] != HEADER_MAGIC or dead.is_dead(page):
            continue
        try:
            record = parse_header(head, header.salt)
        except TierFault:
            continue
        yield record.block, Place(path, page * PAGE_BYTES, record.record_bytes)
