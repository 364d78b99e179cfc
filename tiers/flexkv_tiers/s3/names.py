"""Object names: where a block or a pack lies in a bucket, and what a listed object is.

A block's name carries namespace, shard, key and parent, so a listing alone brings the index back with
its parents. A pack's name carries when it was written and how many records it holds, so its index is
one ranged read, and newer ones sort last. Which of them were dropped since stands in the name of an
empty object beside it, because an object of S3 cannot be changed. Pure; called by both sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey, NamespaceDigest

SHARD_MAX = (1 << 32) - 1
PACK_RECORDS_MAX = 512
"""Records of one pack: their marks must fit a name whose last part some servers limit to 255 bytes."""
_DIRECTORY_BYTES_MAX = 2 * NAMESPACE_BYTES + 1 + len(str(SHARD_MAX)) + 1
_PACK_BYTES_MAX = len("pack-") + 12 + 1 + 16 + 1 + len(str(PACK_RECORDS_MAX)) + len(".dropped-") + PACK_RECORDS_MAX // 4
TAIL_BYTES_MAX = _DIRECTORY_BYTES_MAX + max(4 * KEY_BYTES + 1, _PACK_BYTES_MAX)
"""What our longest name has behind the prefix."""

_KEY = f"([0-9a-f]{{{2 * KEY_BYTES}}})"
_DIRECTORY = f"([0-9a-f]{{{2 * NAMESPACE_BYTES}}})/(0|[1-9][0-9]{{0,9}})/"
_BLOCK = re.compile(f"{_DIRECTORY}{_KEY}-{_KEY}")
_PACK = re.compile(f"{_DIRECTORY}pack-([0-9a-f]{{12}})-([0-9a-f]{{16}})-([1-9][0-9]{{0,2}})(?:\\.dropped-([0-9a-f]+))?")


@dataclass(frozen=True, slots=True)
class PackName:
    """Who a pack belongs to and what its name says. `time_ms` is the writer's clock, since 1970."""

    namespace: NamespaceDigest
    shard: int
    time_ms: int
    random: int
    count: int


@dataclass(frozen=True, slots=True)
class DropMarks:
    """Says which records of a pack are dropped: bit i is the i-th of its index."""

    pack: PackName
    mask: int


def listing_prefix(prefix: str) -> str:
    """What every name of ours starts with; `prefix` is the configured one, with or without slashes."""
    trimmed = prefix.strip("/")
    return f"{trimmed}/" if trimmed else ""


def object_name(prefix: str, block: BlockName) -> str:
    """`<prefix>/<namespace hex>/<shard>/<key hex>-<parent hex>`."""
    path = f"{block.namespace.hex()}/{block.shard}/{block.key.hex()}-{block.parent.hex()}"
    return listing_prefix(prefix) + path


def pack_name(prefix: str, pack: PackName) -> str:
    """`<prefix>/<namespace hex>/<shard>/pack-<time hex>-<random hex>-<count>`."""
    path = f"{pack.namespace.hex()}/{pack.shard}/pack-{pack.time_ms:012x}-{pack.random:016x}-{pack.count}"
    return listing_prefix(prefix) + path


def marks_name(prefix: str, marks: DropMarks) -> str:
    """`<name of the pack>.dropped-<mask hex>`."""
    assert 0 < marks.mask < 1 << marks.pack.count
    return f"{pack_name(prefix, marks.pack)}.dropped-{marks.mask:x}"


def parse_object_name(prefix: str, name: str) -> BlockName | None:
    """The block an object of this name would hold; None for whatever is not spelled exactly as we do.

    A name promises nothing about the object's bytes: those are checked when they are read.
    """
    match = _match(_BLOCK, prefix, name)
    if match is None:
        return None
    namespace, key, parent = (bytes.fromhex(match[group]) for group in (1, 3, 4))
    return BlockName(NamespaceDigest(namespace), int(match[2]), BlockKey(key), BlockKey(parent))


def parse_pack_name(prefix: str, name: str) -> PackName | DropMarks | None:
    """The pack, or the marks of a pack, that an object of this name would be; None for anything else."""
    match = _match(_PACK, prefix, name)
    if match is None:
        return None
    namespace, time_ms, random, count = bytes.fromhex(match[1]), int(match[3], 16), int(match[4], 16), int(match[5])
    if count > PACK_RECORDS_MAX:
        return None
    pack = PackName(NamespaceDigest(namespace), int(match[2]), time_ms, random, count)
    if match[6] is None:
        return pack
    mask = int(match[6], 16)
    return DropMarks(pack, mask) if 0 < mask < 1 << count and match[6][0] != "0" else None


def _match(pattern: re.Pattern[str], prefix: str, name: str) -> re.Match[str] | None:
    start = listing_prefix(prefix)
    match = pattern.fullmatch(name, len(start)) if name.startswith(start) else None
    return match if match is not None and int(match[2]) <= SHARD_MAX else None
