"""Whole records: compresses one as ordered, and brings chunks of one back into frames.

What the S3 tier's byte workers call beside their connections, and the SSD tier's own `worker`. Frames
are the arena's; the memory that compressed bytes lie in meanwhile is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec.envelope import (
    CODEC_NONE,
    Buffer,
    ChunkEntry,
    Stored,
    chunk_checksum,
    pack_header,
    parse_header,
)
from flexkv_tiers.codec.plan import Measure, Order
from flexkv_tiers.codec.sections import decode_chunk, encode_chunk


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record ready to be written: header and parts, each whole pages, and what its codecs measured, by chunk."""

    header: bytes
    parts: list[memoryview]
    measures: list[list[Measure]]


def encode_record(
    header: Buffer, chunks: Sequence[memoryview], orders: Sequence[Sequence[Order]], scratch: memoryview
) -> EncodedRecord:
    """Compress a record's chunks into `scratch`, which is as long as all of them together.

    `header` is the one of the record uncompressed. A chunk that does not pay is written from where it lies.
    """
    plain = parse_header(header)
    assert plain.raw_bytes == tuple(len(chunk) for chunk in chunks)
    stored: list[Stored] = []
    parts: list[memoryview] = []
    measures: list[list[Measure]] = []
    at = 0
    for entry, chunk, chunk_orders in zip(plain.chunks, chunks, orders, strict=True):
        form, measured = encode_chunk(chunk, chunk_orders, scratch[at:])
        room_bytes = ChunkEntry(0, form.stored_bytes, len(chunk), form.codec, entry.checksum).room_bytes
        if form.codec == CODEC_NONE:
            parts.append(chunk)
        else:
            parts.append(scratch[at : at + room_bytes])
            at += room_bytes
        stored.append(form)
        measures.append(measured)
    checksums = [entry.checksum for entry in plain.chunks]
    packed = pack_header(plain.block, plain.raw_bytes, checksums, stored, salt=plain.salt)
    return EncodedRecord(packed, parts, measures)


def decode_into(frame: memoryview, key: bytes, chunk: int, entry: ChunkEntry, stored: memoryview) -> None:
    """Bring one chunk back into its frame and check it there. Raises TierFault(CORRUPT).

    For a chunk that is not compressed, `stored` may be the frame itself: then it is only checked.
    """
    if stored is not frame:
        decode_chunk(entry, stored, frame)
    if chunk_checksum(key, chunk, frame) != entry.checksum:
        raise TierFault(Fault.CORRUPT, f"chunk {chunk} does not match its checksum")
