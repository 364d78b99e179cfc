"""Compression in child processes, for real: frames to scratch and back, and what becomes of it when one dies."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.base import FrameSpan, TierFault
from flexkv_tiers.codec import CODEC_NONE, CODEC_SECTIONS, HEADER_BYTES, ChunkEntry, chunk_checksum
from flexkv_tiers.codec.choice import CodecChooser
from flexkv_tiers.codec.pool import ChunksToWrite, CodecPool, TierCodec, codec_status
from flexkv_tiers.codec.scratch import Runs, Scratch
from flexkv_tiers.memory import Arena

from .test_codec_chunks import bfloat16

NAMESPACE = NamespaceDigest(b"n" * 32)
KEY = b"k" * 16
SEGMENT_BYTES = 4 << 20
CHUNKS = [FrameSpan(0, 1 << 20), FrameSpan(256, 65_536), FrameSpan(272, 8192)]


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def tier_codec(codec: str, arena: Arena) -> TierCodec:
    pool = CodecPool(arena, processes=1, scratch_bytes=SEGMENT_BYTES, timeout_s=20)
    return TierCodec(pool, CodecChooser(codec))


@asynccontextmanager
async def running(codec: str, arena: Arena) -> AsyncIterator[TierCodec]:
    tier = tier_codec(codec, arena)
    await tier.pool.start()
    try:
        yield tier
    finally:
        await tier.pool.close()


def filled_arena() -> Arena:
    """Two segments; the first holds a block of one chunk of noise between two of numbers."""
    arena = Arena(SEGMENT_BYTES, 2)
    for chunk, raw in zip(CHUNKS, (bfloat16(1 << 20), random.Random(1).randbytes(65_536), bytes(8192)), strict=True):
        arena.view(chunk.frame, chunk.length)[:] = raw
        arena.set_checksum(chunk.frame, chunk_checksum(KEY, CHUNKS.index(chunk), raw))
    return arena


def entries(arena: Arena, encoded: ChunksToWrite) -> list[ChunkEntry]:
    """What the header of such a record would say."""
    offset, result = HEADER_BYTES, []
    for chunk, form in zip(CHUNKS, encoded.stored, strict=True):
        result.append(ChunkEntry(offset, form.stored_bytes, chunk.length, form.codec, arena.checksum(chunk.frame)))
        offset += result[-1].room_bytes
    return result


@on_a_loop
async def test_blocks_go_through_the_pool_and_come_back() -> None:
    """What pays is compressed into scratch, what does not is written from its frame; decoding fills other frames."""
    arena = filled_arena()
    async with running("auto", arena) as tier:
        async with tier.encoded(NAMESPACE, CHUNKS) as encoded:
            parts = [bytes(tier.pool.view(span)) for span in encoded.spans]
            header = entries(arena, encoded)
        assert [entry.codec for entry in header] == [CODEC_SECTIONS, CODEC_NONE, CODEC_SECTIONS]
        assert [len(part) for part in parts] == [entry.room_bytes for entry in header]
        assert len(parts[0]) < 0.75 * CHUNKS[0].length
        for number, (chunk, entry, part) in enumerate(zip(CHUNKS, header, parts, strict=True)):
            if entry.codec == CODEC_NONE:
                continue
            target = FrameSpan(chunk.frame + SEGMENT_BYTES // ALIGN_BYTES, chunk.length)
            async with tier.room_for(entry) as room:
                tier.pool.view(room)[:] = part
                await tier.decode(KEY, number, entry, room, target)
            assert arena.view(target.frame, target.length) == arena.view(chunk.frame, chunk.length)
        assert tier.status()["auto"]
    arena.close()


@on_a_loop
async def test_what_is_not_that_chunk_is_corrupt() -> None:
    """Damaged bytes, and another block's right bytes, are refused by the child; it goes on working."""
    arena = filled_arena()
    async with running("planes", arena) as tier:
        async with tier.encoded(NAMESPACE, CHUNKS) as encoded:
            part, entry = bytes(tier.pool.view(encoded.spans[0])), entries(arena, encoded)[0]
        for key, stored in ((KEY, part[:100] + b"x" + part[101:]), (b"x" * 16, part)):
            async with tier.room_for(entry) as room:
                tier.pool.view(room)[:] = stored
                with pytest.raises(TierFault) as caught:
                    await tier.decode(key, 0, entry, room, CHUNKS[0])
                assert caught.value.fault is Fault.CORRUPT
        assert tier.pool.status()["process_deaths"] == 0
    arena.close()


@on_a_loop
async def test_a_block_without_codec_costs_no_child_and_no_scratch() -> None:
    """Codec none hands out the frames themselves."""
    arena = filled_arena()
    tier = tier_codec("none", arena)  # its children are never started
    async with tier.encoded(NAMESPACE, CHUNKS) as encoded:
        assert [form.codec for form in encoded.stored] == [CODEC_NONE] * 3
        assert encoded.spans == CHUNKS
    await tier.pool.close()
    arena.close()


@on_a_loop
async def test_a_dead_child_fails_its_calls_and_is_replaced() -> None:
    """SIGKILL in the middle: every call fails with IO or succeeds, scratch comes back whole, the next call works."""
    arena = filled_arena()

    async def encode(tier: TierCodec) -> str:
        try:
            async with tier.encoded(NAMESPACE, CHUNKS) as encoded:
                assert encoded.stored[0].codec == CODEC_SECTIONS
        except TierFault as fault:
            return fault.fault.name
        return "done"

    async with running("planes", arena) as tier:
        calls = [asyncio.create_task(encode(tier)) for _ in range(12)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        [pid] = tier.pool.status()["processes"]  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        ended = asyncio.gather(*calls)
        while not ended.done():
            assert all(isinstance(each, int) for each in tier.pool.status()["processes"])  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert set(await ended) <= {"done", "IO"}
        assert await encode(tier) == "done"
        assert tier.pool.status()["process_deaths"] == 1
    arena.close()


@on_a_loop
async def test_the_status_has_one_shape_whether_anything_is_compressed_or_not() -> None:
    """A tier without a codec says the same words as one with, down to the pool's."""
    arena = filled_arena()
    async with running("zstd", arena) as tier:
        some, none = tier.status(), codec_status(None)
        assert {name: type(value) for name, value in none.items()} == {name: type(each) for name, each in some.items()}
        assert none["default"] == "none"
        assert list(none["pool"]) == list(some["pool"])  # type: ignore[call-overload]
    arena.close()


@on_a_loop
async def test_who_finds_no_scratch_waits_in_line_and_not_for_ever() -> None:
    """Room is granted in the order it was asked for; a wait ends in LATE or in cancellation and takes nothing along."""
    scratch = Scratch(SEGMENT_BYTES, 4 * ALIGN_BYTES)
    order: list[str] = []

    async def use(name: str, pages: int) -> None:
        async with scratch.taken(pages * ALIGN_BYTES, 20):
            order.append(name)

    async with scratch.taken(3 * ALIGN_BYTES, 20):
        with pytest.raises(TierFault) as caught:
            async with scratch.taken(2 * ALIGN_BYTES, 0.01):
                pass
        assert caught.value.fault is Fault.LATE
        tasks = [asyncio.create_task(use(*each)) for each in (("large", 4), ("gone", 2), ("small", 1))]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert order == []
    await asyncio.wait(tasks)
    assert order == ["large", "small"]
    async with scratch.taken(4 * ALIGN_BYTES, 0.01):
        pass
    scratch.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.integers(0, 20)), max_size=60))
def test_runs_of_pages_never_overlap_and_none_gets_lost(steps: list[tuple[bool, int, int]]) -> None:
    """Taken and given back in any order, every page is either free or someone's, and free ones join again."""
    runs, taken = Runs(32), []
    for give, count, which in steps:
        if give and taken:
            runs.give(*taken.pop(which % len(taken)))
        elif (start := runs.take(count)) is not None:
            taken.append((start, count))
        pages = [page for start, count in taken for page in range(start, start + count)]
        assert len(pages) == len(set(pages)) <= 32
    for run in taken:
        runs.give(*run)
    assert runs.take(32) == 0
