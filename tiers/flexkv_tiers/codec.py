"""The envelope of stored blocks: what a chunk's checksum covers and how a record's header reads.

A record is one 4 KiB header, then the chunks back to back, each padded to 4 KiB. SSD and S3 keep the
same bytes. This module turns headers into bytes and back and computes checksums; it does no I/O and
keeps no state. The lanes call it on save, the tiers on every write and read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from xxhash import xxh3_128, xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.geometry import ALIGN_BYTES, BLOCK_BYTES_MAX, CHUNKS_MAX
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault

Buffer = bytes | bytearray | memoryview

CHECKSUM_BYTES = 16
HEADER_BYTES = ALIGN_BYTES
FORMAT_VERSION = 1
CODEC_NONE = 0
"""Chunks are stored as they lie in memory; the only codec this version writes and reads."""

HEADER_MAGIC = b"FLEXKV\r\n"  # a transfer that rewrites line ends breaks it
_FIXED = struct.Struct(f"<8sHHII{KEY_BYTES}s{KEY_BYTES}s{NAMESPACE_BYTES}s")
_ENTRY = struct.Struct(f"<QQ{CHECKSUM_BYTES}s")
_CHUNK_NUMBER = struct.Struct("<I")
_BODY_BYTES = HEADER_BYTES - CHECKSUM_BYTES  # the header's own checksum is its last 16 bytes
SALT_BYTES = 8
_SALT_OFFSET = _BODY_BYTES - SALT_BYTES  # the end of the body, whatever the chunk table's length
NO_SALT = bytes(SALT_BYTES)
"""Salt of a record that no segment holds: what lies in S3."""

assert _FIXED.size + CHUNKS_MAX * _ENTRY.size <= _SALT_OFFSET


def chunk_checksum(key: bytes, chunk: int, data: Buffer) -> bytes:
    """Checksum (16 bytes) of one chunk as stored: xxh3-128 over key ‖ chunk number (u32 LE) ‖ data.

    `data` is the whole padded chunk, contiguous. Key and number are in it, so the right
    bytes in the wrong place do not pass.
    """
    assert len(key) == KEY_BYTES
    digest = xxh3_128(chunk_prefix(key, chunk))
    digest.update(data)
    return digest.digest()


def chunk_prefix(key: bytes, chunk: int) -> bytes:
    """What stands before a chunk's bytes in its checksum: for whoever has the bytes in pieces only."""
    return key + _CHUNK_NUMBER.pack(chunk)


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One chunk of a record: `offset` from the record's start and `length` in bytes, and its checksum."""

    offset: int
    length: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says of itself."""

    block: BlockName
    chunks: tuple[ChunkEntry, ...]

    @property
    def record_bytes(self) -> int:
        """Length of the whole record, header included."""
        return self.chunks[-1].offset + self.chunks[-1].length

    def matches(self, block: BlockName) -> bool:
        """Whether this record holds exactly that block: same namespace, shard, key and parent."""
        return self.block == block


def pack_header(block: BlockName, lengths: Sequence[int], checksums: Sequence[bytes], salt: bytes = NO_SALT) -> bytes:
    """The 4 KiB header of a record whose chunks have these lengths and checksums, in chunk order.

    `salt` is that of the SSD segment which holds the record.
    """
    assert len(salt) == SALT_BYTES
    assert 1 <= len(lengths) == len(checksums) <= CHUNKS_MAX
    assert all(length > 0 and length % ALIGN_BYTES == 0 for length in lengths)
    offsets = accumulate(lengths, initial=HEADER_BYTES)
    body = bytearray(_BODY_BYTES)
    count = len(lengths)
    _FIXED.pack_into(
        body, 0, HEADER_MAGIC, FORMAT_VERSION, CODEC_NONE, block.shard, count, block.key, block.parent, block.namespace
    )
    at = _FIXED.size
    for offset, length, checksum in zip(offsets, lengths, checksums, strict=False):  # one offset more: the end
        assert len(checksum) == CHECKSUM_BYTES
        _ENTRY.pack_into(body, at, offset, length, checksum)
        at += _ENTRY.size
    body[_SALT_OFFSET:] = salt
    return bytes(body) + xxh3_128_digest(body)


def parse_header(raw: Buffer, salt: bytes = NO_SALT) -> Header:
    """Read a header back. Raises TierFault(CORRUPT) unless every byte of it is as it was packed with `salt`."""
    view = memoryview(raw)
    if view.nbytes != HEADER_BYTES:
        raise _corrupt(f"a header has {HEADER_BYTES} bytes, this one has {view.nbytes}")
    magic, version, codec, shard, count, key, parent, namespace = _FIXED.unpack_from(view)
    if magic != HEADER_MAGIC:
        raise _corrupt("no record starts here: the magic bytes are missing")
    if xxh3_128_digest(view[:_BODY_BYTES]) != bytes(view[_BODY_BYTES:]):
        raise _corrupt("the header does not match its own checksum")
    if version != FORMAT_VERSION or codec != CODEC_NONE:
        raise _corrupt(f"format version {version}, codec {codec} were not written by this version")
    if view[_SALT_OFFSET:_BODY_BYTES] != salt:
        raise _corrupt("the record belongs to another place, or to an earlier life of this one: its salt differs")
    block = BlockName(NamespaceDigest(namespace), shard, BlockKey(key), BlockKey(parent))
    return Header(block, _parse_chunks(view, count))


def _parse_chunks(view: memoryview, count: int) -> tuple[ChunkEntry, ...]:
    """The chunk table. A valid checksum proves who wrote it only by accident, so lengths are checked too."""
    if not 1 <= count <= CHUNKS_MAX:
        raise _corrupt(f"a record has 1 to {CHUNKS_MAX} chunks, this one says {count}")
    table = view[_FIXED.size : _FIXED.size + count * _ENTRY.size]
    chunks = tuple(ChunkEntry(*fields) for fields in _ENTRY.iter_unpack(table))
    expected = HEADER_BYTES
    for entry in chunks:
        if entry.offset != expected or not 0 < entry.length <= BLOCK_BYTES_MAX or entry.length % ALIGN_BYTES:
            raise _corrupt(f"a chunk of {entry.length} bytes at {entry.offset} does not follow the one before it")
        expected += entry.length
    return chunks


def _corrupt(detail: str) -> TierFault:
    return TierFault(Fault.CORRUPT, detail)
