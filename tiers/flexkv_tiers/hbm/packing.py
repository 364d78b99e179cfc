"""What a row path and a daemon tell each other, as the bytes that travel: u32, little endian (docs/protocol.md).

Owns the conversion only. A client moves these bytes and does not look into them; `requests` does not know them.
Called by whoever joins a `RowPath` and a client.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.replay import Part
from flexkv_tiers.hbm.reports import HeatEntry
from flexkv_tiers.hbm.requests import HotCount

_GRANTED, _REVOKED = struct.Struct("<3I"), struct.Struct("<2I")
_HEAT, _ABSENT, _COUNT = struct.Struct("<4I"), struct.Struct("<3I"), struct.Struct("<4I")
_COUNT_MAX = (1 << 32) - 1


def unpack_pages(request: int, version: int, granted: bytes, revoked: bytes) -> PagesChange:
    """A message `Pages`: (block, chunk, frame) triples and (block, chunk) pairs. Raises FlexKVError(BAD_MESSAGE)."""
    if len(granted) % _GRANTED.size or len(revoked) % _REVOKED.size:
        raise FlexKVError(
            ErrorCode.BAD_MESSAGE,
            f"pages of request {request} with {len(granted)} and {len(revoked)} bytes are torn: entries have "
            f"{_GRANTED.size} and {_REVOKED.size}; install the same release on both ends",
        )
    return PagesChange(
        request,
        version,
        tuple((block, chunk, frame) for block, chunk, frame in _GRANTED.iter_unpack(granted)),
        tuple((block, chunk) for block, chunk in _REVOKED.iter_unpack(revoked)),
    )


def pack_absents(asks: Iterable[tuple[int, Part]]) -> bytes:
    """A report's `absents`: (request, block, chunk)."""
    return b"".join(_ABSENT.pack(request, *part) for request, part in asks)


def pack_replayed(requests: Iterable[int]) -> bytes:
    """A report's `replayed`: requests."""
    return b"".join(request.to_bytes(4, "little") for request in requests)


def pack_heat(entries: Iterable[tuple[int, HeatEntry]]) -> bytes:
    """A report's `entries`: (request, layer group, block, count), as they come: largest counts first."""
    return b"".join(_HEAT.pack(request, entry.group, entry.block, entry.count) for request, entry in entries)


def pack_counts(counts: Iterable[HotCount]) -> bytes:
    """A report's `misses`: (request, layer group, hits, misses) of the hot buffers, without what counted nothing."""
    return b"".join(
        _COUNT.pack(count.request, count.group, min(count.hits, _COUNT_MAX), min(count.misses, _COUNT_MAX))
        for count in counts
        if count.hits or count.misses
    )
