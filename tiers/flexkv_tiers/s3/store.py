"""The S3 tier as the daemon sees it: writes, reads and drops of records, alone in an object or in a pack.

Owns which object a record lies in, and for how long it is kept there; `bucket` asks for it, `packing`
collects small records, `catalogue` knows what there is and `listing` finds out. Called by the daemon's
executor.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from flexkv_py.core.messages import BlockName, Fault, Tier
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.background import Background
from flexkv_tiers.base import FoundBatch, FrameSpan, StoreListener, TierFault
from flexkv_tiers.codec import HEADER_BYTES, NO_SALT, pack_header
from flexkv_tiers.codec.pool import ChunksToWrite, TierCodec, codec_status
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3.bucket import Bucket
from flexkv_tiers.s3.catalogue import SINGLE, Catalogue, records_of
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.drops import PackDrops
from flexkv_tiers.s3.listing import PAGES_PER_ROUND_MAX, Listing
from flexkv_tiers.s3.messages import Get, Part, Put, PutPack, Span, Stored
from flexkv_tiers.s3.multipart import put_in_parts, sweep_for_ever
from flexkv_tiers.s3.names import PackName, object_name, pack_name
from flexkv_tiers.s3.packing import RECORD_BYTES_MAX, Directory, Packer, Record
from flexkv_tiers.s3.packs import Pack, pack_index
from flexkv_tiers.s3.ranges import cut_ranges, read_ranges
from flexkv_tiers.s3.wipe import wipe

_COUNTED = ("bytes_written", "bytes_read", "packs_written", "blocks_packed", "packs_let_go")
SPOILT_MAX = 4096
"""Damaged objects that are remembered; of an older one the header alone says whether it is good."""
TOLD_COUNT_MAX = 64
"""Blocks of others in one message."""

_RESET_MEANWHILE = "the namespace was reset while the block was on its way"
PHYSICAL_SHARE_MAX = 1.25
PHYSICAL_SHARE_GOAL = 1.2
"""All objects together may take so much of `bytes`: dropped records lie in packs until the pack goes. Once there is
more, packs go until the goal is reached, so that it takes a while to the next time."""


class S3Store:
    """Whole records in one bucket; see `TierStore`.

    `start` raises when the bucket cannot be used, but leaves a store that works: a daemon that can live
    without S3 keeps it, its moves fail with DOWN, and a probe brings it back by itself.
    A write that failed may still have reached the bucket whole: a later listing finds it, with the
    right bytes under the right name.
    """

    tier = Tier.S3

    def __init__(
        self, config: S3Config, arena: Arena, listener: StoreListener | None = None, codec: TierCodec | None = None
    ) -> None:
        self._config = config
        self._arena = arena
        self._codec = codec
        self._bucket = Bucket(config, arena, listener, codec.pool.segment_fds if codec else arena.segment_fds)
        self._catalogue = Catalogue()
        self._listing = Listing(config, self._bucket, self._catalogue, listener)
        self._listener = listener
        self._packer = Packer(self._upload, config.pack_bytes, config.processes * config.threads)
        self._drops = PackDrops(self._bucket, config.prefix, self._catalogue.packs)
        self._doubtful: dict[PackName, None] = {}  # their uploads failed, and no delete has got through yet
        self._spoilt: dict[BlockName, None] = {}  # read as damaged: the next write replaces what is there
        self._background = Background("the S3 tier")
        self._counts = Counter(dict.fromkeys(_COUNTED, 0))

    async def start(self) -> None:
        try:
            await self._bucket.start()
        finally:
            if self._config.owner:
                self._spawn(sweep_for_ever(self._bucket))

    async def close(self) -> None:
        self._background.cancel()
        await self._bucket.close()  # nothing waits for it any longer, and `_spawn` starts nothing that would
        await self._packer.settled()
        await self._drops.settled()
        await self._background.settled()

    # ------------------------------------------------------------------ moves

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        if self._codec is None:
            return await self._write(block, chunks, ChunksToWrite.plain(chunks))
        async with self._codec.encoded(block.namespace, chunks) as encoded:
            return await self._write(block, chunks, encoded)

    async def _write(self, block: BlockName, chunks: Sequence[FrameSpan], encoded: ChunksToWrite) -> int:
        lengths, checksums = zip(*((chunk.length, self._arena.checksum(chunk.frame)) for chunk in chunks), strict=True)
        header = pack_header(block, lengths, checksums, NO_SALT, encoded.stored)
        spans = [Span(span.frame, span.length) for span in encoded.spans]
        record = Record(block, header, spans, HEADER_BYTES + encoded.total_bytes)
        if not self._config.pack_bytes or record.length >= RECORD_BYTES_MAX:
            [location] = await self._upload([record])
            return location
        try:
            return await self._packer.write(record)
        except asyncio.CancelledError:
            if record.location.done() and record.location.exception() is None:
                self._spawn(self._drop_unwanted(block, record.location.result()))
            raise

    async def _upload(self, records: Sequence[Record]) -> list[int]:
        """Store records of one directory as one object."""
        if len(records) == 1:
            [record] = records
            await self._upload_single(record)
            locations = [SINGLE]
        else:
            pack = await self._upload_pack(records)
            self._counts["packs_written"] += 1
            self._counts["blocks_packed"] += len(records)
            locations = [pack.location(each) for each in pack.records()]
        self._counts["bytes_written"] += sum(record.length for record in records)
        self._bound_physical()
        return locations

    async def _upload_single(self, record: Record) -> None:
        block, resets = record.block, self._catalogue.resets[record.block.namespace]
        name = object_name(self._config.prefix, block)
        request, object_bytes = Put(name, record.header, record.spans, block in self._spoilt), record.length
        if record.length > self._config.part_bytes:
            await put_in_parts(self._bucket, request, record.length, self._config.part_bytes)
        else:
            stored = await self._bucket.ask(lambda: request)
            assert isinstance(stored, Stored)
            object_bytes = stored.object_bytes
        self._spoilt.pop(block, None)
        if self._catalogue.resets[block.namespace] != resets:
            await self._bucket.delete(name)
            raise TierFault(Fault.IO, _RESET_MEANWHILE)
        self._catalogue.add_single(block, object_bytes)

    async def _upload_pack(self, records: Sequence[Record]) -> Pack:
        namespace, shard = records[0].directory
        name = PackName(namespace, shard, time.time_ns() // 1_000_000, random.getrandbits(64), len(records))
        index = pack_index(name, [record.block for record in records], [record.length for record in records])
        parts = [Part(record.header, record.spans) for record in records]
        request = PutPack(pack_name(self._config.prefix, name), index, parts)
        resets = self._catalogue.resets[namespace]
        self._catalogue.uploading.add(name)
        try:
            await self._bucket.ask(lambda: request)
            if self._catalogue.resets[namespace] != resets:
                raise TierFault(Fault.IO, _RESET_MEANWHILE)
        except BaseException:
            self._doubtful[name] = None  # nothing of it may ever be served
            self._listing.refuse(name)
            self._spawn(self._delete_doubtful(records[0].directory))
            raise
        finally:
            self._catalogue.uploading.discard(name)
        return self._catalogue.packs.add(name, index)

    async def read(self, block: BlockName, location: int, chunks: Sequence[FrameSpan]) -> AsyncGenerator[int, None]:
        spans = [Span(chunk.frame, chunk.length) for chunk in chunks]
        name, offset, object_bytes, record_bytes = self._place_of(block, location)
        whose = (block.namespace, block.shard, block.key, block.parent)

        def ask(first: int, end: int) -> Get:
            return Get(name, *whose, spans, first, offset, object_bytes, record_bytes, end)

        ranges = cut_ranges([chunk.length for chunk in chunks], [chunk.wanted for chunk in chunks])
        try:
            async with aclosing(read_ranges(self._bucket, ask, ranges)) as replies:
                async for reply in replies:
                    chunk = chunks[reply.chunk]
                    self._arena.set_checksum(chunk.frame, reply.checksum)
                    self._counts["bytes_read"] += chunk.length
                    yield reply.chunk
        except TierFault as fault:
            if fault.fault is Fault.CORRUPT and location == SINGLE:
                self._note_spoilt(block)
            raise

    async def verify(self, block: BlockName, location: int, lengths: Sequence[int]) -> None:
        """See `VerifiableStore`. Checked by the byte worker, over one connection: nobody waits for it."""
        name, offset, object_bytes, record_bytes = self._place_of(block, location)
        whose = (block.namespace, block.shard, block.key, block.parent)
        spans = [Span(0, length) for length in lengths]

        def ask(first: int, end: int) -> Get:
            return Get(name, *whose, spans, first, offset, object_bytes, record_bytes, end, lands=False)

        try:
            async with aclosing(read_ranges(self._bucket, ask, [(0, len(spans))])) as replies:
                async for _ in replies:
                    pass
        except TierFault as fault:
            if fault.fault is Fault.CORRUPT and location == SINGLE:
                self._note_spoilt(block)
            raise

    def _note_spoilt(self, block: BlockName) -> None:
        self._spoilt[block] = None
        if len(self._spoilt) > SPOILT_MAX:
            del self._spoilt[next(iter(self._spoilt))]

    def _place_of(self, block: BlockName, location: int) -> tuple[str, int, int, int]:
        """Object, offset in it, its size and the record's (0: as long as the object turns out). Raises TierFault."""
        if location == SINGLE:
            return object_name(self._config.prefix, block), 0, 0, 0
        found = self._catalogue.packs.at(location)
        at = None if found is None else found[0].place_of(block, found[1])
        if self._bucket.closed or found is None or at is None:
            fault = Fault.DOWN if self._bucket.closed else Fault.MISSING
            raise TierFault(fault, "no pack holds this record any more")
        pack, offset = found
        return pack_name(self._config.prefix, pack.name), offset, pack.object_bytes, pack.record(at).length

    async def drop(self, block: BlockName, location: int) -> None:
        if location == SINGLE:
            await self._drop_single(block)
            return
        found = self._catalogue.packs.at(location)
        if found is None:
            return
        pack, offset = found
        place = pack.place_of(block, offset)
        if place is not None:
            pack.drop(1 << place)
        if self._config.owner:
            await self._drops.settle(pack)

    async def _drop_single(self, block: BlockName) -> None:
        """Also what a write left in doubt is asked to go by this."""
        await self._delete_doubtful((block.namespace, block.shard))
        if not self._config.owner:
            return  # the catalogue still knows it, so it is no news when the listing meets it
        if self._catalogue.is_wiping(block.namespace) and not self._catalogue.has_single(block):
            return  # it goes with all others of the reset, by the page
        self._catalogue.begin_delete(block)
        try:
            await self._bucket.delete(object_name(self._config.prefix, block))
        finally:
            self._catalogue.end_delete(block)

    async def _delete_doubtful(self, directory: Directory) -> None:
        for name in [name for name in self._doubtful if (name.namespace, name.shard) == directory]:
            await self._bucket.delete(pack_name(self._config.prefix, name))
            self._doubtful.pop(name, None)

    def reset(self, namespace: NamespaceDigest) -> asyncio.Task[None]:
        self._catalogue.reset(namespace)
        return self._spawn(wipe(self._config, self._bucket, self._catalogue, namespace))

    async def _drop_unwanted(self, block: BlockName, location: int) -> None:
        """A record that landed after its writer had given up."""
        await self.drop(block, location)

    # ---------------------------------------------------------------- listing

    async def found(self) -> AsyncGenerator[FoundBatch, None]:
        """What the bucket holds, page by page. Waits an outage out: a listing half done is of no use."""
        async with aclosing(self._listing.sweep()) as batches:
            async for batch in batches:
                yield batch
        if self._config.refresh_s:
            self._spawn(self._refresh())

    async def _refresh(self) -> None:
        """Look again and again for what others have written and deleted."""
        while True:
            await asyncio.sleep(self._config.refresh_s)
            self._settle_again()
            for directory in {(name.namespace, name.shard): None for name in self._doubtful}:
                with suppress(TierFault):
                    await self._delete_doubtful(directory)
            for round_ in (self._listing.news(), self._listing.sweep(PAGES_PER_ROUND_MAX)):
                async with aclosing(round_) as batches:
                    async for batch in batches:
                        await self._tell(batch)
            self._bound_physical()

    async def _tell(self, batch: FoundBatch) -> None:
        """In slices: others wait for the loop while the planner takes one in."""
        for start in range(0, len(batch.blocks), TOLD_COUNT_MAX):
            if self._listener is not None:
                self._listener.appeared(replace(batch, blocks=batch.blocks[start : start + TOLD_COUNT_MAX]))
            await asyncio.sleep(0)

    def _settle_again(self) -> None:
        """Drops that nobody waits for, and that the bucket did not take when they were due."""
        for pack in self._catalogue.packs:
            if self._config.owner and pack.dropped & ~pack.marked:
                self._spawn(self._drops.settle(pack))

    def _bound_physical(self) -> None:
        """Let go of packs, least live share first, until all objects together take no more than they may."""
        limit, held = self._config.bytes, self._catalogue.object_bytes
        if not limit or not self._config.owner or held <= limit * PHYSICAL_SHARE_MAX:
            return
        excess = held - int(limit * PHYSICAL_SHARE_GOAL)
        for pack in sorted(self._catalogue.packs, key=lambda pack: pack.live_share):
            if excess <= 0:
                return
            if pack.dropped == (1 << pack.name.count) - 1:
                excess -= pack.object_bytes  # on its way out already
                continue
            lost = records_of(pack)
            pack.drop((1 << pack.name.count) - 1)
            self._listing.tell_lost(lost, "its pack was let go of: most of what lay there had been dropped")
            self._counts["packs_let_go"] += 1
            excess -= pack.object_bytes
            self._spawn(self._drops.settle(pack))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run beside everything else until the store is closed; its faults are met again by whoever comes next."""
        task = self._background.spawn(work)
        if self._bucket.closed:
            task.cancel()
        return task

    # ------------------------------------------------------------------ facts

    @property
    def damaged_at_start(self) -> int:
        return self._listing.damaged_at_start

    def requests(self) -> dict[str, object]:
        return self._bucket.status()

    def status(self) -> dict[str, object]:
        return {
            "bucket": self._config.bucket,
            "prefix": self._config.prefix,
            "endpoint_url": self._config.endpoint_url,
            "owner": self._config.owner,
            **self._bucket.status(),
            "objects": self._catalogue.single_count + len(self._catalogue.packs),
            "packs": len(self._catalogue.packs),
            "bytes": self._catalogue.object_bytes,
            "live_bytes": self._catalogue.single_bytes + sum(pack.live_bytes for pack in self._catalogue.packs),
            **self._counts,
            **self._listing.counts,
            "codec": codec_status(self._codec),
        }
