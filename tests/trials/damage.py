"""Every way to damage a stored record: which bytes of it, and what becomes of them. Pure functions of bytes.

Records are laid out as `flexkv_tiers.codec` says: a 4 KiB header, then chunks, each padded to 4 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flexkv_tiers.codec import CHECKSUM_BYTES, HEADER_BYTES, SALT_BYTES
from tests.service.conftest import GEOMETRY

Damage = Callable[[bytes, bytes], bytes]
"""`(record, another record) -> what lies in the record's place afterwards`."""

ENTRY_BYTES = 8 + 8 + 8 + 1 + CHECKSUM_BYTES
TABLE_OFFSET = 20 + SALT_BYTES + 16 + 16 + 32
RECORD_BYTES = HEADER_BYTES + GEOMETRY.block_bytes


@dataclass(frozen=True)
class Region:
    """A part of a record: `length` bytes from `offset` on."""

    name: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def header_regions() -> Iterator[Region]:
    """Every field of the header, in order and without gaps."""
    at = 0
    fields = [("magic", 8), ("version", 2), ("spare", 2), ("shard", 4), ("chunk count", 4)]
    fields += [("salt", SALT_BYTES), ("key", 16), ("parent", 16), ("namespace", 32)]
    for chunk in range(GEOMETRY.chunk_count):
        lengths = [("offset", 8), ("stored length", 8), ("raw length", 8), ("codec", 1), ("checksum", CHECKSUM_BYTES)]
        fields += [(f"{name} of chunk {chunk}", length) for name, length in lengths]
    fields.append(("unused", HEADER_BYTES - CHECKSUM_BYTES - sum(length for _, length in fields)))
    fields.append(("header checksum", CHECKSUM_BYTES))
    for name, length in fields:
        yield Region(name, at, length)
        at += length
    assert at == HEADER_BYTES


def chunk_regions() -> Iterator[Region]:
    """Rows and padding of every chunk."""
    at = HEADER_BYTES
    for chunk, (length, payload) in enumerate(zip(GEOMETRY.chunk_bytes, GEOMETRY.chunk_payload_bytes, strict=True)):
        yield Region(f"rows of chunk {chunk}", at, payload)
        if length > payload:
            yield Region(f"padding of chunk {chunk}", at + payload, length - payload)
        at += length
    assert at == RECORD_BYTES


REGIONS = [*header_regions(), *chunk_regions()]


def flip(region: Region) -> Damage:
    """One bit in the middle of the region."""

    def damage(record: bytes, _other: bytes) -> bytes:
        changed = bytearray(record)
        changed[region.offset + region.length // 2] ^= 1
        return bytes(changed)

    return damage


def zero(region: Region) -> Damage:
    def damage(record: bytes, _other: bytes) -> bytes:
        return record[: region.offset] + bytes(region.length) + record[region.end :]

    return damage


def swap(region: Region) -> Damage:
    """The region of another record in its place."""

    def damage(record: bytes, other: bytes) -> bytes:
        return record[: region.offset] + other[region.offset : region.end] + record[region.end :]

    return damage


def swap_chunks(record: bytes, _other: bytes) -> bytes:
    """The record's own first two chunks in each other's place."""
    first, second = GEOMETRY.chunk_bytes[:2]
    assert first == second
    middle = HEADER_BYTES + first
    chunks = record[middle : middle + second] + record[HEADER_BYTES:middle]
    return record[:HEADER_BYTES] + chunks + record[middle + second :]


def shift(record: bytes, _other: bytes) -> bytes:
    """Everything one byte later."""
    return b"\0" + record[:-1]


def of_region(kind: Callable[[Region], Damage], region: Region) -> tuple[str, Damage]:
    return f"{kind.__name__} {region.name}", kind(region)


WHOLE = Region("whole record", 0, RECORD_BYTES)
ALL_CHUNKS = Region("all chunks", HEADER_BYTES, GEOMETRY.block_bytes)
HEADER = Region("header", 0, HEADER_BYTES)

IN_PLACE: dict[str, Damage] = dict(
    [of_region(flip, region) for region in REGIONS]
    + [of_region(zero, region) for region in (WHOLE, HEADER, ALL_CHUNKS, *chunk_regions())]
    + [of_region(swap, region) for region in (WHOLE, HEADER, ALL_CHUNKS, *REGIONS)]
    + [("swap two chunks", swap_chunks), ("shift by a byte", shift)]
)
"""Damage that leaves the record's length."""


CUTS: dict[str, int] = {
    "to nothing": 0,
    "to half a header": HEADER_BYTES // 2,
    "to the header": HEADER_BYTES,
    "in mid-chunk": HEADER_BYTES + GEOMETRY.chunk_bytes[0] // 2,
    "to one chunk": HEADER_BYTES + GEOMETRY.chunk_bytes[0],
    "by a byte": RECORD_BYTES - 1,
}
"""Lengths a record is cut to."""
