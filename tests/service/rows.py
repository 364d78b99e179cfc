"""What an engine on the row path keeps, for tests: a page table, the mapped arena, and what each row must hold."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from flexkv_py.client import ArenaMap, Pages

from .conftest import GEOMETRY, Worker


class Table:
    """A request's page table as its messages make it: (block, chunk) → frame."""

    def __init__(self, arena: ArenaMap) -> None:
        self.arena = arena
        self.version = 0
        self.frames: dict[tuple[int, int], int] = {}
        self.revoked: dict[tuple[int, int], int] = {}  # where what was revoked lay

    def apply(self, changes: Iterable[Pages]) -> None:
        for pages in changes:
            assert pages.version == self.version + 1
            self.version = pages.version
            for block, chunk in struct.iter_unpack("<2I", pages.revoked):
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
