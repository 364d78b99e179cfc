"""Checksums and record headers: what is packed comes back, and any damage is CORRUPT."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.geometry import BLOCK_BYTES_MAX
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import (
    CHECKSUM_BYTES,
    CODEC_NONE,
    CODEC_SECTIONS,
    HEADER_BYTES,
    NO_SALT,
    Stored,
    chunk_checksum,
    pack_header,
    parse_header,
)

BLOCK = BlockName(NamespaceDigest(b"n" * 32), 3, BlockKey(b"k" * 16), BlockKey(b"p" * 16))
LENGTHS = [8192, 4096, 4096]
CHECKSUMS = [bytes([number]) * CHECKSUM_BYTES for number in range(3)]

lengths = st.lists(st.integers(1, 64).map(lambda pages: pages * 4096), min_size=1, max_size=64)


def refusal(raw: bytes) -> Fault:
    with pytest.raises(TierFault) as caught:
        parse_header(raw)
    return caught.value.fault


def resealed(header: bytearray) -> bytes:
    """The header with a checksum that holds, as a buggy or hostile writer would leave it."""
    body = bytes(header[:-CHECKSUM_BYTES])
    return body + xxh3_128_digest(body)


@given(lengths, st.integers(0, 2**32 - 1))
def test_a_header_comes_back_as_it_was_packed(lengths: list[int], shard: int) -> None:
    """Every field survives, and the offsets are those of chunks lying back to back."""
    block = BlockName(BLOCK.namespace, shard, BLOCK.key, BLOCK.parent)
    checksums = [bytes([number]) * CHECKSUM_BYTES for number in range(len(lengths))]
    raw = pack_header(block, lengths, checksums)
    header = parse_header(raw)
    assert len(raw) == HEADER_BYTES
    assert header.matches(block)
    assert list(header.raw_bytes) == lengths
    assert [entry.checksum for entry in header.chunks] == checksums
    assert [entry.offset for entry in header.chunks] == [HEADER_BYTES + sum(lengths[:at]) for at in range(len(lengths))]
    assert header.record_bytes == HEADER_BYTES + sum(lengths)


def test_every_flipped_byte_of_a_header_is_corrupt() -> None:
    """No single damaged byte, in use or spare, goes unnoticed."""
    raw = bytearray(pack_header(BLOCK, LENGTHS, CHECKSUMS))
    for at in range(HEADER_BYTES):
        raw[at] ^= 0x40
        assert refusal(bytes(raw)) is Fault.CORRUPT, at
        raw[at] ^= 0x40
    assert parse_header(raw).matches(BLOCK)


@pytest.mark.parametrize("raw", [b"", bytes(HEADER_BYTES), bytes(HEADER_BYTES - 1), b"\xff" * HEADER_BYTES])
def test_what_is_no_header_is_corrupt(raw: bytes) -> None:
    """Zeros of a hole, a short read and noise are all CORRUPT, never an exception of another kind."""
    assert refusal(raw) is Fault.CORRUPT


@given(st.binary(min_size=HEADER_BYTES - CHECKSUM_BYTES - 8, max_size=HEADER_BYTES - CHECKSUM_BYTES - 8))
def test_garbage_under_a_valid_checksum_is_corrupt(garbage: bytes) -> None:
    """A header whose checksum holds is still believed only if its table makes sense."""
    body = pack_header(BLOCK, LENGTHS, CHECKSUMS)[:8] + garbage
    assert refusal(body + xxh3_128_digest(body)) is Fault.CORRUPT


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        pytest.param(8, "<H", 1, id="version before"),
        pytest.param(8, "<H", 3, id="version after"),
        pytest.param(10, "<H", 1, id="spare"),
        pytest.param(16, "<I", 0, id="no chunk"),
        pytest.param(16, "<I", 65, id="too many chunks"),
        pytest.param(92, "<Q", 0, id="offset inside the header"),
        pytest.param(92, "<Q", 1 << 63, id="offset beyond everything"),
        pytest.param(100, "<Q", 0, id="nothing stored"),
        pytest.param(100, "<Q", 8191, id="stored shorter than it is, without a codec"),
        pytest.param(100, "<Q", (1 << 64) - 1, id="stored longer than anything"),
        pytest.param(108, "<Q", 0, id="nothing in memory"),
        pytest.param(108, "<Q", 100, id="no whole page in memory"),
        pytest.param(108, "<Q", 1 << 40, id="a block larger than any"),
        pytest.param(116, "<B", 1, id="sections that save nothing"),
        pytest.param(116, "<B", 2, id="unknown codec"),
    ],
)
def test_a_wrong_field_under_a_valid_checksum_is_corrupt(at: int, layout: str, value: int) -> None:
    """Version, codec, chunk count, offset and lengths are each checked."""
    raw = bytearray(pack_header(BLOCK, LENGTHS, CHECKSUMS))
    struct.pack_into(layout, raw, at, value)
    assert refusal(resealed(raw)) is Fault.CORRUPT


def test_a_record_of_another_version_is_told_apart() -> None:
    """The first format is refused as one that another version wrote, not as damage of unknown kind."""
    raw = bytearray(pack_header(BLOCK, LENGTHS, CHECKSUMS))
    struct.pack_into("<H", raw, 8, 1)
    with pytest.raises(TierFault, match="written by another version"):
        parse_header(resealed(raw))


def test_compressed_chunks_lie_back_to_back_in_whole_pages() -> None:
    """Exact stored lengths, lengths in memory, codecs and salt come back; offsets count whole pages."""
    stored = [Stored(CODEC_SECTIONS, 4097), Stored(CODEC_NONE, 4096), Stored(CODEC_SECTIONS, 1)]
    header = parse_header(pack_header(BLOCK, LENGTHS, CHECKSUMS, b"segment!", stored))
    assert header.salt == b"segment!"
    assert header.raw_bytes == tuple(LENGTHS)
    assert [Stored(entry.codec, entry.stored_bytes) for entry in header.chunks] == stored
    assert [entry.offset for entry in header.chunks] == [4096, 4096 + 8192, 4096 + 8192 + 4096]
    assert header.record_bytes == 4096 + 8192 + 4096 + 4096


def test_a_record_of_another_salt_is_corrupt_to_who_asks_for_one() -> None:
    """A segment's reader refuses what an earlier life of it, or another segment, holds at that place."""
    raw = pack_header(BLOCK, LENGTHS, CHECKSUMS, b"segment!")
    assert parse_header(raw, b"segment!").matches(BLOCK)
    assert parse_header(raw).salt == b"segment!"
    with pytest.raises(TierFault, match="salt"):
        parse_header(raw, b"other...")


def test_no_table_promises_more_than_a_block_can_hold() -> None:
    """64 chunks, each of a size that alone would pass, are refused together."""
    raw = bytearray(
        pack_header(BLOCK, [4096] * 64, [bytes(CHECKSUM_BYTES)] * 64, NO_SALT, [Stored(CODEC_SECTIONS, 1)] * 64)
    )
    for chunk in range(64):
        struct.pack_into("<Q", raw, 92 + 41 * chunk + 16, BLOCK_BYTES_MAX)
    assert refusal(resealed(raw)) is Fault.CORRUPT


@pytest.mark.parametrize(
    "other",
    [
        BlockName(NamespaceDigest(b"m" * 32), 3, BLOCK.key, BLOCK.parent),
        BlockName(BLOCK.namespace, 4, BLOCK.key, BLOCK.parent),
        BlockName(BLOCK.namespace, 3, BlockKey(b"x" * 16), BLOCK.parent),
        BlockName(BLOCK.namespace, 3, BLOCK.key, BlockKey(b"x" * 16)),
    ],
)
def test_a_record_matches_only_its_own_block(other: BlockName) -> None:
    """Another namespace, shard, key or parent is another block."""
    assert not parse_header(pack_header(BLOCK, LENGTHS, CHECKSUMS)).matches(other)


def test_a_checksum_covers_key_chunk_number_and_every_byte() -> None:
    """The same bytes under another key or number have another checksum; so has any flipped byte."""
    data = bytearray(4096)
    digest = chunk_checksum(BLOCK.key, 0, data)
    assert digest == xxh3_128_digest(BLOCK.key + bytes(4) + data)
    assert digest != chunk_checksum(BLOCK.parent, 0, data)
    assert digest != chunk_checksum(BLOCK.key, 1, data)
    for at in range(0, len(data), 17):
        data[at] ^= 1
        assert chunk_checksum(BLOCK.key, 0, data) != digest
        data[at] ^= 1
