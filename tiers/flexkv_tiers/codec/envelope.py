"""The envelope of stored blocks: what a chunk's checksum covers and how a record's header reads.

A record is one 4 KiB header, then the chunks back to back, each padded to 4 KiB. SSD and S3 keep the
same bytes. This module turns headers into bytes and back and computes checksums; it does no I/O and
keeps no state. The lanes call it on save, the tiers on every write and read. `docs/codec.md` has the
format byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_128, xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.geometry import ALIGN_BYTES, BLOCK_BYTES_MAX, CHUNKS_MAX, align_up
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault

Buffer = bytes | bytearray | memoryview

CHECKSUM_BYTES = 16
HEADER_BYTES = ALIGN_BYTES
SALT_BYTES = 8
FORMAT_VERSION = 2
CODEC_NONE = 0
"""The chunk is stored as it lies in memory."""
CODEC_SECTIONS = 1
"""The chunk is stored as sections, each compressed in its own way: see `codec.sections`."""

NO_SALT = bytes(SALT_BYTES)
"""Salt of a record that no segment of an SSD log holds: what lies in S3."""

HEADER_MAGIC = b"FLEXKV\r\n"  # a transfer that rewrites line ends breaks it
_FIXED = struct.Struct(f"<8sHHII{SALT_BYTES}s{KEY_BYTES}s{KEY_BYTES}s{NAMESPACE_BYTES}s")
_SALT_OFFSET = 20
_ENTRY = struct.Struct(f"<QQQB{CHECKSUM_BYTES}s")
_CHUNK_NUMBER = struct.Struct("<I")
_BODY_BYTES = HEADER_BYTES - CHECKSUM_BYTES  # the header's own checksum is its last 16 bytes
_RAW_BYTES_MAX = BLOCK_BYTES_MAX + CHUNKS_MAX * ALIGN_BYTES  # of all chunks: each may be padded

assert _FIXED.size + CHUNKS_MAX * _ENTRY.size <= _BODY_BYTES


def chunk_checksum(key: bytes, chunk: int, data: Buffer) -> bytes:
    """Checksum (16 bytes) of one chunk: xxh3-128 over key ‖ chunk number (u32 LE) ‖ data.

    `data` is the whole padded chunk as it lies in memory, contiguous, whatever its stored form. Key
    and number are in it, so the right bytes in the wrong place do not pass.
    """
    digest = xxh3_128(chunk_prefix(key, chunk))
    digest.update(data)
    return digest.digest()


def chunk_prefix(key: bytes, chunk: int) -> bytes:
    """What stands before a chunk's bytes in its checksum: for whoever has the bytes in pieces only."""
    assert len(key) == KEY_BYTES
    return key + _CHUNK_NUMBER.pack(chunk)


@dataclass(frozen=True, slots=True)
class Stored:
    """How a chunk is stored: by which codec, and the exact length that gave, in bytes."""

    codec: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One chunk of a record: where it lies, what it is in memory, and the checksum of that.

    `offset` from the record's start, `stored_bytes` exact, `raw_bytes` the chunk's length in memory
    (a multiple of 4 KiB). `stored_bytes` never exceeds `raw_bytes`.
    """

    offset: int
    stored_bytes: int
    raw_bytes: int
    codec: int
    checksum: bytes

    @property
    def room_bytes(self) -> int:
        """What the chunk takes in the record: its stored bytes, padded with zeros to 4 KiB."""
        return align_up(self.stored_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says of itself."""

    block: BlockName
    chunks: tuple[ChunkEntry, ...]
    salt: bytes = NO_SALT
    """Names the life of the SSD segment that the record was written to; NO_SALT in S3."""

    @property
    def record_bytes(self) -> int:
        """Length of the whole record as stored, header included."""
        return self.chunks[-1].offset + self.chunks[-1].room_bytes

    @property
    def raw_bytes(self) -> tuple[int, ...]:
        """Length in memory of each chunk."""
        return tuple(entry.raw_bytes for entry in self.chunks)

    def matches(self, block: BlockName) -> bool:
        """Whether this record holds exactly that block: same namespace, shard, key and parent."""
        return self.block == block

    def is_like(self, other: Header) -> bool:
        """Whether both records read back the same, however each is compressed."""
        contents = [[(entry.raw_bytes, entry.checksum) for entry in each.chunks] for each in (self, other)]
        return self.block == other.block and contents[0] == contents[1]


def pack_header(
    block: BlockName,
    lengths: Sequence[int],
    checksums: Sequence[bytes],
    salt: bytes = NO_SALT,
    stored: Sequence[Stored] = (),
) -> bytes:
    """The 4 KiB header of a record whose chunks have these lengths in memory and checksums, in chunk order.

    `salt` is that of the SSD segment which is to hold the record. `stored` says how each chunk is stored;
    without it all are stored as they lie in memory.
    """
    count = len(lengths)
    stored = stored or [Stored(CODEC_NONE, length) for length in lengths]
    assert 1 <= count == len(checksums) == len(stored) <= CHUNKS_MAX
    assert len(salt) == SALT_BYTES
    body = bytearray(_BODY_BYTES)
    _FIXED.pack_into(
        body, 0, HEADER_MAGIC, FORMAT_VERSION, 0, block.shard, count, salt, block.key, block.parent, block.namespace
    )
    at, offset = _FIXED.size, HEADER_BYTES
    for length, checksum, form in zip(lengths, checksums, stored, strict=True):
        assert len(checksum) == CHECKSUM_BYTES
        entry = ChunkEntry(offset, form.stored_bytes, length, form.codec, checksum)
        assert _is_sound(entry)
        _ENTRY.pack_into(body, at, offset, entry.stored_bytes, length, entry.codec, checksum)
        at += _ENTRY.size
        offset += entry.room_bytes
    return bytes(body) + xxh3_128_digest(body)


def may_be_header(raw: Buffer, salt: bytes) -> bool:
    """Whether a page begins like a header, or has this salt where a header has it: no single bit hides both."""
    view = memoryview(raw)
    return view[: len(HEADER_MAGIC)] == HEADER_MAGIC or view[_SALT_OFFSET : _SALT_OFFSET + SALT_BYTES] == salt


def parse_header(raw: Buffer, salt: bytes | None = None) -> Header:
    """Read a header back. Raises TierFault(CORRUPT) unless every byte of it is as it was packed.

    With `salt`, a record that was packed with another is CORRUPT too.
    """
    view = memoryview(raw)
    if view.nbytes != HEADER_BYTES:
        raise _corrupt(f"a header has {HEADER_BYTES} bytes, this one has {view.nbytes}")
    magic, version, spare, shard, count, found_salt, key, parent, namespace = _FIXED.unpack_from(view)
    if magic != HEADER_MAGIC:
        raise _corrupt("no record starts here: the magic bytes are missing")
    if xxh3_128_digest(view[:_BODY_BYTES]) != bytes(view[_BODY_BYTES:]):
        raise _corrupt("the header does not match its own checksum")
    if version != FORMAT_VERSION or spare != 0:
        raise _corrupt(f"the record was written by another version: format {version}, this one reads {FORMAT_VERSION}")
    if salt is not None and found_salt != salt:
        raise _corrupt("the record belongs to another place, or to an earlier life of this one: its salt differs")
    block = BlockName(NamespaceDigest(namespace), shard, BlockKey(key), BlockKey(parent))
    return Header(block, _parse_chunks(view, count), found_salt)


def _parse_chunks(view: memoryview, count: int) -> tuple[ChunkEntry, ...]:
    """The chunk table. A valid checksum proves who wrote it only by accident, so lengths are checked too."""
    if not 1 <= count <= CHUNKS_MAX:
        raise _corrupt(f"a record has 1 to {CHUNKS_MAX} chunks, this one says {count}")
    table = view[_FIXED.size : _FIXED.size + count * _ENTRY.size]
    chunks = tuple(ChunkEntry(*fields) for fields in _ENTRY.iter_unpack(table))
    expected = HEADER_BYTES
    for entry in chunks:
        if entry.offset != expected:
            raise _corrupt(f"a chunk at {entry.offset} does not follow the one before it, which ends at {expected}")
        if not _is_sound(entry):
            raise _corrupt(
                f"a chunk of {entry.raw_bytes} bytes cannot be stored in {entry.stored_bytes} by codec {entry.codec}"
            )
        expected += entry.room_bytes
    total = sum(entry.raw_bytes for entry in chunks)
    if total > _RAW_BYTES_MAX:
        raise _corrupt(f"a block of {total} bytes is larger than any")
    return chunks


def _is_sound(entry: ChunkEntry) -> bool:
    """Whether lengths and codec of an entry fit together; one that compresses nothing is stored as it is."""
    if not 0 < entry.raw_bytes <= BLOCK_BYTES_MAX or entry.raw_bytes % ALIGN_BYTES:
        return False
    if entry.codec == CODEC_NONE:
        return entry.stored_bytes == entry.raw_bytes
    return entry.codec == CODEC_SECTIONS and 0 < entry.stored_bytes < entry.raw_bytes


def _corrupt(detail: str) -> TierFault:
    return TierFault(Fault.CORRUPT, detail)
