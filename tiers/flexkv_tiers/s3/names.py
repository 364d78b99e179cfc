"""Object names: where a block lies in a bucket, and which block a listed object is.

The name carries namespace, shard, key and parent, so a listing alone brings the index back with its
parents. Pure; called by the store for moves and by the byte worker for listings.
"""

from __future__ import annotations

import re

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import KEY_BYTES, NAMESPACE_BYTES, BlockKey, NamespaceDigest

SHARD_MAX = (1 << 32) - 1
_KEY = f"([0-9a-f]{{{2 * KEY_BYTES}}})"
_NAME = re.compile(f"([0-9a-f]{{{2 * NAMESPACE_BYTES}}})/(0|[1-9][0-9]{{0,9}})/{_KEY}-{_KEY}")


def listing_prefix(prefix: str) -> str:
    """What every name of ours starts with; `prefix` is the configured one, with or without slashes."""
    trimmed = prefix.strip("/")
    return f"{trimmed}/" if trimmed else ""


def object_name(prefix: str, block: BlockName) -> str:
    """`<prefix>/<namespace hex>/<shard>/<key hex>-<parent hex>`."""
    path = f"{block.namespace.hex()}/{block.shard}/{block.key.hex()}-{block.parent.hex()}"
    return listing_prefix(prefix) + path


def parse_object_name(prefix: str, name: str) -> BlockName | None:
    """The block an object of this name would hold; None for whatever is not spelled exactly as we do.

    A name promises nothing about the object's bytes: those are checked when they are read.
    """
    start = listing_prefix(prefix)
    match = _NAME.fullmatch(name, len(start)) if name.startswith(start) else None
    if match is None or int(match[2]) > SHARD_MAX:
        return None
    namespace, key, parent = (bytes.fromhex(match[group]) for group in (1, 3, 4))
    return BlockName(NamespaceDigest(namespace), int(match[2]), BlockKey(key), BlockKey(parent))
