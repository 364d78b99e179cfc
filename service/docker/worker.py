"""A worker of compose.yaml: saves a chain of blocks, loads it back into other pages, and compares the bytes.

`python worker.py SOCKET [--once]`. An engine does the same with the pages of its paged KV, see docs/embedding.md.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.geometry import Geometry, Plane

GEOMETRY = Geometry(planes=(Plane("kv", tuple(range(8)), 576),), tokens_per_block=64)
BLOCKS = 16
PAUSE_S = 5.0


def work(client: Client, turn: int) -> str:
    """One turn: what was saved before is a hit, else it is saved; either way it is loaded."""
    layout = PagedLayout(GEOMETRY, page_count=2 * BLOCKS, page_tokens=GEOMETRY.tokens_per_block)
    descriptor = create_memory(layout.bytes)
    try:
        with mmap.mmap(descriptor, layout.bytes) as pages:
            memory = client.register_memory(
                descriptor,
                bytes=layout.bytes,
                page_count=layout.page_count,
                page_tokens=layout.page_tokens,
                layout=layout.layers,
            )
            keys = client.keys(range(turn * 1_000, turn * 1_000 + BLOCKS * GEOMETRY.tokens_per_block))
            for layer in layout.layers:
                for page in range(BLOCKS):
                    start = layer.offset + page * layer.page_stride
                    pages[start : start + layer.page_bytes] = bytes([turn % 251 + 1]) * layer.page_bytes
            hit = client.match(keys).length
            saved = client.save(keys, list(range(BLOCKS)), memory, ack="dram").wait()
            loaded = client.load(keys, list(range(BLOCKS, 2 * BLOCKS)), memory).wait()
            for layer in layout.layers:
                start = layer.offset + BLOCKS * layer.page_stride
                assert pages[start : start + layer.page_bytes] == bytes([turn % 251 + 1]) * layer.page_bytes
            memory.unregister()
            return f"turn {turn}: {hit} of {BLOCKS} blocks were a hit, {saved.length} saved, {loaded.length} loaded"
    finally:
        os.close(descriptor)


def main(socket: str, *, once: bool) -> None:
    """Turns, until nobody wants any more."""
    with Client(socket, GEOMETRY) as client:
        for turn in range(1 if once else 1 << 30):
            print(work(client, turn), flush=True)  # noqa: T201 - its log
            if not once:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], once="--once" in sys.argv)
