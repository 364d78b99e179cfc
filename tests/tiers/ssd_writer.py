"""A process that writes blocks to an SSD tier until it is killed, telling what was acknowledged.

`python ssd_writer.py DIRECTORY FIRST_NUMBER`: prints `ready`, then one line `+N` after each
acknowledged write and `-N` before each drop begins.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from flexkv_tiers.ssd import SsdStore
from tests.tiers.contract import Frames, block, copy_into

LENGTHS = (16 * 1024, 64 * 1024, 8 * 1024)
CAPACITY_BYTES = 32 << 20
WRITERS = 4


def open_store(directory: Path, frames: Frames) -> SsdStore:
    """A store that rewrites rather than lets go: what it lets go of by itself nobody here hears of."""
    return SsdStore(directory, CAPACITY_BYTES, frames.arena, segment_bytes=2 << 20, amplification_max=10.0)


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def write_for_ever(store: SsdStore, frames: Frames, first: int) -> None:
    """Write block after block; of every three, drop the first, so that segments are used again."""
    source = frames.take(LENGTHS)
    for number in count(first, WRITERS):
        copy_into(frames, source, block(number), LENGTHS)
        location = await store.write(block(number), source)
        tell(f"+{number}")
        if number // WRITERS % 3:
            tell(f"-{number}")
            await store.drop(block(number), location)


async def main() -> None:
    frames = Frames()
    store = open_store(Path(sys.argv[1]), frames)
    await store.start()
    async for _ in store.found():
        pass
    tell("ready")
    first = int(sys.argv[2])
    await asyncio.gather(*(write_for_ever(store, frames, first + at) for at in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main())
