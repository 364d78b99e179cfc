"""Makes an SSD directory with very many small records quickly, and measures how long a store takes to read it in.

`python -m tests.trials.million DIRECTORY [COUNT]`. Records are written by the format's own functions, without
a store, in sealed segments; block `n` follows block `n - 1`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.core.messages import BlockName
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkv_tiers.codec import HEADER_BYTES, chunk_checksum, pack_header
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import SsdStore
from flexkv_tiers.ssd.directory import acquire, segment_path
from flexkv_tiers.ssd.format import (
    PAGE_BYTES,
    DeadMap,
    Entry,
    Layout,
    SegmentHeader,
    pack_footer,
    pack_segment_header,
)

SEGMENT_BYTES = 128 << 20
CHUNK_BYTES = 4096
RECORD_PAGES = (HEADER_BYTES + CHUNK_BYTES) // PAGE_BYTES
NAMESPACE = NamespaceDigest(bytes(range(32)))
_FOOTER_SHARE = 128
"""One page in so many is left for the footer."""


def key_of(number: int) -> BlockKey:
    """The key of a block: a function of its number."""
    return BlockKey(hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest())


def block_of(number: int, namespace: NamespaceDigest) -> BlockName:
    """Block `number` of the one long chain."""
    return BlockName(namespace, 0, key_of(number), key_of(number - 1) if number else ROOT)


def content_of(number: int) -> bytes:
    """The one chunk of a block."""
    return number.to_bytes(8, "little") * (CHUNK_BYTES // 8)


def make(directory: Path, count: int, namespace: NamespaceDigest = NAMESPACE) -> int:
    """Write `count` records of 8 KiB into `directory`; returns the bytes of its segments."""
    [held] = acquire([directory])
    try:
        layout = Layout(SEGMENT_BYTES)
        per_segment = (layout.trailer_page - layout.first_page - layout.pages // _FOOTER_SHARE) // RECORD_PAGES
        numbers = range(0, count, per_segment)
        for segment, first in enumerate(numbers, start=1):
            of_segment = [block_of(number, namespace) for number in range(first, min(count, first + per_segment))]
            _write_segment(
                directory, SegmentHeader(held.id, segment, SEGMENT_BYTES, os.urandom(8), segment), first, of_segment
            )
    finally:
        os.close(held.lock)
    return len(numbers) * SEGMENT_BYTES


def _write_segment(directory: Path, header: SegmentHeader, first_number: int, blocks: list[BlockName]) -> None:
    layout, salt = Layout(header.segment_bytes), header.salt
    with segment_path(directory, header.number).open("wb", buffering=4 << 20) as file:
        os.posix_fallocate(file.fileno(), 0, layout.segment_bytes)
        file.write(pack_segment_header(header))
        dead = DeadMap(layout.map_count)
        for page in range(layout.map_count):
            file.write(dead.pack(page, salt))
        entries = []
        for at, block in enumerate(blocks):
            data = content_of(first_number + at)
            file.write(pack_header(block, [CHUNK_BYTES], [chunk_checksum(block.key, 0, data)], salt))
            file.write(data)
            entries.append(Entry(layout.first_page + at * RECORD_PAGES, RECORD_PAGES, block, (CHUNK_BYTES,)))
        first, raw = pack_footer(layout, salt, entries, is_clean=True)
        file.seek(first * PAGE_BYTES)
        file.write(raw)


async def measure(directory: Path, capacity_bytes: int) -> dict[str, float]:
    """Start a store over the directory and read everything in; seconds, and CPU seconds."""
    arena = Arena(4 << 20, 1, huge_pages=False)
    begun, begun_cpu, longest, count = time.perf_counter(), time.process_time(), 0.0, 0
    store = SsdStore(directory, capacity_bytes, arena)
    await store.start()
    started = time.perf_counter()
    try:
        async for batch in _timed(store):
            count += batch[0]
            longest = max(longest, batch[1])
        ended, ended_cpu = time.perf_counter(), time.process_time()
    finally:
        await store.close()
        arena.close()
    return {
        "records": count,
        "start_s": round(started - begun, 3),
        "found_s": round(ended - started, 3),
        "cpu_s": round(ended_cpu - begun_cpu, 3),
        "longest_step_s": round(longest, 4),
    }


async def _timed(store: SsdStore) -> Iterator[tuple[int, float]]:  # type: ignore[misc]
    before = time.perf_counter()
    async for batch in store.found():
        now = time.perf_counter()
        yield len(batch.blocks), now - before
        before = time.perf_counter()


if __name__ == "__main__":
    place, wanted = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    if not place.exists():
        make(place, wanted)
    sys.stdout.write(json.dumps(asyncio.run(measure(place, 2 * wanted * 16 * 1024)), indent=2) + "\n")
