"""A worker process that holds a lease, keeps tickets in flight and says so; it goes on until it is killed.

`python -m tests.trials.busy_worker SOCKET FIRST`, where blocks from number FIRST on are its own.
"""

from __future__ import annotations

import sys
from itertools import count

from flexkv_py.client import Client

from .blocks import GEOMETRY, Pages, chain

HELD_BLOCKS = 64
SAVE_BLOCKS = 32
TICKETS_IN_FLIGHT = 8
READY = "ready"


def work(socket: str, first: int) -> None:
    """Save, hold, load and save on, never waiting for more than the oldest ticket."""
    with Client(socket, GEOMETRY) as client:
        pages = Pages(client, 2 * HELD_BLOCKS + TICKETS_IN_FLIGHT * SAVE_BLOCKS)
        pages.put_chain(0, first, HELD_BLOCKS)
        held = chain(client, first, HELD_BLOCKS)
        client.save(held, pages.pages(0, HELD_BLOCKS), pages.memory).wait()
        assert client.match(held, hold_s=600).lease is not None
        running = []
        for turn in count(1):
            place = 2 * HELD_BLOCKS + turn % TICKETS_IN_FLIGHT * SAVE_BLOCKS
            fresh = chain(client, first + HELD_BLOCKS + turn * SAVE_BLOCKS, SAVE_BLOCKS)
            running.append(client.save(fresh, pages.pages(place, SAVE_BLOCKS), pages.memory, ack="ssd"))
            running.append(client.load(held, pages.pages(HELD_BLOCKS, HELD_BLOCKS), pages.memory))
            if len(running) > TICKETS_IN_FLIGHT:
                running.pop(0).wait()
            if turn == TICKETS_IN_FLIGHT:
                print(READY, flush=True)  # noqa: T201 - whoever started it waits for this


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
