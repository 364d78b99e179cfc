"""The codecs a section of a chunk can be stored by: lz4, zstd, and bytes split into two planes.

Each turns any run of bytes into a shorter one and back, exactly. Decoding writes into the memory it is
given and nowhere else: whatever it is fed, it either fills that memory or raises TierFault(CORRUPT).
Which codec is used for what is `choice`'s business, the form of a stored chunk that of `sections`.
Runs in child processes; every function may run on several threads at a time.
"""

from __future__ import annotations

import threading
from typing import Protocol

import lz4.block
import numpy as np
import numpy.typing as npt
import zstandard

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec.plan import CodecNumber

WINDOW_LOG = 17
"""zstd looks back 128 KiB at most, and a frame that asks its decoder for more is refused."""

STRIP_ELEMENTS = 1 << 18
"""Elements split or merged at a time, so that what is between two passes stays in the cache of a core."""


class SectionCodec(Protocol):
    """One way to store a run of bytes."""

    def encode(self, raw: memoryview, room: memoryview) -> int | None:
        """Write the stored form of `raw` into `room`; its length, or None where it does not fit or apply."""
        ...

    def decode(self, stored: memoryview, raw: memoryview) -> None:
        """Fill `raw` from a stored form. Raises TierFault(CORRUPT) when that does not give exactly `raw`."""
        ...


class ThreadRoom(threading.local):
    """Memory that each thread keeps between calls, as long as the longest it has asked for."""

    def __init__(self) -> None:
        self._room = bytearray()

    def view(self, length: int) -> memoryview:
        if len(self._room) < length:
            self._room = bytearray(length)
        return memoryview(self._room)[:length]


class _Tools(threading.local):
    """What one thread keeps between calls: zstd's contexts are not to be shared, memory is not to be asked for anew."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                1, hash_log=6, window_log=WINDOW_LOG, min_match=7
            )
        )
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        self.first = np.empty(STRIP_ELEMENTS, np.uint16)
        self.second = np.empty(STRIP_ELEMENTS, np.uint16)


_tools = _Tools()
_plane = ThreadRoom()  # the exponents of a section: at most half a chunk


class NoneCodec:
    """Bytes as they are: a section that does not pay beside one that does."""

    def encode(self, raw: memoryview, room: memoryview) -> int | None:
        return _put(raw, room)

    def decode(self, stored: memoryview, raw: memoryview) -> None:
        if len(stored) != len(raw):
            raise _corrupt(f"{len(stored)} bytes stored as they are cannot be {len(raw)}")
        raw[:] = stored


class Lz4Codec:
    """lz4's block form: for repetition and runs of zeros; it gains nothing on floating-point numbers."""

    def encode(self, raw: memoryview, room: memoryview) -> int | None:
        return _put(lz4.block.compress(raw, store_size=False), room)

    def decode(self, stored: memoryview, raw: memoryview) -> None:
        try:
            data = lz4.block.decompress(stored, uncompressed_size=len(raw))  # never more, whatever is stored
        except (lz4.block.LZ4BlockError, ValueError) as error:
            raise _corrupt(f"lz4: {error}") from None
        if len(data) != len(raw):
            raise _corrupt(f"lz4 gave {len(data)} bytes of {len(raw)}")
        raw[:] = data


class ZstdCodec:
    """zstd at level 1 with hardly any search for matches: its entropy coder is what saves here."""

    def encode(self, raw: memoryview, room: memoryview) -> int | None:
        return _put(_tools.compressor.compress(raw), room)

    def decode(self, stored: memoryview, raw: memoryview) -> None:
        _decompress(stored, raw)


class PlanesCodec:
    """Two-byte floating-point numbers as two planes: exponents by zstd, signs and mantissas as they are.

    Of a bf16 (sign, 8 bits of exponent, 7 of mantissa) only the exponent is far from random. Stored: one
    byte per number of sign and mantissa, then the compressed bytes of bits 7 to 14. Any two-byte
    elements come back exactly, whatever they mean.
    """

    def encode(self, raw: memoryview, room: memoryview) -> int | None:
        count, odd = divmod(len(raw), 2)
        if odd or len(room) < count:
            return None
        exponents = _plane.view(count)
        others = np.frombuffer(room, np.uint8, count)
        _split(np.frombuffer(raw, np.uint16), np.frombuffer(exponents, np.uint8), others)
        stored = _put(_tools.compressor.compress(exponents), room[count:])
        return None if stored is None else count + stored

    def decode(self, stored: memoryview, raw: memoryview) -> None:
        count, odd = divmod(len(raw), 2)
        if odd or len(stored) <= count:
            raise _corrupt(f"{len(stored)} bytes are too few for {len(raw)} bytes in two planes")
        exponents = _plane.view(count)
        _decompress(stored[count:], exponents)
        others = np.frombuffer(stored, np.int8, count)
        _merge(np.frombuffer(exponents, np.uint8), others, np.frombuffer(raw, np.uint16))


CODECS: dict[int, SectionCodec] = {
    CodecNumber.NONE: NoneCodec(),
    CodecNumber.LZ4: Lz4Codec(),
    CodecNumber.ZSTD: ZstdCodec(),
    CodecNumber.PLANES: PlanesCodec(),
}


def _put(data: bytes | memoryview, room: memoryview) -> int | None:
    length = len(data)
    if length > len(room):
        return None
    room[:length] = data
    return length


def _decompress(stored: memoryview, raw: memoryview) -> None:
    """Straight into `raw`: reading into it stops where it ends, however much a frame would give."""
    try:
        with _tools.decompressor.stream_reader(stored) as reader:
            count = reader.readinto(raw)
    except (zstandard.ZstdError, MemoryError) as error:
        raise _corrupt(f"zstd: {error}") from None
    if count != len(raw):
        raise _corrupt(f"zstd gave {count} bytes of {len(raw)}")


def _split(numbers: npt.NDArray[np.uint16], exponents: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> None:
    """Bits 7 to 14 of every number into `exponents`, bits 15 and 0 to 6 into `others`."""
    for start in range(0, len(numbers), STRIP_ELEMENTS):
        part = numbers[start : start + STRIP_ELEMENTS]
        end = start + len(part)
        first, second = _tools.first[: len(part)], _tools.second[: len(part)]
        np.right_shift(part, 7, out=first)
        np.copyto(exponents[start:end], first, casting="unsafe")  # unsafe: the bits above are to be cut off
        np.bitwise_and(part, 0x807F, out=first)
        np.right_shift(first, 8, out=second)
        np.bitwise_or(first, second, out=first)
        np.copyto(others[start:end], first, casting="unsafe")


def _merge(exponents: npt.NDArray[np.uint8], others: npt.NDArray[np.int8], numbers: npt.NDArray[np.uint16]) -> None:
    """The reverse of `_split`. `others` is signed, so that widening it puts the sign where it belongs."""
    for start in range(0, len(numbers), STRIP_ELEMENTS):
        part = numbers[start : start + STRIP_ELEMENTS]
        end = start + len(part)
        first, second = _tools.first[: len(part)], _tools.second[: len(part)]
        np.copyto(first, exponents[start:end])
        np.left_shift(first, 7, out=first)
        np.copyto(second.view(np.int16), others[start:end])
        np.bitwise_and(second, 0x807F, out=second)
        np.bitwise_or(first, second, out=part)


def _corrupt(detail: str) -> TierFault:
    return TierFault(Fault.CORRUPT, detail)
