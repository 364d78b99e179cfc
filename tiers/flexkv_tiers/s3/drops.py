"""Drops of records that lie in packs: written down in the bucket, because an object cannot be changed.

An empty object beside the pack names its dropped records, so a listing alone says what is served no
more, to this daemon's next life and to every other daemon. Drops of one pack that come together are one
such object; a pack with nothing left is deleted with its marks. Owned by the store.
"""

from __future__ import annotations

import asyncio

from flexkv_tiers.background import Background
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.messages import Put
from flexkv_tiers.s3.names import DropMarks, marks_name, pack_name
from flexkv_tiers.s3.packs import Pack, PackTable

LINGER_S = 0.002
"""Evictions come in groups; the first of them waits this long for the others."""


class PackDrops:
    """Brings what a pack's `dropped` says into the bucket."""

    def __init__(self, bucket: Bucket, prefix: str, packs: PackTable) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._packs = packs
        self._running: dict[int, asyncio.Task[None]] = {}  # by the pack's number
        self._background = Background("the S3 tier")

    async def settle(self, pack: Pack) -> None:
        """Wait until every drop of this pack so far is durable. Raises TierFault; may be asked again."""
        goal = pack.dropped
        while goal & ~pack.marked:
            running = self._running.get(pack.number)
            if running is None:
                running = self._running[pack.number] = self._background.spawn(self._run(pack))
            await asyncio.shield(running)

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    async def _run(self, pack: Pack) -> None:
        try:
            await asyncio.sleep(LINGER_S)
            if pack.live:
                await self._mark(pack)
            else:
                await self._delete(pack)
        finally:
            del self._running[pack.number]

    async def _mark(self, pack: Pack) -> None:
        marks = DropMarks(pack.name, pack.dropped)
        request = Put(marks_name(self._prefix, marks), b"", [])
        await self._bucket.ask(lambda: request)
        older, pack.marks, pack.marked = pack.marks, {marks.mask: None}, pack.marked | marks.mask
        for mask in older:
            if mask != marks.mask:
                try:
                    await self._bucket.delete(marks_name(self._prefix, DropMarks(pack.name, mask)))
                except TierFault:
                    pack.marks[mask] = None  # true all the same; the next mark, or the pack's end, takes it along

    async def _delete(self, pack: Pack) -> None:
        """The pack first: marks without it are harmless, a pack without its marks would serve again."""
        await self._bucket.delete(pack_name(self._prefix, pack.name))
        self._packs.remove(pack)
        pack.marked = pack.dropped
        marks = [marks_name(self._prefix, DropMarks(pack.name, mask)) for mask in pack.marks]
        await asyncio.gather(*(self._bucket.delete(name) for name in marks))
