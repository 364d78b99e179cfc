"""A directory with very many small records: SIGKILL, start, ready in seconds, small in memory, and every read right.

The records are written by the SSD tier itself, without a daemon in front of it; the daemon then lives on the
directory twice, and what counts is the second start, after the kill.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.core.messages import BlockName
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import KEY_BYTES, ROOT, BlockKey, NamespaceDigest, key_of_hash
from flexkv_tiers.base import FrameSpan
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.memory import Arena
from flexkv_tiers.ssd import SsdStore
from flexkvd.cli.pattern import Pattern

from .fleet import DaemonProcess

GEOMETRY = Geometry(planes=(Plane("kv", (0,), 64),), tokens_per_block=64, model="many")
BLOCK_BYTES = GEOMETRY.block_bytes
CHAIN_BLOCKS = 64
WRITES_TOGETHER = 256
READS_TOGETHER = 64
RECORD_ROOM_BYTES = 9 * 1024
"""A record's 8 KiB, and its share of footers, spare segments and what else the log keeps free."""
READY_S_MAX = 5.0
INDEX_BYTES_MAX = 400


def many_blocks(folder: Path, *, blocks: int = 1_000_000, reads: int = 10_000, seed: int = 1) -> dict[str, float]:
    """Write `blocks` records, kill, start, and load `reads` of them at random."""
    ssd_bytes = max(64 << 20, blocks * RECORD_ROOM_BYTES)
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": ssd_bytes}}
    with DaemonProcess(folder, tables) as daemon:
        with Client(daemon.socket, GEOMETRY) as client:
            namespace = client.namespace
        empty_bytes = daemon.rss_bytes()
        daemon.stop()
        begun = time.monotonic()
        asyncio.run(fill(folder / "ssd", ssd_bytes, namespace, blocks))
        filled_s = time.monotonic() - begun
        daemon.start()
        daemon.kill()
        begun = time.monotonic()
        daemon.start()
        ready_s = time.monotonic() - begun
        found = daemon.planner()["blocks"]
        assert found == blocks, f"{blocks} records were written, {found} blocks were found"
        index_bytes = (daemon.rss_bytes() - empty_bytes) / blocks
        begun = time.monotonic()
        wrong = read_at_random(daemon, blocks, reads, random.Random(seed))
        assert wrong == 0, f"{wrong} of {reads} blocks came back wrong or not at all"
        return {
            "blocks": blocks,
            "ready_s": ready_s,
            "resident bytes per block": index_bytes,
            "random reads, all right": reads,
            "reads per second": reads / (time.monotonic() - begun),
            "records written per second": blocks / filled_s,
        }


def names(namespace: NamespaceDigest, blocks: int) -> Iterator[BlockName]:
    """Block `n` of chain `n // CHAIN_BLOCKS`."""
    parent = ROOT
    for number in range(blocks):
        if number % CHAIN_BLOCKS == 0:
            parent = ROOT
        key = key_of_hash(namespace, parent, number.to_bytes(8, "little"))
        yield BlockName(namespace, 0, key, parent)
        parent = key


async def fill(directory: Path, capacity_bytes: int, namespace: NamespaceDigest, blocks: int) -> None:
    """Write all records through the tier."""
    arena, pattern = Arena(2 << 20, 1, huge_pages=False), Pattern(BLOCK_BYTES)
    store = SsdStore(directory, capacity_bytes, arena)
    pages = BLOCK_BYTES // 4096
    await store.start()
    try:
        async for _ in store.found():
            raise AssertionError("the directory is not empty")
        numbered = enumerate(names(namespace, blocks))
        while batch := [each for _, each in zip(range(WRITES_TOGETHER), numbered, strict=False)]:
            writes = []
            for at, (number, block) in enumerate(batch):
                view = arena.view(at * pages, BLOCK_BYTES)
                view[:] = pattern.block(number).data
                arena.set_checksum(at * pages, chunk_checksum(block.key, 0, view))
                writes.append(store.write(block, [FrameSpan(at * pages, BLOCK_BYTES)]))
            await asyncio.gather(*writes)
    finally:
        await store.close()
        arena.close()


def read_at_random(daemon: DaemonProcess, blocks: int, reads: int, chance: random.Random) -> int:
    """Load blocks picked at random, many at a time; how many were wrong or missing."""
    pattern, wrong = Pattern(BLOCK_BYTES), 0
    layout = PagedLayout(GEOMETRY, READS_TOGETHER, GEOMETRY.tokens_per_block)
    descriptor = create_memory(layout.bytes)
    with Client(daemon.socket, GEOMETRY, timeout_s=30) as client, os.fdopen(descriptor, "r+b", buffering=0) as file:
        memory = client.register_memory(
            descriptor,
            bytes=layout.bytes,
            page_count=READS_TOGETHER,
            page_tokens=GEOMETRY.tokens_per_block,
            layout=layout.layers,
        )
        picked = sorted(chance.sample(range(blocks), reads))
        keys = keys_of(client.namespace, blocks, picked)
        order = list(zip(picked, keys, strict=True))
        chance.shuffle(order)
        for first in range(0, reads, READS_TOGETHER):
            part = order[first : first + READS_TOGETHER]
            file.seek(0)
            file.write(bytes(layout.bytes))
            client.load([key for _, key in part], range(len(part)), memory, deadline_s=30).wait()
            for page, (number, _) in enumerate(part):
                start = layout.layers[0].offset + page * layout.layers[0].page_stride
                file.seek(start)
                wrong += file.read(BLOCK_BYTES) != pattern.block(number).tobytes()
    return wrong


def keys_of(namespace: NamespaceDigest, blocks: int, picked: list[int]) -> list[BlockKey]:
    """Keys of the blocks with these numbers, ascending."""
    wanted, found = set(picked), []
    for number, block in enumerate(names(namespace, blocks)):
        if number in wanted:
            found.append(block.key)
    assert all(len(key) == KEY_BYTES for key in found)
    return found
