"""A worker process of the row path that attaches, reads, extends, detaches and acknowledges late, until it is killed.

`python -m tests.trials.busy_row_worker SOCKET SEED`. Every row it reads is compared with what it must be; a wrong one
ends the process with status 3. It says how many steps it has made, a line every few steps.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterable
from itertools import accumulate

from flexkv_py.client import Client, Pages, ReplayRefused, RowRequest
from flexkv_py.errors import ErrorCode, FlexKVError
from tests.service.conftest import GEOMETRY

from .blocks import Pages as Memory
from .blocks import chain, content

CHAINS, CHAIN_BLOCKS = 4, 24
"""What all workers read: together more than DRAM holds."""
PRESSURE_FIRST, PRESSURE_BLOCKS = 1 << 20, 8
"""What they save besides, each its own."""
REQUESTS_MAX = 3
READS_PER_STEP = 12
LATE_STEPS_MAX = 4
STEPS_PER_LINE = 20
WRONG = 3
LOST = (ErrorCode.ACK_OVERDUE, ErrorCode.DAEMON_LOST)
"""It was too slow: its session is over, it lets go of everything and begins anew."""

_LAYERS = [(plane, layer) for plane, each in enumerate(GEOMETRY.planes) for layer in each.layers]
_STARTS = dict(zip(_LAYERS, accumulate([0, *(GEOMETRY.piece_bytes(plane) for plane, _ in _LAYERS[:-1])]), strict=True))


def chunk_content(number: int, chunk: int) -> bytes:
    """What a chunk of block `number` must look like in the arena, without the padding."""
    rows, pieces = content(number), GEOMETRY.chunk_pieces[chunk]
    starts = [(_STARTS[piece.plane, piece.layer], piece.length) for piece in pieces]
    return b"".join(rows[start : start + length] for start, length in starts)


class Running:
    """One attached request and its table."""

    def __init__(self, client: Client, number: int, first: int, count: int) -> None:
        self.first, self.keys = first, chain(client, first, CHAIN_BLOCKS)
        self.request: RowRequest = client.attach(number, self.keys[:count])
        self.arena = client.map_arena()
        self.frames: dict[tuple[int, int], int] = {}
        self.in_flight: dict[tuple[int, int], int] = {}  # revoked, and still seen by steps until the acknowledgement
        self.wanted: set[tuple[int, int]] = set()
        self.late_steps = 0

    def apply(self, changes: Iterable[Pages], chance: random.Random) -> None:
        """Bring the table up to date; acknowledge now, or some steps later."""
        for pages in changes:
            for spot in struct.iter_unpack("<2I", pages.revoked):
                if (frame := self.frames.pop((spot[0], spot[1]), None)) is not None:
                    self.in_flight[spot[0], spot[1]] = frame
            for block, chunk, frame in struct.iter_unpack("<3I", pages.granted):
                self.frames[block, chunk] = frame
        self.late_steps = (self.late_steps or chance.randint(1, LATE_STEPS_MAX)) - 1
        if not self.late_steps:
            self.in_flight.clear()
            self.request.ack(self.request.version)

    def read(self, chance: random.Random) -> None:
        """Compare rows, those that an older step may still read before others."""
        spots = sorted(self.frames.items())
        seen = [*self.in_flight.items(), *chance.sample(spots, min(READS_PER_STEP, len(spots)))]
        for (block, chunk), frame in seen:
            right = chunk_content(self.first + block, chunk)
            if bytes(self.arena.view(frame, len(right))) != right:
                print(f"wrong rows: request {self.request.request}, block {block}, chunk {chunk}")  # noqa: T201
                sys.exit(WRONG)

    def report(self, chance: random.Random) -> tuple[bytes, bytes, bytes]:
        """Heat of what is there, what is absent, and whether what was absent has come."""
        number, replayed = self.request.request, b""
        spots = sorted(self.frames)
        heat = [(number, chunk, block, 1) for block, chunk in chance.sample(spots, min(4, len(spots)))]
        if self.wanted and self.wanted <= self.frames.keys():
            self.wanted, replayed = set(), struct.pack("<I", number)
        elif not self.wanted and chance.random() < 0.3:
            blocks = range(self.request.block_count)
            every = [(block, chunk) for block in blocks for chunk in range(GEOMETRY.chunk_count)]
            absent = sorted(set(every) - self.frames.keys())
            self.wanted = set(chance.sample(absent, min(2, len(absent))))
            absents = [(number, *spot) for spot in sorted(self.wanted)]
            return _packed("<4I", heat), _packed("<3I", absents), replayed
        return _packed("<4I", heat), b"", replayed


def _packed(form: str, entries: Iterable[tuple[int, ...]]) -> bytes:
    return b"".join(struct.pack(form, *entry) for entry in entries)


def work(socket: str, seed: int) -> None:
    """Step on and on."""
    chance = random.Random(seed)
    with Client(socket, GEOMETRY, timeout_s=30.0) as client:
        memory = Memory(client, CHAIN_BLOCKS + PRESSURE_BLOCKS)
        first = seed % CHAINS * CHAIN_BLOCKS
        memory.put_chain(0, first, CHAIN_BLOCKS)
        client.save(chain(client, first, CHAIN_BLOCKS), memory.pages(0, CHAIN_BLOCKS), memory.memory, ack="ssd").wait()
        running: dict[int, Running] = {}
        for step in range(1 << 30):
            try:
                turn(client, running, memory, chance, seed, step)
            except FlexKVError as error:
                if error.code not in LOST:
                    raise
                for each in running.values():
                    each.request.detach()
                running.clear()
                client.connect()
            if step % STEPS_PER_LINE == 0:
                print(step, flush=True)  # noqa: T201


def turn(
    client: Client, running: dict[int, Running], memory: Memory, chance: random.Random, seed: int, step: int
) -> None:
    """One step of the engine: turn requests over, take changes, read, report."""
    if len(running) < REQUESTS_MAX and chance.random() < 0.3:
        number, first = step, chance.randrange(CHAINS) * CHAIN_BLOCKS
        running[number] = Running(client, number, first, chance.randint(1, CHAIN_BLOCKS))
    for number, each in list(running.items()):
        each.apply(each.request.pages(), chance)
        each.read(chance)
        entries, absents, replayed = each.report(chance)
        client.report(entries, absents, replayed)
        left = each.keys[each.request.block_count :]
        if left and chance.random() < 0.1:
            each.request.extend(left[: chance.randint(1, len(left))])
        if chance.random() < 0.03:
            running.pop(number).request.detach()
    for message in client.poll():
        if isinstance(message, ReplayRefused) and message.request in running:
            running[message.request].wanted = set()
    if chance.random() < 0.2:
        fresh = PRESSURE_FIRST + (seed * 1000 + step) % 100_000 * PRESSURE_BLOCKS
        memory.put_chain(CHAIN_BLOCKS, fresh, PRESSURE_BLOCKS)
        pages = memory.pages(CHAIN_BLOCKS, PRESSURE_BLOCKS)
        client.save(chain(client, fresh, PRESSURE_BLOCKS), pages, memory.memory, deadline_s=0.2).wait()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
