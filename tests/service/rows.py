"""What an engine on the row path keeps, for tests: a page table, the mapped arena, and what each row must hold."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from flexkv_py.client import ArenaMap, Client, Pages, RowRequest
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey

from .conftest import GEOMETRY, DaemonThread, Worker

BLOCK_TOKENS, CHUNKS = GEOMETRY.tokens_per_block, GEOMETRY.chunk_count
SMALL = {"bytes": "1MiB", "segment_bytes": "1MiB", "huge_pages": False}
SMALL_BLOCKS = (1 << 20) // GEOMETRY.block_bytes
SECONDS_MAX = 10.0


class Table:
    """A request's page table as its messages make it: (block, chunk) → frame."""

    def __init__(self, arena: ArenaMap, version: int = 0) -> None:
        self.arena = arena
        self.version = version
        self.frames: dict[tuple[int, int], int] = {}
        self.revoked: dict[tuple[int, int], int] = {}  # where what was revoked lay

    def apply(self, changes: Iterable[Pages]) -> None:
        for pages in changes:
            assert pages.version == self.version + 1
            self.version = pages.version
            for block, chunk in struct.iter_unpack("<2I", pages.revoked):
                if (block, chunk) in self.frames:  # else it was granted and revoked before anybody was told
                    self.revoked[block, chunk] = self.frames.pop((block, chunk))
            for block, chunk, frame in struct.iter_unpack("<3I", pages.granted):
                assert (block, chunk) not in self.frames
                self.frames[block, chunk] = frame

    def read(self, block: int, chunk: int) -> bytes:
        """The rows of a chunk, from where it was granted."""
        return self.bytes_at(self.frames[block, chunk], chunk)

    def bytes_at(self, frame: int, chunk: int) -> bytes:
        return bytes(self.arena.view(frame, GEOMETRY.chunk_bytes[chunk]))


def chunk_of(worker: Worker, block: int, chunk: int) -> bytes:
    """What a chunk of the block in these pages of the worker must look like in the arena: padded with zeros."""
    places = {(layout.plane, layout.layer): layout for layout in worker.layout.layers}
    rows = bytearray()
    for piece in GEOMETRY.chunk_pieces[chunk]:
        layout = places[piece.plane, piece.layer]
        for page in worker.pages(block, 1):
            start = layout.offset + page * layout.page_stride
            rows += worker.bytes[start : start + layout.page_bytes]
    return bytes(rows).ljust(GEOMETRY.chunk_bytes[chunk], b"\0")


def tokens(seed: int, block_count: int) -> range:
    return range(seed * 1_000_000, seed * 1_000_000 + block_count * BLOCK_TOKENS)


def save(worker: Worker, seed: int, block_count: int, first_page_block: int = 0, ack: str = "dram") -> list[BlockKey]:
    """Save blocks of a chain of its own, from these pages; returns their keys."""
    keys = worker.client.keys(tokens(seed, block_count))
    ticket = worker.client.save(keys, worker.pages(first_page_block, block_count), worker.memory, ack=ack)
    assert {outcome.value for outcome in ticket.wait().outcomes} <= {"stored", "present"}
    return keys


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.005)


def follow(client: Client, request: RowRequest, table: Table, condition: Callable[[], bool]) -> None:
    """Apply page changes, without acknowledging, until the condition holds."""
    end_s = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end_s, "it did not come"
        client.wait_for_pages(0.1)
        table.apply(request.pages())


def refused(code: ErrorCode, call: Callable[..., Any], *arguments: Any, **named: Any) -> FlexKVError:
    with pytest.raises(FlexKVError) as refusal:
        call(*arguments, **named)
    assert refusal.value.code is code, refusal.value
    return refusal.value


def attach(client: Client, number: int, keys: list[BlockKey]) -> tuple[RowRequest, Table]:
    request = client.attach(number, keys)
    return request, Table(client.map_arena(), request.version)


def used_pages(daemon: DaemonThread) -> int:
    return daemon.call(lambda: daemon.parts.planner.state.frames.used_pages)


def readers(daemon: DaemonThread) -> int:
    return daemon.call(lambda: len(daemon.parts.row_path.readers))
