"""Index footers of the simulated disk: what a segment says of its records, so that restart need not read them.

A footer is written when its segment is sealed, here at a crash. It is believed only if its checksum holds;
else every header of the segment is read.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_digest

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import BlockKey, NamespaceDigest

SEGMENT_RECORDS = 4
_ENTRY = struct.Struct("<Q32sI16s16sQ")
_CHECKSUM_BYTES = 8

Entry = tuple[int, BlockName, int]
"""Location, whose record it is, and its size in bytes."""


def pack_footer(entries: list[Entry]) -> bytes:
    """The records of one segment and a checksum over all of it."""
    packed = b"".join(
        _ENTRY.pack(location, block.namespace, block.shard, block.key, block.parent, record_bytes)
        for location, block, record_bytes in entries
    )
    return packed + xxh3_64_digest(packed)


def footer_holds(footer: bytes) -> bool:
    """Whether the footer is as it was written."""
    return xxh3_64_digest(footer[:-_CHECKSUM_BYTES]) == footer[-_CHECKSUM_BYTES:]


def parse_footer(footer: bytes) -> list[Entry]:
    """What a footer says, true or not."""
    return [
        (location, BlockName(NamespaceDigest(namespace), shard, BlockKey(key), BlockKey(parent)), record_bytes)
        for location, namespace, shard, key, parent, record_bytes in _ENTRY.iter_unpack(footer[:-_CHECKSUM_BYTES])
    ]
