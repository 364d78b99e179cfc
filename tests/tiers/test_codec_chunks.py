"""Compressed chunks: every byte string comes back exactly, and nothing that is stored can make a decoder err."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import CODEC_NONE, CODEC_SECTIONS, ChunkEntry, chunk_checksum, pack_header, parse_header
from flexkv_tiers.codec.codecs import CODECS, STRIP_ELEMENTS
from flexkv_tiers.codec.plan import CodecNumber, Order
from flexkv_tiers.codec.record import StoredCheck, check_stored, decode_into, encode_chunks
from flexkv_tiers.codec.sections import decode_chunk, encode_chunk

ALL = tuple(CodecNumber)
CHECKSUM = b"checksum of raw."
GUARD = 64
"""Bytes beside a frame that must stay as they are, whatever a decoder does."""


def bfloat16(count: int, seed: int = 1) -> bytes:
    """Numbers as KV caches have them: normal values, cut to bf16."""
    values = np.random.default_rng(seed).standard_normal(count // 2 + 1).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()[:count]


def kinds(length: int) -> dict[str, bytes]:
    return {
        "bf16": bfloat16(length),
        "random": random.Random(1).randbytes(length),
        "zeros": bytes(length),
        "text": (b"the quick brown fox " * (length // 20 + 1))[:length],
    }


def decoded(codec: CodecNumber, stored: bytes, length: int) -> bytes:
    """What a decoder makes of it; asserts that it writes nothing beside its frame."""
    room = bytearray(b"\xa5" * (length + 2 * GUARD))
    try:
        CODECS[codec].decode(memoryview(stored), memoryview(room)[GUARD : GUARD + length])
    finally:
        assert room[:GUARD] == room[GUARD + length :] == b"\xa5" * GUARD
    return bytes(room[GUARD : GUARD + length])


@contextmanager
def corrupt_at_worst() -> Iterator[None]:
    """The one fault a decoder may have."""
    try:
        yield
    except TierFault as fault:
        if fault.fault is not Fault.CORRUPT:
            raise


def stored_chunk(raw: bytes, orders: list[Order]) -> tuple[ChunkEntry, bytes]:
    room = memoryview(bytearray(b"\xa5" * len(raw)))
    form, _ = encode_chunk(memoryview(raw), CHECKSUM, orders, room)
    entry = ChunkEntry(4096, form.stored_bytes, len(raw), form.codec, CHECKSUM)
    return entry, raw if form.codec == CODEC_NONE else bytes(room[: entry.room_bytes])


def resealed(stored: bytearray) -> bytes:
    """A stored chunk whose seal holds, as a buggy or hostile writer would leave it."""
    struct.pack_into("<Q", stored, 0, xxh3_64_intdigest(CHECKSUM + stored[8:]))
    return bytes(stored)


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("kind", ["bf16", "random", "zeros", "text"])
@pytest.mark.parametrize("length", [1, 2, 3, 4096, 4096 * 5 + 1, 2 * STRIP_ELEMENTS + 4096])
def test_every_codec_brings_every_kind_of_bytes_back(codec: CodecNumber, kind: str, length: int) -> None:
    """Odd lengths, single bytes and more than one strip included; the length it tells is all it wrote."""
    raw = kinds(length)[kind]
    room = bytearray(b"\xa5" * (length + 100))
    count = CODECS[codec].encode(memoryview(raw), memoryview(room)[: length + 50])
    assert room[length + 50 :] == b"\xa5" * 50
    if count is not None:
        assert decoded(codec, bytes(room[:count]), length) == raw


@given(st.binary(min_size=1, max_size=3000), st.sampled_from(ALL), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_a_codec_never_writes_beside_the_room_it_has(raw: bytes, codec: CodecNumber, room_bytes: int) -> None:
    """Whatever does not fit is refused, not cut; what fits comes back."""
    room = bytearray(b"\xa5" * (room_bytes + GUARD))
    count = CODECS[codec].encode(memoryview(raw), memoryview(room)[:room_bytes])
    assert room[room_bytes:] == b"\xa5" * GUARD
    if count is not None:
        assert decoded(codec, bytes(room[:count]), len(raw)) == raw


@given(st.binary(max_size=400), st.sampled_from(ALL), st.integers(1, 5000))
@settings(max_examples=300, deadline=None)
def test_garbage_fills_the_frame_or_is_corrupt(stored: bytes, codec: CodecNumber, length: int) -> None:
    """A decoder fed noise answers with CORRUPT or with exactly one frame of something."""
    with corrupt_at_worst():
        assert len(decoded(codec, stored, length)) == length


@given(st.sampled_from(ALL[1:]), st.data())
@settings(max_examples=300, deadline=None)
def test_damage_to_stored_bytes_fills_the_frame_or_is_corrupt(codec: CodecNumber, data: st.DataObject) -> None:
    """Bytes that nearly decode are no worse than noise: flips, cuts and tails stay within the frame."""
    raw = kinds(8192)["bf16" if codec is not CodecNumber.LZ4 else "text"]
    room = bytearray(10_000)
    count = CODECS[codec].encode(memoryview(raw), memoryview(room))
    assert count is not None
    stored = room[:count]
    for at in data.draw(st.lists(st.integers(0, count - 1), max_size=4)):
        stored[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([count, count, count - 1, count // 2, 1]))
    stored = stored[:cut] + data.draw(st.binary(max_size=8))
    with corrupt_at_worst():
        decoded(codec, bytes(stored), len(raw))


@pytest.mark.parametrize("codec", [CodecNumber.LZ4, CodecNumber.ZSTD])
def test_a_bomb_is_not_unpacked(codec: CodecNumber) -> None:
    """Few stored bytes that stand for 64 MiB fill one page and no more, or are refused."""
    bomb = bytearray(1 << 20)
    count = CODECS[codec].encode(memoryview(bytes(64 << 20)), memoryview(bomb))
    assert count is not None
    with corrupt_at_worst():
        assert decoded(codec, bytes(bomb[:count]), 4096) == bytes(4096)


@given(st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(ALL)), min_size=1, max_size=16), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_chunks_of_any_sections_come_back(sections: list[tuple[int, CodecNumber]], seed: int) -> None:
    """However a chunk is cut and whatever is ordered, decoding gives the chunk; it is never stored longer."""
    total = sum(length for length, _ in sections)
    sections[-1] = (sections[-1][0] + -total % 4096 + 4096, sections[-1][1])
    orders = [Order(length, (codec,)) for length, codec in sections]
    length = sum(order.raw_bytes for order in orders)
    raw = kinds(length)[list(kinds(4))[seed]]
    entry, stored = stored_chunk(raw, orders)
    assert entry.room_bytes <= len(raw)
    frame = bytearray(len(raw))
    decode_chunk(entry, memoryview(stored), memoryview(frame))
    assert frame == raw


def test_a_trial_measures_every_candidate_and_keeps_the_shortest() -> None:
    """On bf16 the planes win, lz4 gains nothing, and each candidate's speed both ways is known."""
    raw = bfloat16(1 << 20)
    room = memoryview(bytearray(len(raw)))
    candidates = (CodecNumber.PLANES, CodecNumber.ZSTD, CodecNumber.LZ4)
    form, measures = encode_chunk(memoryview(raw), CHECKSUM, [Order(len(raw), candidates)], room)
    assert [measure.codec for measure in measures] == list(candidates)
    assert measures[0].stored_bytes < measures[1].stored_bytes < measures[2].stored_bytes == len(raw)
    assert all(measure.encode_ns > 0 for measure in measures)
    assert all(measure.decode_ns > 0 for measure in measures[:2])
    frame = bytearray(len(raw))
    entry = ChunkEntry(4096, form.stored_bytes, len(raw), form.codec, CHECKSUM)
    decode_chunk(entry, room[: entry.room_bytes], memoryview(frame))
    assert frame == raw


def test_a_chunk_that_saves_no_page_is_stored_as_it_is() -> None:
    """Random bytes, and a chunk of a single page, stay uncompressed whatever is ordered."""
    for raw in (random.Random(1).randbytes(16_384), bytes(4096)):
        entry, _ = stored_chunk(raw, [Order(len(raw), (CodecNumber.ZSTD,))])
        assert (entry.codec, entry.stored_bytes) == (CODEC_NONE, len(raw))


def test_every_flipped_byte_of_a_stored_chunk_is_corrupt() -> None:
    """Table, stored sections and padding alike: the seal covers all of them."""
    raw = bfloat16(32_768)
    entry, stored = stored_chunk(raw, [Order(24_576, (CodecNumber.PLANES,)), Order(8192, (CodecNumber.NONE,))])
    assert entry.codec == CODEC_SECTIONS
    frame = bytearray(len(raw))
    damaged = bytearray(stored)
    for at in range(len(stored)):
        damaged[at] ^= 0x10
        with pytest.raises(TierFault) as caught:
            decode_chunk(entry, memoryview(damaged), memoryview(frame))
        assert caught.value.fault is Fault.CORRUPT
        damaged[at] ^= 0x10


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (8, "<B", 0),
        (8, "<B", 17),
        (8, "<B", 255),
        (16, "<B", 9),
        (20, "<I", 0),
        (20, "<I", 4096),
        (20, "<I", 0xFFFFFFFF),
        (24, "<I", 0),
        (24, "<I", 0xFFFFFFFF),
        (24, "<I", 1),
    ],
)
def test_a_wrong_table_under_a_valid_seal_is_corrupt(at: int, layout: str, value: int) -> None:
    """Section count, codec, raw and stored length are each checked before a byte is written."""
    raw = bfloat16(32_768)
    entry, stored = stored_chunk(raw, [Order(len(raw), (CodecNumber.ZSTD,))])
    damaged = bytearray(stored)
    struct.pack_into(layout, damaged, at, value)
    frame = bytearray(len(raw))
    with pytest.raises(TierFault) as caught:
        decode_chunk(entry, memoryview(resealed(damaged)), memoryview(frame))
    assert caught.value.fault is Fault.CORRUPT
    assert frame == bytes(len(raw))


@given(st.binary(min_size=4088, max_size=4088), st.integers(1, 4096))
@settings(max_examples=200, deadline=None)
def test_garbage_under_a_valid_seal_is_corrupt_or_a_chunk(garbage: bytes, stored_bytes: int) -> None:
    """A hostile writer's table makes nobody read or write outside."""
    entry = ChunkEntry(4096, stored_bytes, 8192, CODEC_SECTIONS, CHECKSUM)
    frame = bytearray(8192)
    with corrupt_at_worst():
        decode_chunk(entry, memoryview(resealed(bytearray(8) + garbage)), memoryview(frame))


def test_a_record_is_encoded_and_each_chunk_comes_back_alone() -> None:
    """Header, parts and offsets agree; a chunk that does not pay is written from its frame; damage is CORRUPT."""
    block = BlockName(NamespaceDigest(b"n" * 32), 3, BlockKey(b"k" * 16), BlockKey(b"p" * 16))
    chunks = [bfloat16(65_536), random.Random(2).randbytes(8192), bytes(16_384)]
    checksums = [chunk_checksum(block.key, number, chunk) for number, chunk in enumerate(chunks)]
    orders = [[Order(len(chunk), (CodecNumber.PLANES,))] for chunk in chunks]
    views = [memoryview(chunk) for chunk in chunks]
    record = encode_chunks(views, checksums, orders, memoryview(bytearray(sum(map(len, chunks)))))
    raw_header = pack_header(block, [len(chunk) for chunk in chunks], checksums, b"segment!", record.stored)
    header = parse_header(raw_header)
    assert record.parts[1] is views[1]
    assert [entry.codec for entry in header.chunks] == [CODEC_SECTIONS, CODEC_NONE, CODEC_SECTIONS]
    assert (header.block, header.salt) == (block, b"segment!")
    whole = raw_header + b"".join(record.parts)
    assert len(whole) == header.record_bytes < 4096 + sum(map(len, chunks))
    for number, entry in enumerate(header.chunks):
        stored = memoryview(whole)[entry.offset : entry.offset + entry.room_bytes]
        frame = memoryview(bytearray(entry.raw_bytes))
        decode_into(frame, block.key, number, entry, stored)
        assert frame == chunks[number]
        with pytest.raises(TierFault, match="checksum"):
            decode_into(frame, b"x" * 16, number, entry, stored)
        check_stored(block.key, number, entry, stored)
        pieces = StoredCheck(block.key, number, entry)
        for at in range(0, len(stored), 4096):
            pieces.update(stored[at : at + 4096])
        assert pieces.holds
        for wrong in (replace(entry, checksum=bytes(16)), entry):
            with pytest.raises(TierFault):
                check_stored(block.key, number, wrong, memoryview(bytes([stored[0] ^ (wrong is entry)]) + stored[1:]))
