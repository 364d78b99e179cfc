"""What a pack is: the index in front of its records as bytes, and the packs of a bucket as a table.

An index is (all little endian): magic, version, shard, count, bytes of the index and of the whole pack,
namespace; then per record its key, parent, offset and length; zeros up to the last 16 bytes of its last
4 KiB page; there its own xxh3-128. Pure: no I/O; called by the store and its byte worker.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from xxhash import xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import HEADER_BYTES
from flexkv_tiers.s3.config import PACK_BYTES_MAX
from flexkv_tiers.s3.names import PACK_RECORDS_MAX, PackName

PACK_VERSION = 1
_MAGIC = b"FLEXPK\r\n"  # as the magic of a record: a transfer that rewrites line ends breaks it
_HEAD = struct.Struct(f"<8sHHIIIQ{NAMESPACE_BYTES}s")
_ENTRY = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}sII")
_CHECKSUM_BYTES = 16
_PAGE_BITS = 20
"""Bits of a location that hold the record's offset in pages; the pack's number stands above them."""

assert (PACK_BYTES_MAX // ALIGN_BYTES).bit_length() <= _PAGE_BITS


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """Where one record lies in its pack, in bytes."""

    key: BlockKey
    parent: BlockKey
    offset: int
    length: int


def index_bytes(count: int) -> int:
    """Length of the index of `count` records: whole pages."""
    assert 1 <= count <= PACK_RECORDS_MAX
    needed = _HEAD.size + count * _ENTRY.size + _CHECKSUM_BYTES
    return -(-needed // ALIGN_BYTES) * ALIGN_BYTES


def pack_index(name: PackName, blocks: Sequence[BlockName], lengths: Sequence[int]) -> bytes:
    """The index of a pack with these records, in their order; `lengths` are theirs in bytes, headers included."""
    assert name.count == len(blocks) == len(lengths)
    assert all((block.namespace, block.shard) == (name.namespace, name.shard) for block in blocks)
    front = index_bytes(name.count)
    raw = bytearray(front - _CHECKSUM_BYTES)
    head = (_MAGIC, PACK_VERSION, 0, name.shard, name.count, front, front + sum(lengths), name.namespace)
    _HEAD.pack_into(raw, 0, *head)
    at, offsets = _HEAD.size, accumulate(lengths, initial=front)
    for block, offset, length in zip(blocks, offsets, lengths, strict=False):  # one offset more: the end
        assert length % ALIGN_BYTES == 0
        assert length > HEADER_BYTES
        _ENTRY.pack_into(raw, at, block.key, block.parent, offset // ALIGN_BYTES, length // ALIGN_BYTES)
        at += _ENTRY.size
    return bytes(raw) + xxh3_128_digest(raw)


def check_index(name: PackName, raw: bytes, object_bytes: int) -> None:
    """Raises TierFault(CORRUPT) unless this is, whole, the index of exactly this object."""
    if len(raw) != index_bytes(name.count):
        raise _corrupt(f"the index of {name.count} records has {len(raw)} bytes")
    if xxh3_128_digest(raw[:-_CHECKSUM_BYTES]) != raw[-_CHECKSUM_BYTES:]:
        raise _corrupt("the index does not match its own checksum")
    expected = (_MAGIC, PACK_VERSION, 0, name.shard, name.count, len(raw), object_bytes, name.namespace)
    if _HEAD.unpack_from(raw) != expected:
        raise _corrupt("the index is that of another pack, or of another version")
    end = len(raw)
    for _, _, page, pages in _ENTRY.iter_unpack(_entries_of(raw, name.count)):
        if page * ALIGN_BYTES != end or pages * ALIGN_BYTES <= HEADER_BYTES:
            raise _corrupt("a record does not follow the one before it")
        end += pages * ALIGN_BYTES
    if end != object_bytes:
        raise _corrupt(f"the records end at {end}, the object at {object_bytes}")


def _entries_of(raw: bytes, count: int) -> bytes:
    return raw[_HEAD.size : _HEAD.size + count * _ENTRY.size]


class Pack:
    """One pack of the bucket. Its index is kept as packed bytes: there may be a million records in all."""

    __slots__ = (
        "_entries",
        "_pages",
        "dropped",
        "live",
        "live_bytes",
        "marked",
        "marks",
        "name",
        "number",
        "object_bytes",
    )

    def __init__(self, number: int, name: PackName, index: bytes) -> None:
        """`index` is one that `check_index` or `pack_index` vouches for."""
        self.number = number
        self.name = name
        self.object_bytes: int = _HEAD.unpack_from(index)[6]
        self.dropped = 0  # mask of records that are served no more
        self.marked = 0  # of these, the ones whose drop stands in the bucket
        self.marks: dict[int, None] = {}  # masks of the objects that say so
        self.live = name.count
        self.live_bytes = self.object_bytes - len(index)
        self._entries = _entries_of(index, name.count)
        self._pages = array("I", (page for _, _, page, _ in _ENTRY.iter_unpack(self._entries)))

    def records(self) -> Iterator[PackedRecord]:
        """The records that are not dropped, in their order."""
        for at in range(self.name.count):
            if not self.dropped >> at & 1:
                yield self.record(at)

    def record(self, at: int) -> PackedRecord:
        key, parent, page, pages = _ENTRY.unpack_from(self._entries, at * _ENTRY.size)
        return PackedRecord(BlockKey(key), BlockKey(parent), page * ALIGN_BYTES, pages * ALIGN_BYTES)

    def place_of(self, block: BlockName, offset: int) -> int | None:
        """Where in the index this block's record at `offset` stands; None when it is not there, or dropped."""
        at = bisect_left(self._pages, offset // ALIGN_BYTES)
        if at == self.name.count or self.dropped >> at & 1:
            return None
        record = self.record(at)
        found = BlockName(self.name.namespace, self.name.shard, record.key, record.parent)
        return at if record.offset == offset and found == block else None

    @property
    def live_share(self) -> float:
        """How much of its records is still served: 1 for a pack of which nothing was dropped."""
        share: float = self.live_bytes / (self.object_bytes - index_bytes(self.name.count))
        return share

    def location(self, record: PackedRecord) -> int:
        """The store's integer for this record's place."""
        return self.number << _PAGE_BITS | record.offset // ALIGN_BYTES

    def drop(self, mask: int) -> None:
        """Serve these records no more."""
        fresh = mask & ~self.dropped
        self.dropped |= fresh
        self.live -= fresh.bit_count()
        for at in range(fresh.bit_length()):
            if fresh >> at & 1:
                self.live_bytes -= self.record(at).length
        assert self.live >= 0


class PackTable:
    """The packs this store knows. Numbers are never used twice: a location that is too old finds nothing."""

    def __init__(self) -> None:
        self.bytes = 0  # of all objects in the table
        self._by_number: dict[int, Pack] = {}
        self._by_name: dict[PackName, Pack] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Pack]:
        """A snapshot, oldest first."""
        return iter(list(self._by_number.values()))

    def add(self, name: PackName, index: bytes) -> Pack:
        assert name not in self._by_name
        self._made += 1
        pack = self._by_number[self._made] = self._by_name[name] = Pack(self._made, name, index)
        self.bytes += pack.object_bytes
        return pack

    def remove(self, pack: Pack) -> None:
        """Forget it, if it is still known."""
        if self._by_number.pop(pack.number, None) is not None:
            del self._by_name[pack.name]
            self.bytes -= pack.object_bytes

    def named(self, name: PackName) -> Pack | None:
        return self._by_name.get(name)

    def at(self, location: int) -> tuple[Pack, int] | None:
        """The pack of a location and the offset in it; None when the pack is gone."""
        pack = self._by_number.get(location >> _PAGE_BITS)
        return None if pack is None else (pack, (location & ((1 << _PAGE_BITS) - 1)) * ALIGN_BYTES)


def _corrupt(detail: str) -> TierFault:
    return TierFault(Fault.CORRUPT, detail)
