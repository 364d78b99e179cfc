"""Frames of a real arena, lent to one operation at a time; poisoned while nobody has them.

Whoever reads too early meets poison, and I/O into frames that were given back is noticed when they are lent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.core.messages import BlockName
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import FrameSpan
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.memory import Arena
from tests.sim.names import block_bytes
from tests.sim.violation import Violation

POISON = b"\xde" * ALIGN_BYTES
ROOM_PAGES = 8
"""Of one operation: as many as the largest block has."""


class LogFrames:
    """Room for `count` operations."""

    def __init__(self, count: int) -> None:
        self.arena = Arena(count * ROOM_PAGES * ALIGN_BYTES, 1, huge_pages=False)
        self._free = list(range(0, count * ROOM_PAGES, ROOM_PAGES))
        for first in self._free:
            self._poison(first)

    def take(self, cut: Sequence[int]) -> list[FrameSpan]:
        """Frames for a block cut like this."""
        first = self._free.pop()
        if self._room(first) != POISON * ROOM_PAGES:
            raise Violation("bytes arrived in frames that had been given back")
        spans = []
        for length in cut:
            spans.append(FrameSpan(first, length))
            first += length // ALIGN_BYTES
        return spans

    def fill(self, name: BlockName, cut: Sequence[int]) -> list[FrameSpan]:
        """Frames with this block's bytes and checksums, as a save leaves them."""
        spans = self.take(cut)
        for chunk, span in enumerate(spans):
            data = right_bytes(name, chunk, span.length)
            self.arena.view(span.frame, span.length)[:] = data
            self.arena.set_checksum(span.frame, chunk_checksum(name.key, chunk, data))
        return spans

    def give(self, spans: Sequence[FrameSpan]) -> None:
        self._poison(spans[0].frame)
        self._free.append(spans[0].frame)

    def check(self, name: BlockName, chunk: int, span: FrameSpan) -> None:
        """A chunk that was said to have landed is this block's, and its checksum lies with it."""
        data = right_bytes(name, chunk, span.length)
        if self.arena.view(span.frame, span.length) != data:
            raise Violation(f"chunk {chunk} was read with wrong bytes", name)
        if self.arena.checksum(span.frame) != chunk_checksum(name.key, chunk, data):
            raise Violation(f"chunk {chunk} was read with a wrong checksum", name)

    def close(self) -> None:
        self.arena.close()

    def _room(self, first: int) -> memoryview:
        return self.arena.view(first, ROOM_PAGES * ALIGN_BYTES)

    def _poison(self, first: int) -> None:
        self._room(first)[:] = POISON * ROOM_PAGES


def right_bytes(name: BlockName, chunk: int, length: int) -> bytes:
    """What a chunk of this block must hold."""
    return block_bytes(name.namespace, name.shard, name.key, chunk, length)
