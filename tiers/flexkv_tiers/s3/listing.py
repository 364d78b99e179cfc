"""Sweeps of the prefix: what the bucket holds at start, what others write and delete later.

A sweep is one listing of every name, page by page; at start in one go, later a bounded number of pages
per round. Pages say what there is, and the catalogue says what of it is news. The owner of the prefix
also deletes what has outlived `ttl_s`, on the way. Owned by the store.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

from flexkv_py.core.messages import Fault, LostRecord
from flexkv_tiers.base import FoundBatch, StoreListener, TierFault
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.catalogue import SINGLE, Catalogue, batches_of, records_of
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.messages import GetIndex, Index, ListedPack, ListPage, Page
from flexkv_tiers.s3.names import (
    DropMarks,
    PackName,
    listing_prefix,
    marks_name,
    pack_name,
    parse_object_name,
    parse_pack_name,
)
from flexkv_tiers.s3.packs import Pack, check_index, index_bytes

PAGES_PER_ROUND_MAX = 64
"""Of a thousand names each. A larger prefix takes several rounds of `refresh_s`; no round lists without end."""

NEWS_S = 600.0
"""How far back a round looks for packs in directories it knows: longer than an upload takes and clocks differ."""

NEWS_PAGES_MAX = 64
"""Of all directories together; what is left then is met by the sweep."""

REFUSED_MAX = 4096
"""Failed uploads that are remembered; a server that still goes on with an older one is long dead."""

COUNTED = ("listed_blocks", "listed_packs", "listed_foreign", "listed_damaged", "sweeps", "expired")


class Listing:
    """Brings the catalogue up to date; news go out as batches, losses to the listener."""

    def __init__(self, config: S3Config, bucket: Bucket, catalogue: Catalogue, listener: StoreListener | None) -> None:
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self.refused: dict[PackName, None] = {}  # uploads of ours that failed; they may be there, even after a delete
        self.damaged_at_start = 0
        self._met: Counter[str] = Counter()  # in this sweep
        self._config = config
        self._bucket = bucket
        self._catalogue = catalogue
        self._listener = listener
        self._after = ""  # the name the next page follows; empty: a new sweep begins
        self._held: list[ListedPack] = []  # the last pack of a page: its marks may stand on the next
        self._unreadable: dict[PackName, None] = {}  # packs without a right index, met in this sweep and the last
        self._unreadable_now: dict[PackName, None] = {}
        self._reads = asyncio.Semaphore(config.processes * config.threads)

    async def sweep(self, pages_max: int | None = None) -> AsyncGenerator[FoundBatch, None]:
        """Go on with the sweep for so many pages, or to its end; yields what is new. Waits outages out."""
        pages = 0
        while pages_max is None or pages < pages_max:
            if not self._after:
                self._catalogue.begin_sweep()
            for batch in await self._page():
                yield batch
            pages += 1
            if not self._after:
                self._end_sweep()
                return

    def refuse(self, name: PackName) -> None:
        """An upload of ours failed; should a sweep meet it all the same, it is deleted."""
        self.refused[name] = None
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    async def news(self) -> AsyncGenerator[FoundBatch, None]:
        """The packs written lately in directories we know, wherever the sweep is; bounded."""
        since_ms = max(0, int((time.time() - NEWS_S) * 1000))
        pages_left = NEWS_PAGES_MAX
        for namespace, shard in self._catalogue.directories():
            start = f"{listing_prefix(self._config.prefix)}{namespace.hex()}/{shard}/pack-"
            after = f"{start}{since_ms:012x}"
            while after and pages_left:
                page = await self._ask(start, after)
                pages_left -= 1
                for batch in await self._packs(page):
                    yield batch
                after = page.after_next

    async def _page(self) -> list[FoundBatch]:
        """The sweep's next page."""
        page = await self._ask(listing_prefix(self._config.prefix), self._after)
        page.packs[:0], self._held = self._held, []
        self._after = page.after_next
        self._met["listed_foreign"] += page.foreign
        self._met["listed_damaged"] += page.damaged
        batches = [batch for group in page.groups if (batch := self._catalogue.meet(group)) is not None]
        self.counts["listed_blocks"] += sum(len(batch.blocks) for batch in batches)
        if page.after_next:
            self._held = _take_last_pack(self._config.prefix, page.packs)
        return batches + await self._packs(page)

    async def _ask(self, start: str, after: str) -> Page:
        """One page, without what is too old: that is deleted first."""
        config = self._config
        expires_s = time.time() - config.ttl_s if config.ttl_s and config.owner else 0.0
        self._catalogue.ask_for_page()
        page = await self._bucket.ask_again(ListPage(start, after, expires_s))
        assert isinstance(page, Page)
        if page.expired:
            await self._expire(page.expired)
        return page

    def _end_sweep(self) -> None:
        self.counts["sweeps"] += 1
        self._met["listed_damaged"] += len(self._unreadable_now)
        if self.counts["sweeps"] == 1:
            self.damaged_at_start = self._met["listed_damaged"]
        for name in ("listed_foreign", "listed_damaged"):  # what there is, not how often we saw it
            self.counts[name] = self._met[name]
        self._met.clear()
        self._unreadable, self._unreadable_now = self._unreadable_now, {}
        gone, packs = self._catalogue.end_sweep()
        for pack in packs:
            gone += records_of(pack)
            self._catalogue.packs.remove(pack)
        self.tell_lost(gone, "it is not in the bucket any more")

    def tell_lost(self, records: Sequence[LostRecord], reason: str) -> None:
        if records and self._listener is not None:
            self._listener.lost(records, reason)

    # ------------------------------------------------------------------ packs

    async def _packs(self, page: Page) -> list[FoundBatch]:
        """Packs of a page that are new, as batches; marks of known ones take their records away."""
        fresh: dict[PackName, int] = {}
        masks: dict[PackName, list[int]] = {}
        for entry in page.packs:
            name = parse_pack_name(self._config.prefix, entry.name)
            assert name is not None
            if isinstance(name, DropMarks):
                masks.setdefault(name.pack, []).append(name.mask)
            elif name in self.refused:  # the server went on with an upload that we had given up
                await self._delete([entry.name])
            elif self._catalogue.meet_pack(name) is None and name not in self._catalogue.uploading:
                fresh[name] = entry.object_bytes
        packs = await asyncio.gather(*(self._read(name, object_bytes) for name, object_bytes in fresh.items()))
        for name, found in masks.items():
            await self._marked(name, found, is_new=name in fresh)
        return [batch for pack in packs if pack is not None for batch in self._adopted(pack)]

    def _adopted(self, pack: Pack) -> list[FoundBatch]:
        self.counts["listed_packs"] += 1
        self.counts["listed_blocks"] += pack.live
        return batches_of(pack)

    async def _read(self, name: PackName, object_bytes: int) -> Pack | None:
        """A new pack of the table; None when its index is not right, or it went meanwhile."""
        if name in self._unreadable:
            self._unreadable_now[name] = None
            return None
        request = GetIndex(pack_name(self._config.prefix, name), index_bytes(name.count), object_bytes)
        try:
            async with self._reads:
                index = await self._bucket.ask_again(request)
            assert isinstance(index, Index)
            check_index(name, index.raw, object_bytes)
        except TierFault as fault:
            if self._bucket.closed:
                raise
            if fault.fault is Fault.CORRUPT:
                self._unreadable_now[name] = None
            return None
        return self._catalogue.packs.add(name, index.raw) if self._catalogue.believes(name.namespace) else None

    async def _marked(self, name: PackName, masks: list[int], *, is_new: bool) -> None:
        """Records that this daemon's last life, or another daemon, has dropped from a pack."""
        pack = self._catalogue.packs.named(name)
        if pack is None:
            if self._config.owner and name not in self._unreadable_now:
                await self._delete([marks_name(self._config.prefix, DropMarks(name, mask)) for mask in masks])
            return
        mask = 0
        for each in masks:
            pack.marks[each] = None
            mask |= each
        served = records_of(pack)
        pack.drop(mask)
        pack.marked |= mask
        if not is_new:
            serves = {record.location for record in records_of(pack)}
            self.tell_lost([record for record in served if record.location not in serves], "another daemon dropped it")

    # --------------------------------------------------------------- time out

    async def _expire(self, names: list[str]) -> None:
        """Delete what is older than `ttl_s`, then tell of it; what cannot be deleted now is met again."""
        if not await self._delete(names):
            return
        self.counts["expired"] += len(names)
        lost: list[LostRecord] = []
        for each in names:
            block = parse_object_name(self._config.prefix, each)
            if block is not None:
                self._catalogue.forget_single(block)
                lost.append(LostRecord(block, SINGLE))
                continue
            name = parse_pack_name(self._config.prefix, each)
            pack = self._catalogue.packs.named(name) if isinstance(name, PackName) else None
            if pack is not None:
                lost += records_of(pack)
                self._catalogue.packs.remove(pack)
        self.tell_lost(lost, "it is older than ttl_s")

    async def _delete(self, names: Sequence[str]) -> bool:
        try:
            await asyncio.gather(*(self._bucket.delete(name) for name in names))
        except TierFault:
            if self._bucket.closed:
                raise
            return False
        return True


def _take_last_pack(prefix: str, listed: list[ListedPack]) -> list[ListedPack]:
    """Take the last pack of a page away, with what marks of it follow: more of them may stand on the next."""
    for at in reversed(range(len(listed))):
        if isinstance(parse_pack_name(prefix, listed[at].name), PackName):
            last, listed[at:] = listed[at:], []
            return last
    return []
