"""Every page of a segment that is not a record: segment header, dead map, footer, trailer. Bytes there and back.

`docs/ssd-format.md` has the byte tables. Pure functions of bytes: no files, no state. Each page ends in
the xxh3-128 checksum of its other bytes and carries the segment's salt, so a page of another segment,
or of an earlier life of this one, is as damaged as a flipped bit. Damage is TierFault(CORRUPT).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import CHECKSUM_BYTES, SALT_BYTES, Buffer

FORMAT_VERSION = 2
"""1 was the store of equal slots, which this version neither reads nor touches."""
PAGE_BYTES = ALIGN_BYTES
DIRECTORY_ID_BYTES = 16
MAP_BIT_PAGES = 2
"""A record takes at least two pages, so no two records start in the same bit's pages."""
FREE = 0
"""Sequence number of a segment that holds nothing."""
GROUPS_MAX = SHAPES_MAX = 1 << 16

_BODY_BYTES = PAGE_BYTES - CHECKSUM_BYTES
_HEADER = struct.Struct(f"<8sHHI{DIRECTORY_ID_BYTES}sIQ{SALT_BYTES}sQ")
_HEADER_MAGIC = b"FLEXKVSG"
_MAP = struct.Struct(f"<8s{SALT_BYTES}sQI")
_MAP_MAGIC = b"FLEXKVDM"
_MAP_OFFSET = 64
_MAP_BYTES = _BODY_BYTES - _MAP_OFFSET
_FOOTER = struct.Struct(f"<8s{SALT_BYTES}sII")
_FOOTER_MAGIC = b"FLEXKVFT"
_FOOTER_OFFSET = 32
_FOOTER_BYTES = _BODY_BYTES - _FOOTER_OFFSET
_TRAILER = struct.Struct(f"<8s{SALT_BYTES}sIIIIII")
_TRAILER_MAGIC = b"FLEXKVTR"
_GROUP = struct.Struct(f"<{NAMESPACE_BYTES}sI")
_SHAPE_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct(f"<IIHH{KEY_BYTES}s{KEY_BYTES}s")
ENTRY_BYTES = _ENTRY.size
ENTRY = np.dtype(
    [
        ("page", "<u4"),
        ("pages", "<u4"),
        ("shape", "<u2"),
        ("group", "<u2"),
        ("key", f"V{KEY_BYTES}"),
        ("parent", f"V{KEY_BYTES}"),
    ]
)
"""An entry as the footer keeps it: shape and group by their numbers in the footer's tables."""
assert ENTRY.itemsize == ENTRY_BYTES

Shape = tuple[int, ...]
"""Chunk lengths of a record, in bytes."""
Group = tuple[NamespaceDigest, int]
"""Namespace and shard."""
Rows = NDArray[np.void]
"""Entries as `ENTRY`. A million come at start, so they stay in the form they lie in."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie in a segment of `segment_bytes`. Pages are counted from its start."""

    segment_bytes: int

    @property
    def pages(self) -> int:
        return self.segment_bytes // PAGE_BYTES

    @property
    def map_count(self) -> int:
        """Dead-map pages, each kept twice."""
        bits = -(-self.pages // MAP_BIT_PAGES)
        return -(-bits // (_MAP_BYTES * 8))

    @property
    def first_page(self) -> int:
        """Where the first record may start."""
        return 1 + 2 * self.map_count

    @property
    def trailer_page(self) -> int:
        return self.pages - 1

    @property
    def record_pages_max(self) -> int:
        """The largest record that fits an empty segment."""
        return self.trailer_page - self.first_page - 1


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. `sequence` rises with every life of any segment of a directory set."""

    directory: bytes
    number: int
    segment_bytes: int
    salt: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Trailer:
    """Where the footer of a sealed segment lies and what is in it."""

    footer_page: int
    footer_count: int
    group_count: int
    shape_count: int
    entry_count: int
    is_clean: bool
    """Whether the pages behind the last entry hold nothing that a scan could take for a record."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a segment: first page and number of pages, header included, and how it is cut."""

    page: int
    pages: int
    block: BlockName
    shape: Shape


@dataclass(slots=True)
class Footer:
    """A footer read back, rows in order of place."""

    groups: list[Group]
    shapes: list[Shape]
    rows: Rows
    is_clean: bool = False
    """As the trailer says."""

    @property
    def end(self) -> int:
        """The first page behind the last record; 0 when there is none."""
        return int(self.rows["page"][-1]) + int(self.rows["pages"][-1]) if len(self.rows) else 0

    def entries(self) -> Iterable[Entry]:
        rows: list[tuple[int, int, int, int, BlockKey, BlockKey]] = self.rows.tolist()
        for page, pages, shape, group, key, parent in rows:
            yield Entry(page, pages, BlockName(*self.groups[group], key, parent), self.shapes[shape])


def pack_segment_header(header: SegmentHeader) -> bytes:
    """Page 0 of a segment."""
    map_count = Layout(header.segment_bytes).map_count
    return _close(
        _HEADER.pack(
            _HEADER_MAGIC,
            FORMAT_VERSION,
            0,
            map_count,
            header.directory,
            header.number,
            header.segment_bytes,
            header.salt,
            header.sequence,
        )
    )


def parse_segment_header(raw: Buffer) -> SegmentHeader:
    """Read page 0 back. CORRUPT unless every byte of it is right and of this version."""
    body = _open(raw, _HEADER_MAGIC, "segment header")
    _, version, _, map_count, directory, number, segment_bytes, salt, sequence = _HEADER.unpack_from(body)
    if version != FORMAT_VERSION:
        raise corrupt(f"a segment of format version {version}, not {FORMAT_VERSION}")
    if segment_bytes % PAGE_BYTES or map_count != Layout(segment_bytes).map_count:
        raise corrupt(f"a segment of {segment_bytes} bytes does not have {map_count} map pages")
    return SegmentHeader(directory, number, segment_bytes, salt, sequence)


class DeadMap:
    """Which records of a segment are dropped: bit `page // 2` of the page a record starts at.

    Knows which of its pages changed since they were last packed.
    """

    __slots__ = ("any", "bits", "counters")

    def __init__(self, map_count: int) -> None:
        self.bits = bytearray(map_count * _MAP_BYTES)
        self.counters = [0] * map_count
        self.any = False

    def kill(self, page: int) -> int:
        """Set the bit of the record at `page`; the number of the map page it is in."""
        bit = page // MAP_BIT_PAGES
        self.bits[bit >> 3] |= 1 << (bit & 7)
        self.any = True
        return self.map_number(page)

    @staticmethod
    def map_number(page: int) -> int:
        """The number of the map page that the bit of a record at `page` is in."""
        return (page // MAP_BIT_PAGES >> 3) // _MAP_BYTES

    def is_dead(self, page: int) -> bool:
        bit = page // MAP_BIT_PAGES
        return bool(self.bits[bit >> 3] >> (bit & 7) & 1)

    def alive(self, rows: Rows) -> Rows:
        """Those whose records are not dropped."""
        if not self.any:
            return rows
        bits = rows["page"] // MAP_BIT_PAGES
        is_dead = np.frombuffer(self.bits, np.uint8)[bits >> 3] >> (bits & 7) & 1
        alive: Rows = rows[is_dead == 0]
        return alive

    @property
    def end(self) -> int:
        """The first page that no bit that is set, nor one before it, stands for."""
        last = len(self.bits.rstrip(b"\0"))
        return MAP_BIT_PAGES * (8 * (last - 1) + self.bits[last - 1].bit_length()) if last else 0

    def pack(self, number: int, salt: bytes) -> bytes:
        """The next version of one map page, twice: one copy damaged or torn never hides what the other says."""
        self.counters[number] += 1
        page = bytearray(_BODY_BYTES)
        _MAP.pack_into(page, 0, _MAP_MAGIC, salt, self.counters[number], number)
        page[_MAP_OFFSET:] = self.bits[number * _MAP_BYTES : (number + 1) * _MAP_BYTES]
        return _close(page) * 2

    def load(self, number: int, copies: Buffer, salt: bytes) -> None:
        """Take one map page from its two copies: of the valid ones the higher counter. CORRUPT when none is valid."""
        best: tuple[int, bytes] | None = None
        for at in (0, PAGE_BYTES):
            try:
                body = _open(memoryview(copies)[at : at + PAGE_BYTES], _MAP_MAGIC, "dead map")
            except TierFault:
                continue
            _, page_salt, counter, page_number = _MAP.unpack_from(body)
            if page_salt == salt and page_number == number and (best is None or counter > best[0]):
                best = counter, bytes(body[_MAP_OFFSET:])
        if best is None:
            raise corrupt(f"both copies of dead-map page {number} are damaged")
        self.counters[number] = best[0]
        self.bits[number * _MAP_BYTES : (number + 1) * _MAP_BYTES] = best[1]
        self.any = self.any or any(best[1])


class FooterSize:
    """How many pages the footer of these entries takes; asked before a record is let into a segment."""

    __slots__ = ("_entries", "_groups", "_shape_bytes", "_shapes")

    def __init__(self) -> None:
        self._entries = 0
        self._groups: set[Group] = set()
        self._shapes: set[Shape] = set()
        self._shape_bytes = 0

    def add(self, block: BlockName, shape: Shape) -> None:
        self._entries += 1
        self._groups.add((block.namespace, block.shard))
        if shape not in self._shapes:
            self._shapes.add(shape)
            self._shape_bytes += _SHAPE_COUNT.size * (1 + len(shape))

    def pages_with(self, shape: Shape) -> int | None:
        """Pages with one more entry of a new group; None when the tables would overflow."""
        if len(self._groups) + 1 >= GROUPS_MAX or len(self._shapes) + 1 >= SHAPES_MAX:
            return None
        shape_bytes = self._shape_bytes + _SHAPE_COUNT.size * (1 + len(shape))
        total = (self._entries + 1) * ENTRY_BYTES + (len(self._groups) + 1) * _GROUP.size + shape_bytes
        return -(-total // _FOOTER_BYTES)


def pack_footer(layout: Layout, salt: bytes, entries: Sequence[Entry], *, is_clean: bool) -> tuple[int, bytes]:
    """The first page of the footer, and footer and trailer as they lie from there to the segment's end."""
    groups: dict[Group, int] = {}
    shapes: dict[Shape, int] = {}
    rows = bytearray()
    for entry in entries:
        block = entry.block
        group = groups.setdefault((block.namespace, block.shard), len(groups))
        shape = shapes.setdefault(entry.shape, len(shapes))
        rows += _ENTRY.pack(entry.page, entry.pages, shape, group, block.key, block.parent)
    stream = b"".join(_GROUP.pack(*group) for group in groups)
    stream += b"".join(struct.pack(f"<{1 + len(shape)}I", len(shape), *shape) for shape in shapes)
    stream += rows
    pages = []
    for number, at in enumerate(range(0, len(stream), _FOOTER_BYTES)):
        part = stream[at : at + _FOOTER_BYTES]
        head = _FOOTER.pack(_FOOTER_MAGIC, salt, number, len(part)).ljust(_FOOTER_OFFSET, b"\0")
        pages.append(_close(head + part))
    first = layout.trailer_page - len(pages)
    counts = first, len(pages), len(groups), len(shapes), len(entries)
    pages.append(_close(_TRAILER.pack(_TRAILER_MAGIC, salt, *counts, is_clean)))
    return first, b"".join(pages)


def parse_trailer(raw: Buffer, layout: Layout, salt: bytes) -> Trailer | None:
    """The trailer of this life; None when this life has not been sealed. CORRUPT when damaged."""
    if not any(raw):
        return None
    body = _open(raw, _TRAILER_MAGIC, "trailer")
    _, page_salt, first, count, groups, shapes, entries, is_clean = _TRAILER.unpack_from(body)
    if page_salt != salt:
        return None  # an earlier life's
    if not layout.first_page <= first <= layout.trailer_page or first + count != layout.trailer_page:
        raise corrupt("the trailer names a footer that does not end where the trailer starts")
    return Trailer(first, count, groups, shapes, entries, bool(is_clean))


def parse_footer(raw: Buffer, trailer: Trailer, layout: Layout, salt: bytes) -> Footer:
    """The footer whose pages are `raw`. CORRUPT unless every page is right and every entry lies within the segment."""
    view, stream = memoryview(raw), bytearray()
    assert len(view) == trailer.footer_count * PAGE_BYTES
    for expected in range(trailer.footer_count):
        body = _open(view[expected * PAGE_BYTES : (expected + 1) * PAGE_BYTES], _FOOTER_MAGIC, "footer")
        _, page_salt, number, used = _FOOTER.unpack_from(body)
        if page_salt != salt or number != expected or used > _FOOTER_BYTES:
            raise corrupt(f"footer page {expected} is not this segment's")
        stream += body[_FOOTER_OFFSET : _FOOTER_OFFSET + used]
    try:
        return _parse_stream(stream, trailer, layout)
    except (struct.error, ValueError) as error:
        raise corrupt(f"the footer's tables do not fit together: {error}") from error


def _parse_stream(stream: bytearray, trailer: Trailer, layout: Layout) -> Footer:
    at = trailer.group_count * _GROUP.size
    groups = [(NamespaceDigest(name), shard) for name, shard in _GROUP.iter_unpack(stream[:at])]
    shapes = []
    for _ in range(trailer.shape_count):
        (length,) = _SHAPE_COUNT.unpack_from(stream, at)
        shapes.append(struct.unpack_from(f"<{length}I", stream, at + _SHAPE_COUNT.size))
        at += _SHAPE_COUNT.size * (1 + length)
    rows = np.frombuffer(bytes(stream[at:]), ENTRY)
    if len(rows) != trailer.entry_count:
        raise corrupt(f"the footer has {len(rows)} entries, its trailer says {trailer.entry_count}")
    ends = rows["page"].astype(np.int64) + rows["pages"]
    wrong = rows["page"] < np.concatenate(([layout.first_page], ends[:-1]))[: len(rows)]
    wrong |= (rows["pages"] < MAP_BIT_PAGES) | (rows["shape"] >= len(shapes)) | (rows["group"] >= len(groups))
    if wrong.any():
        raise corrupt(f"the footer's entry for page {rows['page'][wrong.argmax()]} cannot be right")
    if len(rows) and ends[-1] > trailer.footer_page:
        raise corrupt("the footer's last entry lies beyond the records' end")
    return Footer(groups, shapes, rows, trailer.is_clean)


def _close(body: bytes | bytearray) -> bytes:
    padded = bytes(body).ljust(_BODY_BYTES, b"\0")
    return padded + xxh3_128_digest(padded)


def _open(raw: Buffer, magic: bytes, what: str) -> memoryview:
    view = memoryview(raw)
    if view[: len(magic)] != magic:
        raise corrupt(f"no {what} lies here: the magic bytes are missing")
    if xxh3_128_digest(view[:_BODY_BYTES]) != view[_BODY_BYTES:]:
        raise corrupt(f"the {what} does not match its own checksum")
    return view[:_BODY_BYTES]


def corrupt(detail: str) -> TierFault:
    """The fault of bytes that are not what they should be."""
    return TierFault(Fault.CORRUPT, detail)
