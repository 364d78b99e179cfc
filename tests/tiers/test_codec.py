"""Checksums and record headers: what is packed comes back, and any damage is CORRUPT."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import CHECKSUM_BYTES, HEADER_BYTES, chunk_checksum, pack_header, parse_header

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
    assert [entry.length for entry in header.chunks] == lengths
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
    [(8, "<H", 2), (10, "<H", 1), (16, "<I", 0), (16, "<I", 65), (84, "<Q", 0), (92, "<Q", 0), (92, "<Q", 100)],
)
def test_a_wrong_field_under_a_valid_checksum_is_corrupt(at: int, layout: str, value: int) -> None:
    """Version, codec, chunk count, offset and length are each checked."""
    raw = bytearray(pack_header(BLOCK, LENGTHS, CHECKSUMS))
    struct.pack_into(layout, raw, at, value)
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
