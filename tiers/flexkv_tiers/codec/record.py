"""Whole records: compresses one as ordered, and brings chunks of one back into frames.

`worker` calls it for both tiers, S3's byte workers call it for what they have read. Frames are the
arena's; the memory that compressed bytes lie in meanwhile is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import align_up
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec.envelope import CODEC_NONE, ChunkEntry, Stored, chunk_checksum
from flexkv_tiers.codec.plan import Measure, Order
from flexkv_tiers.codec.sections import check_seal, decode_chunk, encode_chunk


@dataclass(frozen=True, slots=True)
class EncodedChunks:
    """What follows a record's header: how each chunk is stored, its bytes in whole pages, and what was measured."""

    stored: list[Stored]
    parts: list[memoryview]
    measures: list[list[Measure]]


def encode_chunks(
    chunks: Sequence[memoryview],
    checksums: Sequence[bytes],
    orders: Sequence[Sequence[Order]],
    scratch: memoryview,
) -> EncodedChunks:
    """Compress a record's chunks, whose checksums these are, into `scratch`, which is as long as all of them together.

    A chunk that does not pay is to be written from where it lies.
    """
    stored: list[Stored] = []
    parts: list[memoryview] = []
    measures: list[list[Measure]] = []
    at = 0
    for chunk, checksum, chunk_orders in zip(chunks, checksums, orders, strict=True):
        form, measured = encode_chunk(chunk, checksum, chunk_orders, scratch[at:])
        stored.append(form)
        measures.append(measured)
        if form.codec == CODEC_NONE:
            parts.append(chunk)
        else:
            end = at + align_up(form.stored_bytes)
            parts.append(scratch[at:end])
            at = end
    return EncodedChunks(stored, parts, measures)


def check_stored(key: bytes, chunk: int, entry: ChunkEntry, stored: memoryview) -> None:
    """Whether a chunk as it lies in its record is whole and that chunk, told without decoding it.

    `stored` is `entry.room_bytes` long. Raises TierFault(CORRUPT) if not.
    """
    if entry.codec != CODEC_NONE:
        check_seal(entry, stored)
    elif chunk_checksum(key, chunk, stored) != entry.checksum:
        raise TierFault(Fault.CORRUPT, f"chunk {chunk} does not match its checksum")


def decode_into(frame: memoryview, key: bytes, chunk: int, entry: ChunkEntry, stored: memoryview) -> None:
    """Bring one chunk back into its frame and check it there. Raises TierFault(CORRUPT).

    `stored` is `entry.room_bytes` long. Of a chunk that is not compressed it may be the frame itself.
    """
    if stored is not frame:
        decode_chunk(entry, stored, frame)
    if chunk_checksum(key, chunk, frame) != entry.checksum:
        raise TierFault(Fault.CORRUPT, f"chunk {chunk} does not match its checksum")
