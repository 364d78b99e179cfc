"""The S3 tier as the daemon sees it: deadlines, retries, the breaker and its probes, batched deletes.

Owns no bytes: byte workers move them between the arena and the bucket, and this module only decides
which to ask, how often, and what their answers mean. Called by the daemon's executor.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from flexkv_py.core.messages import BlockName, Fault, FoundBlock, Tier
from flexkv_py.keys import KEY_BYTES, KeyRun, NamespaceDigest
from flexkv_tiers.base import FoundBatch, FrameSpan, TierFault
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.codec import pack_header
from flexkv_tiers.memory import Arena
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.deletes import DeleteBatches
from flexkv_tiers.s3.faults import explained, start_error, tier_fault
from flexkv_tiers.s3.health import Health
from flexkv_tiers.s3.messages import (
    Check,
    Delete,
    Failed,
    Get,
    Landed,
    ListedGroup,
    ListPage,
    Page,
    Put,
    Reply,
    Request,
    Span,
    Trouble,
)
from flexkv_tiers.s3.names import object_name

_LET_GO_S = 2.0
"""What a byte worker gets beyond boto3's own timeouts to let go of a stopped call's frames."""

_CHILD_START_S = 5.0
"""What a byte worker may take to start: the first check waits for it, and for boto3 to be imported."""

LISTING_PAUSE_S = 2.0
"""Between tries at a page of the listing while the bucket fails it."""

_COUNTED = (
    "bytes_written",
    "bytes_read",
    "retries",
    "paced",
    "delete_requests",
    "listed_blocks",
    "listed_foreign",
    "listed_damaged",
    *(f"failed_{trouble.value}" for trouble in Trouble),
)

TierListener = Callable[[bool, str], None]
"""Told when the tier goes down or comes back, and why."""


class S3Store:
    """Whole records in one bucket, one object each; see `TierStore`.

    `start` raises when the bucket cannot be used, but leaves a store that works: a daemon that can live
    without S3 keeps it, its moves fail with DOWN, and a probe brings it back by itself.
    A write that failed may still have reached the bucket whole: a later listing finds it, with the
    right bytes under the right name.
    """

    tier = Tier.S3

    def __init__(self, config: S3Config, arena: Arena, listener: TierListener | None = None) -> None:
        self._config = config
        self._arena = arena
        self._listener = listener
        self._health = Health(config.retry_count_max)
        self._workers = [
            ByteWorker(
                "flexkv_tiers.s3.objects",
                msgspec.msgpack.encode(config),
                segment_fds=arena.segment_fds,
                segment_bytes=arena.segment_bytes,
                threads=config.threads,
                let_go_s=config.connect_timeout_s + config.read_timeout_s + _LET_GO_S,
            )
            for _ in range(config.processes)
        ]
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._encoder = msgspec.msgpack.Encoder()
        self._chance = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._prober: asyncio.Task[None] | None = None  # runs while the breaker is open
        self._came_back = asyncio.Event()  # set while the breaker is closed
        self._came_back.set()
        self._deletes = DeleteBatches(self._delete)
        self._closed = False
        self._counts = Counter(dict.fromkeys(_COUNTED, 0))

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()
        failure = await self._check()
        if failure is not None:
            self._health.breaker.open(explained(failure), self._now_s())
            self._go_down()
            raise start_error(failure, self._config.place)

    async def close(self) -> None:
        self._closed = True
        self._came_back.set()  # a listing that waits out an outage ends too
        prober = self._prober
        if prober is not None:
            prober.cancel()
        for worker in self._workers:
            await worker.close()
        if prober is not None:
            await asyncio.wait([prober])
        await self._deletes.settled()

    async def write(self, block: BlockName, chunks: Sequence[FrameSpan]) -> int:
        checksums = [self._arena.checksum(chunk.frame) for chunk in chunks]
        header = pack_header(block, [chunk.length for chunk in chunks], checksums)
        request = Put(object_name(self._config.prefix, block), header, _spans(chunks))
        await self._ask(lambda: request)
        self._counts["bytes_written"] += len(header) + sum(chunk.length for chunk in chunks)
        return 0

    async def read(
        self,
        block: BlockName,
        location: int,  # noqa: ARG002 - the object's name is its location
        chunks: Sequence[FrameSpan],
    ) -> AsyncGenerator[int, None]:
        name, spans, landed = object_name(self._config.prefix, block), _spans(chunks), 0

        def rest() -> Get:  # a retry goes on where the attempt before ended: landed chunks are already in use
            return Get(name, block.namespace, block.shard, block.key, block.parent, spans, landed)

        async with aclosing(self._replies(rest)) as replies:
            async for reply in replies:
                assert isinstance(reply, Landed)
                assert reply.chunk == landed
                chunk = chunks[landed]
                self._arena.set_checksum(chunk.frame, reply.checksum)
                self._counts["bytes_read"] += chunk.length
                landed += 1
                yield reply.chunk

    async def drop(self, block: BlockName, location: int) -> None:  # noqa: ARG002 - as above
        await self._deletes.delete(object_name(self._config.prefix, block))

    async def found(self) -> AsyncGenerator[FoundBatch, None]:
        """What the bucket holds, page by page. Waits an outage out: a listing half done is of no use."""
        request = ListPage("")
        while True:
            page = await self._page(request)
            self._counts["listed_foreign"] += page.foreign
            self._counts["listed_damaged"] += page.damaged
            for group in page.groups:
                self._counts["listed_blocks"] += len(group.keys) // KEY_BYTES
                yield _found_batch(group)
            if not page.token_next:
                return
            request = ListPage(page.token_next)

    @property
    def damaged_at_start(self) -> int:
        return self._counts["listed_damaged"]

    def status(self) -> dict[str, object]:
        return {
            "bucket": self._config.bucket,
            "prefix": self._config.prefix,
            "endpoint_url": self._config.endpoint_url,
            **self._health.status(),
            "processes": [worker.pid for worker in self._workers],
            "process_deaths": sum(worker.deaths for worker in self._workers),
            "moves_running": sum(worker.running for worker in self._workers),
            **self._counts,
        }

    # ------------------------------------------------------------- attempts

    async def _delete(self, names: list[str]) -> None:
        self._counts["delete_requests"] += 1
        request = Delete(names)
        await self._ask(lambda: request)

    async def _page(self, request: ListPage) -> Page:
        """One page of the listing, whenever the bucket is ready to give it."""
        while True:
            await self._came_back.wait()
            try:
                page = await self._ask(lambda: request)
            except TierFault:
                if self._closed:
                    raise
                await asyncio.sleep(LISTING_PAUSE_S)
            else:
                assert isinstance(page, Page)
                return page

    async def _ask(self, request: Callable[[], Request]) -> Reply | None:
        """One operation that has at most one reply."""
        last: Reply | None = None
        async with aclosing(self._replies(request)) as replies:
            async for reply in replies:
                assert last is None
                last = reply
        return last

    async def _replies(self, request: Callable[[], Request]) -> AsyncGenerator[Reply, None]:
        """The good replies of one operation, over as many attempts as deadline, budget and breaker allow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.operation_timeout_s
        retries = 0
        while True:
            if not self._health.up:
                raise TierFault(Fault.DOWN, f"{self._config.place} is down since: {self._health.down_because}")
            failure: Failed | None = None
            asked = request()
            await self._pace(deadline, urgent=isinstance(asked, Get))
            async with aclosing(self._attempt(asked, deadline - loop.time())) as replies:
                async for reply in replies:
                    if isinstance(reply, Failed):
                        failure = reply
                    else:
                        yield reply
            if failure is None:
                self._health.succeeded(self._now_s())
                return
            self._note(failure)
            delay = self._health.retry_delay_s(failure.trouble, retries, deadline - loop.time(), self._chance.random())
            if delay is None:
                raise tier_fault(failure)
            retries += 1
            self._counts["retries"] += 1
            await asyncio.sleep(delay)

    async def _pace(self, deadline: float, *, urgent: bool) -> None:
        """Wait as long as the server's limits ask for. Raises TierFault."""
        now_s = self._now_s()
        delay = self._health.throttle.delay_s(now_s, deadline - now_s, urgent=urgent)
        if delay is None:
            raise TierFault(Fault.LATE, f"{self._config.place} takes fewer requests than there are, by its 503 answers")
        if delay:
            self._counts["paced"] += 1
            await asyncio.sleep(delay)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    async def _attempt(self, request: Request, timeout_s: float) -> AsyncGenerator[Reply, None]:
        """One attempt in the least busy byte worker; the last reply may be `Failed`."""
        worker = min(self._workers, key=lambda each: each.running)
        async with aclosing(worker.call(self._encoder.encode(request), timeout_s=timeout_s)) as replies:
            async for raw in replies:
                yield self._decoder.decode(raw)

    def _note(self, failure: Failed) -> None:
        self._counts[f"failed_{failure.trouble.value}"] += 1
        self._health.failed(failure.trouble, explained(failure), self._now_s())
        if not self._health.up:
            self._go_down()

    # --------------------------------------------------------- breaker open

    def _go_down(self) -> None:
        if self._prober is not None or self._closed:
            return
        self._came_back.clear()
        self._prober = asyncio.create_task(self._probe())
        if self._listener is not None:
            self._listener(False, self._health.down_because)

    async def _probe(self) -> None:
        """Ask for the bucket at growing intervals until it answers."""
        breaker = self._health.breaker
        while breaker.probe_at_s is not None:
            await asyncio.sleep(max(0.0, breaker.probe_at_s - self._now_s()))
            breaker.begin_probe(max(breaker.probe_at_s, self._now_s()))  # a timer may be early by its resolution
            failure = await self._check()
            breaker.end_probe(explained(failure) if failure else "", self._now_s())
        self._prober = None
        self._came_back.set()
        if self._listener is not None:
            self._listener(True, "the bucket answers again")

    async def _check(self) -> Failed | None:
        """Whether the bucket can be used right now, asked once."""
        timeout_s = self._config.connect_timeout_s + self._config.read_timeout_s + _CHILD_START_S
        failure: Failed | None = None
        try:
            async with aclosing(self._attempt(Check(), timeout_s)) as replies:
                async for reply in replies:
                    assert isinstance(reply, Failed)
                    failure = reply
        except TierFault as fault:
            return Failed(Trouble.CUT, fault.detail)  # not the bucket's fault: the byte worker's
        return failure


def _spans(chunks: Sequence[FrameSpan]) -> list[Span]:
    return [Span(chunk.frame, chunk.length) for chunk in chunks]


def _found_batch(group: ListedGroup) -> FoundBatch:
    blocks = [FoundBlock(key, parent, 0) for key, parent in zip(KeyRun(group.keys), KeyRun(group.parents), strict=True)]
    return FoundBatch(NamespaceDigest(group.namespace), group.shard, group.record_bytes, blocks)
