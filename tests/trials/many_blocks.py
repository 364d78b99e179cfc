"""A directory with very many small records: SIGKILL, start, ready in seconds, small in memory, and every read right.

The records are written by the format's own functions; the daemon then lives on the directory twice, and what
counts is the second start, after the kill.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.geometry import Geometry, Plane

from .fleet import DaemonProcess
from .million import CHUNK_BYTES, content_of, key_of, make

GEOMETRY = Geometry(planes=(Plane("kv", (0,), 64),), tokens_per_block=64, model="many")
READS_TOGETHER = 64


def many_blocks(folder: Path, *, blocks: int = 1_000_000, reads: int = 10_000, seed: int = 1) -> dict[str, float]:
    """Write `blocks` records, kill, start, and load `reads` of them at random."""
    assert GEOMETRY.block_bytes == CHUNK_BYTES
    assert reads <= blocks, f"{reads} reads of different blocks, but {blocks} blocks: choose fewer reads"
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": "16GiB", "free_space_reserve_bytes": "1MiB"}}
    with DaemonProcess(folder, tables) as daemon:
        with Client(daemon.socket, GEOMETRY) as client:
            namespace = client.namespace
        empty_bytes = daemon.rss_bytes()
        daemon.stop()
        make(folder / "ssd", blocks, namespace)
        daemon.start()
        daemon.kill()
        begun = time.monotonic()
        daemon.start()
        ready_s, cpu_s = time.monotonic() - begun, daemon.cpu_s()
        found = daemon.planner()["blocks"]
        assert found == blocks, f"{blocks} records were written, {found} blocks were found"
        index_bytes = (daemon.rss_bytes() - empty_bytes) / blocks
        begun = time.monotonic()
        wrong = read_at_random(daemon, random.Random(seed).sample(range(blocks), reads))
        assert wrong == 0, f"{wrong} of {reads} blocks came back wrong or not at all"
        return {
            "blocks": blocks,
            "ready_s": ready_s,
            "CPU seconds until ready": cpu_s,
            "resident bytes per block": index_bytes,
            "random reads, all right": reads,
            "reads per second": reads / (time.monotonic() - begun),
        }


def read_at_random(daemon: DaemonProcess, picked: list[int]) -> int:
    """Load these blocks, many at a time; how many were wrong or missing."""
    wrong = 0
    layout = PagedLayout(GEOMETRY, READS_TOGETHER, GEOMETRY.tokens_per_block)
    descriptor = create_memory(layout.bytes)
    [layer] = layout.layers
    with Client(daemon.socket, GEOMETRY, timeout_s=30) as client, os.fdopen(descriptor, "r+b", buffering=0):
        memory = client.register_memory(
            descriptor,
            bytes=layout.bytes,
            page_count=READS_TOGETHER,
            page_tokens=GEOMETRY.tokens_per_block,
            layout=layout.layers,
        )
        for first in range(0, len(picked), READS_TOGETHER):
            part = picked[first : first + READS_TOGETHER]
            os.pwrite(descriptor, bytes(layout.bytes), 0)
            client.load([key_of(number) for number in part], range(len(part)), memory, deadline_s=30).wait()
            for page, number in enumerate(part):
                found = os.pread(descriptor, CHUNK_BYTES, layer.offset + page * layer.page_stride)
                wrong += found != content_of(number)
    return wrong
