"""What a chunk consists of, what is to be tried on it, and what that gave: plain data between processes.

A *section* is the run of one plane's bytes within a chunk, the unit that codecs are chosen for. The
service makes a `SectionPlan` of every namespace's geometry and introduces it to the stores. Decoding
needs none of this: stored chunks describe themselves.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import groupby

import msgspec

from flexkv_py.geometry import Geometry

ELEMENT_BYTES = {
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16", "half", "int16", "uint16"), 2),
    **dict.fromkeys(("fp8", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1),
    **dict.fromkeys(("float32", "fp32", "float"), 4),
}
"""Length in bytes of one element, by the name a geometry gives its type."""


class CodecNumber(IntEnum):
    """How a section says by what it was stored. Part of the format: numbers are never reused."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    PLANES = 3


class Section(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes of one plane: its length, that of its elements (0: unknown), the plane's name."""

    raw_bytes: int
    element_bytes: int
    plane: str


SectionPlan = tuple[tuple[Section, ...], ...]
"""The sections of each chunk, in order; together they are the chunk, padding included."""


class Order(msgspec.Struct, frozen=True, array_like=True):
    """What to do with one section: store it by the only codec named, or try all that are and keep the shortest."""

    raw_bytes: int
    codecs: tuple[CodecNumber, ...]

    @property
    def is_trial(self) -> bool:
        return len(self.codecs) > 1


class Measure(msgspec.Struct, frozen=True, array_like=True):
    """What one codec did to one section (by number, within its chunk): lengths, and nanoseconds of CPU time.

    `stored_bytes` is `raw_bytes` where it came out no shorter; `decode_ns` is 0 except in trials.
    """

    section: int
    codec: CodecNumber
    raw_bytes: int
    stored_bytes: int
    encode_ns: int
    decode_ns: int


def section_plan(geometry: Geometry) -> SectionPlan:
    """Sections of every chunk of a geometry, whose chunks are laid out `[plane][layer][row]`."""
    element_bytes = ELEMENT_BYTES.get(geometry.dtype, 0)
    chunks = []
    for pieces, payload_bytes, chunk_bytes in zip(
        geometry.chunk_pieces, geometry.chunk_payload_bytes, geometry.chunk_bytes, strict=True
    ):
        runs = [
            (plane, sum(piece.length for piece in run)) for plane, run in groupby(pieces, lambda piece: piece.plane)
        ]
        last_plane, last_bytes = runs[-1]
        runs[-1] = last_plane, last_bytes + chunk_bytes - payload_bytes
        chunks.append(tuple(Section(length, element_bytes, geometry.planes[plane].name) for plane, length in runs))
    return tuple(chunks)


def unknown_plan(lengths: tuple[int, ...]) -> SectionPlan:
    """The plan of chunks that nobody introduced: each is one section of bytes."""
    return tuple((Section(length, 0, ""),) for length in lengths)


class Encode(msgspec.Struct, frozen=True, tag=True):
    """To a byte worker: compress these chunks (frame, length) as ordered, back to back from frame `scratch` on."""

    chunks: list[tuple[int, int]]
    orders: list[list[Order]]
    scratch: int


class Decode(msgspec.Struct, frozen=True, tag=True):
    """To a byte worker: bring a chunk's stored bytes from frame `scratch` into `frame` and check them."""

    key: bytes
    chunk: int
    scratch: int
    stored_bytes: int
    codec: int
    frame: int
    raw_bytes: int
    checksum: bytes


class Encoded(msgspec.Struct, frozen=True, tag=True):
    """From a byte worker: codec and stored length of each chunk, and what was measured, by chunk."""

    stored: list[tuple[int, int]]
    measures: list[list[Measure]]


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """From a byte worker: what was to be decoded is not that chunk."""

    detail: str


Work = Encode | Decode
