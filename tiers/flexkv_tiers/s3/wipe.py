"""Wiping a namespace: whatever is in the bucket of it, known or not, whoever wrote it, owner or not.

A reset is an explicit order that what was saved so far is never served again. The planner drops the
blocks it knows; others may have written more, and a daemon that does not own the prefix forgets instead
of deleting. Owned by the store.
"""

from __future__ import annotations

import asyncio

from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.catalogue import Catalogue
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.messages import ListPage, Page
from flexkv_tiers.s3.names import DropMarks, listing_prefix, parse_object_name, parse_pack_name

_EVER_S = 1e12
"""Seconds since 1970 that no object is younger than."""


async def wipe(config: S3Config, bucket: Bucket, catalogue: Catalogue, namespace: NamespaceDigest) -> None:
    """Delete the namespace's objects, except for what was written since `catalogue.reset`. Waits outages out."""
    start, after = f"{listing_prefix(config.prefix)}{namespace.hex()}/", ""
    while True:
        page = await bucket.ask_again(ListPage(start, after, _EVER_S))
        assert isinstance(page, Page)
        names = [name for name in page.expired if not _is_younger(config, catalogue, name)]
        await asyncio.gather(*(bucket.delete_again(name) for name in names))
        if not page.after_next:
            break
        after = page.after_next
    catalogue.wiped(namespace)


def _is_younger(config: S3Config, catalogue: Catalogue, name: str) -> bool:
    """Whether this daemon has written it since the reset."""
    block = parse_object_name(config.prefix, name)
    if block is not None:
        return catalogue.has_single(block)
    pack = parse_pack_name(config.prefix, name)
    assert pack is not None
    pack = pack.pack if isinstance(pack, DropMarks) else pack
    return pack in catalogue.uploading or catalogue.packs.named(pack) is not None
