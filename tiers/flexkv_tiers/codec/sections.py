"""The stored form of one compressed chunk: its sections one after the other, each by its own codec.

Stored, little endian: `u64 seal ‖ u8 section count ‖ 7 zero bytes`, per section `u8 codec ‖ 3 zero
bytes ‖ u32 raw length ‖ u32 stored length`, the sections' stored bytes back to back, zeros up to 4 KiB.
The seal is xxh3-64 over the raw chunk's checksum (16 bytes, from the header) and all that follows the
seal: damage and other chunks' bytes are met before a decoder is, and without one. Nothing is believed
all the same: lengths must add up before a byte is written, and the checksum has the last word.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from xxhash import xxh3_64

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES, PLANES_MAX, align_up
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec.codecs import CODECS, ThreadRoom
from flexkv_tiers.codec.envelope import CODEC_NONE, CODEC_SECTIONS, ChunkEntry, Stored
from flexkv_tiers.codec.plan import CodecNumber, Measure, Order

SECTIONS_MAX = PLANES_MAX
_SEAL = struct.Struct("<Q")
_HEAD = struct.Struct("<QB7x")
_ENTRY = struct.Struct("<B3xII")


_trial = ThreadRoom()  # what a trial decodes into


def encode_chunk(
    raw: memoryview, checksum: bytes, orders: Sequence[Order], room: memoryview
) -> tuple[Stored, list[Measure]]:
    """Store a chunk, whose checksum is this, as ordered into `room` (as long as the chunk), padded there to 4 KiB.

    Where no whole page is saved the answer is Stored(CODEC_NONE, …): the chunk itself is what to write.
    """
    assert sum(order.raw_bytes for order in orders) == len(raw) <= len(room)
    assert len(orders) <= SECTIONS_MAX
    measures: list[Measure] = []
    plain = Stored(CODEC_NONE, len(raw))
    room = room[: len(raw) - ALIGN_BYTES]  # what does not leave a page free does not pay
    at = _HEAD.size + len(orders) * _ENTRY.size
    if len(room) < at or all(order.codecs == (CodecNumber.NONE,) for order in orders):
        return plain, measures
    start = 0
    for number, order in enumerate(orders):
        section = raw[start : start + order.raw_bytes]
        codec, stored_bytes = _encode_section(number, order, section, room[at:], measures)
        if stored_bytes is None:
            return plain, measures
        _ENTRY.pack_into(room, _HEAD.size + number * _ENTRY.size, codec, order.raw_bytes, stored_bytes)
        at += stored_bytes
        start += order.raw_bytes
    padded = align_up(at)
    room[at:padded] = bytes(padded - at)
    _HEAD.pack_into(room, 0, 0, len(orders))
    _SEAL.pack_into(room, 0, _seal(checksum, room[:padded]))
    return Stored(CODEC_SECTIONS, at), measures


class SealCheck:
    """Whether stored bytes, given in pieces, are those that the chunk of this checksum was stored as."""

    def __init__(self, checksum: bytes) -> None:
        self._seal: int | None = None
        self._digest = xxh3_64(checksum)

    def update(self, piece: memoryview) -> None:
        """The next piece; the first has at least the seal."""
        if self._seal is None:
            (self._seal,) = _SEAL.unpack_from(piece)
            piece = piece[_SEAL.size :]
        self._digest.update(piece)

    @property
    def holds(self) -> bool:
        return self._digest.intdigest() == self._seal


def decode_chunk(entry: ChunkEntry, stored: memoryview, raw: memoryview) -> None:
    """Fill `raw` (a whole chunk) from what lies in its record: `entry.room_bytes`. Raises TierFault(CORRUPT)."""
    assert len(stored) == entry.room_bytes
    assert len(raw) == entry.raw_bytes
    if entry.codec == CODEC_NONE:
        raw[:] = stored
        return
    assert entry.codec == CODEC_SECTIONS, "the reader of headers lets no other pass"
    start = 0
    for number, raw_bytes, at, stored_bytes in _parse_table(entry, stored):
        CODECS[number].decode(stored[at : at + stored_bytes], raw[start : start + raw_bytes])
        start += raw_bytes


def _parse_table(entry: ChunkEntry, stored: memoryview) -> list[tuple[int, int, int, int]]:
    """Codec, raw length, offset and stored length of each section, provided they add up to the chunk."""
    check = SealCheck(entry.checksum)
    check.update(stored)
    if not check.holds:
        raise _corrupt("a compressed chunk does not match its seal")
    _, count = _HEAD.unpack_from(stored)
    at = _HEAD.size + count * _ENTRY.size
    if not 1 <= count <= SECTIONS_MAX:
        raise _corrupt(f"a compressed chunk has 1 to {SECTIONS_MAX} sections, this one says {count}")
    sections = []
    for number, raw_bytes, stored_bytes in _ENTRY.iter_unpack(stored[_HEAD.size : at]):
        if number not in CODECS or not 0 < stored_bytes <= raw_bytes:
            raise _corrupt(f"a section of {raw_bytes} bytes cannot be stored in {stored_bytes} by codec {number}")
        sections.append((number, raw_bytes, at, stored_bytes))
        at += stored_bytes
    if at != entry.stored_bytes or sum(section[1] for section in sections) != entry.raw_bytes:
        raise _corrupt("the sections of a compressed chunk do not add up to it")
    return sections


def _encode_section(
    number: int, order: Order, raw: memoryview, room: memoryview, measures: list[Measure]
) -> tuple[CodecNumber, int | None]:
    """Store one section; of several codecs by the one whose result is shortest, or as it is."""
    results = {codec: _measured(number, codec, order.is_trial, raw, room, measures) for codec in order.codecs}
    fitting = {codec: length for codec, length in results.items() if length is not None and length < len(raw)}
    best = min(fitting, key=fitting.__getitem__, default=CodecNumber.NONE)
    if best is not order.codecs[-1]:  # the last one's result is what lies in the room
        return best, CODECS[best].encode(raw, room)
    return best, results[best]


def _measured(
    number: int, codec: CodecNumber, is_trial: bool, raw: memoryview, room: memoryview, measures: list[Measure]
) -> int | None:
    started = time.thread_time_ns()
    length = CODECS[codec].encode(raw, room)
    encoded = time.thread_time_ns()
    decode_ns = 0
    if is_trial and length is not None:
        CODECS[codec].decode(room[:length], _trial.view(len(raw)))
        decode_ns = time.thread_time_ns() - encoded
    stored_bytes = len(raw) if length is None else min(length, len(raw))
    measures.append(Measure(number, codec, len(raw), stored_bytes, encoded - started, decode_ns))
    return length


def _seal(checksum: bytes, stored: memoryview) -> int:
    digest = xxh3_64(checksum)
    digest.update(stored[_SEAL.size :])
    return digest.intdigest()


def _corrupt(detail: str) -> TierFault:
    return TierFault(Fault.CORRUPT, detail)
