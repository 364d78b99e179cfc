"""Whole records: compresses one as ordered, and brings chunks of one back into frames.

`worker` calls it for both tiers, S3's byte workers call it for what they have read. Frames are the
arena's; the memory that compressed bytes lie in meanwhile is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_128

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import align_up
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec.envelope import CODEC_NONE, ChunkEntry, Stored, chunk_checksum, chunk_prefix
from flexkv_tiers.codec.plan import Measure, Order
from flexkv_tiers.codec.sections import SealCheck, decode_chunk, encode_chunk


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


class StoredCheck:
    """Whether a chunk as it lies in its record is whole and that chunk: told from its pages, without decoding it.

    `update` takes `entry.room_bytes` in pieces of whole pages, in order.
    """

    def __init__(self, key: bytes, chunk: int, entry: ChunkEntry) -> None:
        self._entry = entry
        self._plain = xxh3_128(chunk_prefix(key, chunk))
        self._seal: SealCheck | None = SealCheck(entry.checksum) if entry.codec != CODEC_NONE else None

    def update(self, piece: memoryview) -> None:
        if self._seal is None:
            self._plain.update(piece)
        else:
            self._seal.update(piece)

    @property
    def holds(self) -> bool:
        if self._seal is None:
            return self._plain.digest() == self._entry.checksum
        return self._seal.holds


def check_stored(key: bytes, chunk: int, entry: ChunkEntry, stored: memoryview) -> None:
    """`StoredCheck` of a chunk in one piece. Raises TierFault(CORRUPT) unless it holds."""
    check = StoredCheck(key, chunk, entry)
    check.update(stored)
    if not check.holds:
        raise TierFault(Fault.CORRUPT, f"chunk {chunk} as it is stored does not match its checksum")


def decode_into(frame: memoryview, key: bytes, chunk: int, entry: ChunkEntry, stored: memoryview) -> None:
    """Bring one chunk back into its frame and check it there. Raises TierFault(CORRUPT).

    `stored` is `entry.room_bytes` long. Of a chunk that is not compressed it may be the frame itself.
    """
    if stored is not frame:
        decode_chunk(entry, stored, frame)
    if chunk_checksum(key, chunk, frame) != entry.checksum:
        raise TierFault(Fault.CORRUPT, f"chunk {chunk} does not match its checksum")
