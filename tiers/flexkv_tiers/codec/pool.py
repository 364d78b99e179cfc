"""Compression as the daemon sees it: child processes between the arena's frames and a scratch beside it.

`CodecPool` is one for all tiers and owns children and scratch; `TierCodec` is one tier's view of it, with
the tier's own choice of codecs. A tier writes what it is given here in place of its frames, and has
what it read brought back into them. No byte is touched on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import msgspec

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES, align_up
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.base import FrameSpan, TierFault
from flexkv_tiers.byteworkers import ByteWorker
from flexkv_tiers.codec.choice import CodecChooser
from flexkv_tiers.codec.envelope import CODEC_NONE, ChunkEntry, Stored
from flexkv_tiers.codec.plan import Decode, Encode, Encoded, SectionPlan, Unreadable, Work
from flexkv_tiers.codec.scratch import Scratch
from flexkv_tiers.memory import Arena

THREADS = 2
"""Calls that run in one child at a time: while one holds the GIL the other compresses."""

_LET_GO_S = 10.0
"""A child that has not finished a call so long after its timeout is replaced."""


@dataclass(frozen=True, slots=True)
class ChunksToWrite:
    """What follows a record's header: how each chunk is stored, and where its bytes lie, in whole pages.

    Frames of `spans` are the arena's, or beyond them those of the scratch: see `CodecPool.view`.
    """

    stored: list[Stored]
    spans: list[FrameSpan]

    @classmethod
    def plain(cls, chunks: Sequence[FrameSpan]) -> ChunksToWrite:
        """The chunks as they lie in their frames."""
        return cls([Stored(CODEC_NONE, chunk.length) for chunk in chunks], list(chunks))

    @property
    def total_bytes(self) -> int:
        """All of it, without the header."""
        return sum(span.length for span in self.spans)


class CodecPool:
    """`processes` children over the arena and `scratch_bytes` of scratch; they start when first needed, or told to.

    Blocks larger than the scratch, which is no larger than a segment of the arena, are stored as they are.
    """

    def __init__(self, arena: Arena, *, processes: int, scratch_bytes: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._arena = arena
        self._scratch = Scratch(arena.segment_bytes, min(arena.segment_bytes, scratch_bytes))
        self._scratch_start = arena.room_bytes // ALIGN_BYTES
        self._workers = [
            ByteWorker(
                "flexkv_tiers.codec.worker",
                b"",
                segment_fds=self.segment_fds,
                segment_bytes=arena.segment_bytes,
                threads=THREADS,
                let_go_s=_LET_GO_S,
            )
            for _ in range(processes)
        ]
        self._starting: asyncio.Task[None] | None = None  # from the first need on, whatever became of it
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Encoded | Unreadable] = msgspec.msgpack.Decoder(Encoded | Unreadable)

    @property
    def segment_fds(self) -> list[int]:
        """The arena's memory and the scratch's, for a byte worker that is to find frames of both."""
        return [*self._arena.segment_fds, *self._scratch.segment_fds]

    @property
    def scratch_bytes(self) -> int:
        return self._scratch.room_bytes

    async def start(self) -> None:
        """Return when the children are there. Idempotent."""
        self._start_children()
        assert self._starting is not None
        await asyncio.shield(self._starting)

    def _start_children(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_each())

    async def _start_each(self) -> None:
        for worker in self._workers:
            await worker.start()

    async def close(self) -> None:
        """End the children; what runs in them fails. Idempotent."""
        for worker in self._workers:
            await worker.close()
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)  # whoever waited for it has been told
        self._scratch.close()

    def view(self, span: FrameSpan) -> memoryview:
        """Bytes of a frame of the arena, or of the scratch beyond it."""
        if span.frame < self._scratch_start:
            return self._arena.view(span.frame, span.length)
        return self._scratch.view(span.frame - self._scratch_start, span.length)

    @asynccontextmanager
    async def room(self, length: int) -> AsyncIterator[FrameSpan]:
        """Scratch of `length` bytes (whole pages) until the block of code ends. Raises TierFault(LATE)."""
        async with self._scratch.taken(length, self.timeout_s) as frame:
            yield FrameSpan(self._scratch_start + frame, length)

    async def ask(self, work: Work) -> Encoded | Unreadable | None:
        """Run one call in the least busy child; its only reply, if it has one. Raises TierFault(IO) when it dies."""
        self._start_children()
        worker = min(self._workers, key=lambda each: each.running)
        last = None
        async with aclosing(worker.call(self._encoder.encode(work), timeout_s=self.timeout_s)) as replies:
            async for reply in replies:
                last = self._decoder.decode(reply)
        return last

    def status(self) -> dict[str, object]:
        """Facts for people; `processes` are those that live now."""
        return {
            "processes": [worker.pid for worker in self._workers if worker.pid is not None],
            "process_deaths": sum(worker.deaths for worker in self._workers),
            "calls_running": sum(worker.running for worker in self._workers),
            "scratch_bytes": self._scratch.room_bytes,
            "scratch_waiters_max": self._scratch.waiting_max,
        }


class TierCodec:
    """One tier's codecs, carried out by the pool."""

    def __init__(self, pool: CodecPool, chooser: CodecChooser) -> None:
        self.pool = pool
        self._chooser = chooser

    @property
    def compresses(self) -> bool:
        """Whether any block might be compressed on its way down; what was is brought back up in any case."""
        return self._chooser.compresses

    def introduce(self, namespace: NamespaceDigest, plan: SectionPlan) -> None:
        """Blocks of this namespace consist of these sections."""
        self._chooser.introduce(namespace, plan)

    @asynccontextmanager
    async def encoded(self, namespace: NamespaceDigest, chunks: Sequence[FrameSpan]) -> AsyncIterator[ChunksToWrite]:
        """The chunks of one block, ready to be written until the block of code ends. Raises TierFault."""
        lengths = [chunk.length for chunk in chunks]
        orders = self._chooser.orders(namespace, lengths)
        if not orders or sum(lengths) > self.pool.scratch_bytes:
            yield ChunksToWrite.plain(chunks)
            return
        async with self.pool.room(sum(lengths)) as room:
            reply = await self.pool.ask(Encode([(chunk.frame, chunk.length) for chunk in chunks], orders, room.frame))
            assert isinstance(reply, Encoded)
            self._chooser.note(namespace, reply.measures)
            stored = [Stored(*form) for form in reply.stored]
            yield ChunksToWrite(stored, _spans(chunks, stored, room.frame))

    @asynccontextmanager
    async def room_for(self, entry: ChunkEntry) -> AsyncIterator[FrameSpan]:
        """Room for a compressed chunk as it lies in its record, until the block of code ends. Raises TierFault."""
        assert entry.codec != CODEC_NONE, "it is read straight into its frame"
        if entry.room_bytes > self.pool.scratch_bytes:
            raise TierFault(
                Fault.IO, f"a compressed chunk of {entry.room_bytes} bytes does not fit: raise [codec] scratch_bytes"
            )
        async with self.pool.room(entry.room_bytes) as room:
            yield room

    async def decode(self, key: bytes, number: int, entry: ChunkEntry, room: FrameSpan, target: FrameSpan) -> None:
        """Bring a chunk that was read into `room` into its frame, and check it there.

        Raises TierFault: CORRUPT when it is not that chunk, IO when the child died.
        """
        assert room.length == entry.room_bytes
        assert target.length == entry.raw_bytes
        work = Decode(
            key,
            number,
            room.frame,
            entry.stored_bytes,
            entry.codec,
            target.frame,
            entry.raw_bytes,
            entry.checksum,
        )
        reply = await self.pool.ask(work)
        if reply is not None:
            assert isinstance(reply, Unreadable)
            raise TierFault(Fault.CORRUPT, reply.detail)

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {**self._chooser.status(), "pool": self.pool.status()}


def codec_status(codec: TierCodec | None) -> dict[str, object]:
    """Facts for people about a tier's codec, of the same shape where nothing is compressed."""
    if codec is not None:
        return codec.status()
    idle = {"processes": [], "process_deaths": 0, "calls_running": 0, "scratch_bytes": 0, "scratch_waiters_max": 0}
    return {**CodecChooser("none").status(), "pool": idle}


def _spans(chunks: Sequence[FrameSpan], stored: Sequence[Stored], scratch: int) -> list[FrameSpan]:
    """Where the bytes of each chunk lie: compressed ones back to back in scratch, others in their frames."""
    spans = []
    for chunk, form in zip(chunks, stored, strict=True):
        if form.codec == CODEC_NONE:
            spans.append(chunk)
        else:
            spans.append(FrameSpan(scratch, align_up(form.stored_bytes)))
            scratch += spans[-1].length // ALIGN_BYTES
    return spans
