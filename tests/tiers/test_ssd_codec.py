"""The SSD log with a codec: records take less room, survive a restart, and are damage or a miss like any other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.codec import CODEC_SECTIONS, HEADER_BYTES, HEADER_MAGIC, parse_header
from flexkv_tiers.ssd import SsdStore
from tests.tiers.backings import SEGMENT_BYTES, CompressingSsdStore
from tests.tiers.contract import Frames, assert_readable, block, fault_of_read, opened, places_of

LENGTHS = (64 << 10, 128 << 10)
COUNT = 6


def segment_with(directory: Path, key: bytes) -> tuple[Path, int]:
    """Where the record of a key lies: file and offset."""
    for path in directory.iterdir():
        raw = path.read_bytes() if path.stat().st_size >= SEGMENT_BYTES else b""
        for at in range(0, len(raw), 4096):
            page = raw[at : at + HEADER_BYTES]
            if page.startswith(HEADER_MAGIC) and parse_header(page).block.key == key:
                return path, at
    raise AssertionError("no such record")


def test_compressed_records_take_less_and_outlive_the_process(tmp_path: Path, frames: Frames) -> None:
    """Records of half their size on disk, read back after a restart; the core hears how long chunks are in memory."""

    async def first() -> None:
        async with opened(CompressingSsdStore(tmp_path, frames.arena)) as store:
            for number in range(COUNT):
                await store.write(block(number), frames.fill(block(number), LENGTHS))

    async def second() -> None:
        async with opened(CompressingSsdStore(tmp_path, frames.arena)) as store:
            batches = [batch async for batch in store.found()]
            assert {batch.chunk_bytes for batch in batches} == {LENGTHS}
            assert all(batch.record_bytes < 0.7 * (HEADER_BYTES + sum(LENGTHS)) for batch in batches)
            places = places_of(batches)
            assert len(places) == COUNT
            for name, location in places.items():
                await assert_readable(store, frames, name, location, LENGTHS)

    asyncio.run(first())
    asyncio.run(second())


def test_a_flipped_byte_of_a_compressed_chunk_is_corrupt(tmp_path: Path, frames: Frames) -> None:
    """In the stored bytes and in the padding behind them: never served."""

    async def scene() -> None:
        async with opened(CompressingSsdStore(tmp_path, frames.arena)) as store:
            for number in range(2):
                location = await store.write(block(number), frames.fill(block(number), LENGTHS))
                path, at = segment_with(tmp_path, block(number).key)
                with path.open("r+b") as file:
                    file.seek(at)
                    entry = parse_header(file.read(HEADER_BYTES)).chunks[1]
                    assert entry.codec == CODEC_SECTIONS
                    where = at + entry.offset + (100 if number else entry.room_bytes - 1)
                    file.seek(where)
                    [byte] = file.read(1)
                    file.seek(where)
                    file.write(bytes([byte ^ 1]))
                assert await fault_of_read(store, frames, block(number), location, LENGTHS) is Fault.CORRUPT

    asyncio.run(scene())


@pytest.mark.parametrize("codec", ["none", "lz4", "planes"])
def test_whatever_is_configured_what_lies_there_is_read(tmp_path: Path, frames: Frames, codec: str) -> None:
    """Records that an earlier life compressed, between plain ones: with none, the children start when one is met."""

    async def life(codec: str, first: int) -> None:
        async with opened(CompressingSsdStore(tmp_path, frames.arena, codec)) as store:
            places = places_of([batch async for batch in store.found()])
            assert len(places) == first
            for number in range(first, first + 2):
                name = block(number)
                places[name] = await store.write(name, frames.fill(name, LENGTHS))
            if codec == "none":
                await assert_readable(store, frames, block(first), places[block(first)], LENGTHS)
                assert store.pool.status()["processes"] == []
            for name, location in places.items():
                await assert_readable(store, frames, name, location, LENGTHS)
            assert len(store.pool.status()["processes"]) == 1

    asyncio.run(life("zstd", 0))
    asyncio.run(life(codec, 2))
    asyncio.run(life("zstd", 4))


def test_a_store_that_is_given_no_codec_misses_compressed_records(tmp_path: Path, frames: Frames) -> None:
    """Not even one that is set to none: it meets no wrong byte and no error of another kind."""

    async def write() -> None:
        async with opened(CompressingSsdStore(tmp_path, frames.arena)) as store:
            await store.write(block(1), frames.fill(block(1), LENGTHS))

    async def read() -> None:
        store = SsdStore(tmp_path, 5 * SEGMENT_BYTES, frames.arena, segment_bytes=SEGMENT_BYTES)
        async with opened(store):
            [(name, location)] = places_of([batch async for batch in store.found()]).items()
            assert await fault_of_read(store, frames, name, location, LENGTHS) is Fault.MISSING

    asyncio.run(write())
    asyncio.run(read())
