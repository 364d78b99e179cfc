"""Compression for a tier that does its I/O in the daemon: child processes between frames and scratch.

The tier writes to disk what it is given here and reads from disk into what it is given here; no byte is
touched on the loop. Owned by the SSD store where its codec is other than none.
"""

from __future__ import annotations

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
from flexkv_tiers.codec.plan import Decode, Encode, Encoded, Unreadable, Work
from flexkv_tiers.codec.scratch import Scratch
from flexkv_tiers.memory import Arena

SCRATCH_BYTES_MAX = 256 << 20
"""Most memory that compressed bytes take between frames and disk; blocks larger than that stay as they are."""

THREADS = 2
"""Calls that run in one child at a time: while one waits for the GIL the other compresses."""

_LET_GO_S = 10.0
"""A child that has not finished a call so long after its timeout is replaced."""


@dataclass(frozen=True, slots=True)
class ChunksToWrite:
    """What to write behind a record's header: how each chunk is stored, and its bytes in whole pages."""

    stored: list[Stored]
    parts: list[memoryview]


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Room that one chunk's stored bytes are to be read into."""

    view: memoryview
    frame: int


class CodecPool:
    """`processes` children over the arena and a scratch of their own."""

    def __init__(self, arena: Arena, chooser: CodecChooser, *, processes: int, timeout_s: float) -> None:
        self.chooser = chooser
        self._arena = arena
        self._timeout_s = timeout_s
        self._scratch = Scratch(arena.segment_bytes, min(arena.segment_bytes, SCRATCH_BYTES_MAX))
        self._scratch_start = arena.room_bytes // ALIGN_BYTES  # its frames follow the arena's, for a child
        self._workers = [
            ByteWorker(
                "flexkv_tiers.codec.worker",
                b"",
                segment_fds=[*arena.segment_fds, *self._scratch.segment_fds],
                segment_bytes=arena.segment_bytes,
                threads=THREADS,
                let_go_s=_LET_GO_S,
            )
            for _ in range(processes)
        ]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Encoded | Unreadable] = msgspec.msgpack.Decoder(Encoded | Unreadable)

    async def start(self) -> None:
        for worker in self._workers:
            await worker.start()

    async def close(self) -> None:
        """End the children; what runs in them fails. Idempotent."""
        for worker in self._workers:
            await worker.close()
        self._scratch.close()

    @asynccontextmanager
    async def encoded(self, namespace: NamespaceDigest, chunks: Sequence[FrameSpan]) -> AsyncIterator[ChunksToWrite]:
        """The chunks of one block, ready to be written until the block of code ends. Raises TierFault."""
        lengths = [chunk.length for chunk in chunks]
        orders = self.chooser.orders(namespace, lengths)
        if not orders or sum(lengths) > self._scratch.room_bytes:
            plain = [Stored(CODEC_NONE, length) for length in lengths]
            yield ChunksToWrite(plain, [self._arena.view(chunk.frame, chunk.length) for chunk in chunks])
            return
        async with self._scratch.taken(sum(lengths), self._timeout_s) as scratch:
            spans = [(chunk.frame, chunk.length) for chunk in chunks]
            reply = await self._ask(Encode(spans, orders, self._scratch_start + scratch))
            assert isinstance(reply, Encoded)
            self.chooser.note(namespace, reply.measures)
            stored = [Stored(*form) for form in reply.stored]
            yield ChunksToWrite(stored, self._parts(chunks, stored, scratch))

    @asynccontextmanager
    async def room_for(self, entry: ChunkEntry) -> AsyncIterator[StoredChunk]:
        """Room for a compressed chunk as it lies in its record, until the block of code ends. Raises TierFault."""
        assert entry.codec != CODEC_NONE, "it is read straight into its frame"
        if entry.room_bytes > self._scratch.room_bytes:
            raise TierFault(Fault.CORRUPT, f"a compressed chunk of {entry.room_bytes} bytes is larger than any written")
        async with self._scratch.taken(entry.room_bytes, self._timeout_s) as frame:
            yield StoredChunk(self._scratch.view(frame, entry.room_bytes), frame)

    async def decode(self, key: bytes, number: int, entry: ChunkEntry, stored: StoredChunk, target: FrameSpan) -> None:
        """Bring a chunk that was read into its room into its frame, and check it there.

        Raises TierFault: CORRUPT when it is not that chunk, IO when the child died.
        """
        assert target.length == entry.raw_bytes
        work = Decode(
            key,
            number,
            self._scratch_start + stored.frame,
            entry.stored_bytes,
            entry.codec,
            target.frame,
            entry.raw_bytes,
            entry.checksum,
        )
        reply = await self._ask(work)
        if reply is not None:
            assert isinstance(reply, Unreadable)
            raise TierFault(Fault.CORRUPT, reply.detail)

    def status(self) -> dict[str, object]:
        """Facts for people."""
        return {
            "processes": [worker.pid for worker in self._workers],
            "process_deaths": sum(worker.deaths for worker in self._workers),
            "calls_running": sum(worker.running for worker in self._workers),
            "scratch_bytes": self._scratch.room_bytes,
            "scratch_waiters_max": self._scratch.waiting_max,
            **self.chooser.status(),
        }

    async def _ask(self, work: Work) -> Encoded | Unreadable | None:
        """Run one call in the least busy child; its only reply, if it has one."""
        worker = min(self._workers, key=lambda each: each.running)
        last = None
        async with aclosing(worker.call(self._encoder.encode(work), timeout_s=self._timeout_s)) as replies:
            async for reply in replies:
                last = self._decoder.decode(reply)
        return last

    def _parts(self, chunks: Sequence[FrameSpan], stored: Sequence[Stored], scratch: int) -> list[memoryview]:
        """Where the bytes of each chunk lie: compressed ones back to back in scratch, others in their frames."""
        parts = []
        for chunk, form in zip(chunks, stored, strict=True):
            if form.codec == CODEC_NONE:
                parts.append(self._arena.view(chunk.frame, chunk.length))
            else:
                room_bytes = align_up(form.stored_bytes)
                parts.append(self._scratch.view(scratch, room_bytes))
                scratch += room_bytes // ALIGN_BYTES
        return parts
