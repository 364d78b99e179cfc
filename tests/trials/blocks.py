"""Chains of blocks whose bytes follow from their numbers, and a worker that can put and compare them."""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.client import Client
from flexkv_py.keys import BlockKey
from flexkvd.cli.pattern import Pattern
from tests.service.conftest import GEOMETRY, PAGES_PER_BLOCK, Worker

PAYLOAD_BYTES = GEOMETRY.block_payload_bytes
BLOCK_BYTES = GEOMETRY.block_bytes
_PATTERN = Pattern(PAYLOAD_BYTES)


def content(number: int) -> bytes:
    """The rows of block `number`."""
    return _PATTERN.block(number).tobytes()


def chain(client: Client, first: int, count: int) -> list[BlockKey]:
    """Keys of blocks `first`, `first + 1`, … as one chain from the root; chains of other numbers share nothing."""
    tokens = GEOMETRY.tokens_per_block
    return client.keys(range(first * tokens, (first + count) * tokens))


class Pages(Worker):
    """A worker's paged KV, addressed by places of one block each."""

    def put(self, place: int, number: int) -> None:
        """Write the rows of block `number` where a model would have computed them."""
        rows, at = content(number), 0
        for start, length in self._parts(place):
            self.bytes[start : start + length] = rows[at : at + length]
            at += length
        assert at == len(rows)

    def put_chain(self, place: int, first: int, count: int) -> None:
        for offset in range(count):
            self.put(place + offset, first + offset)

    def wipe(self, place: int, count: int = 1) -> None:
        """Zero some places, so that what was not loaded cannot pass for right."""
        for each in range(place, place + count):
            for start, length in self._parts(each):
                self.bytes[start : start + length] = bytes(length)

    def wrong(self, place: int, numbers: Sequence[int]) -> list[int]:
        """Those of `numbers`, expected from `place` on, whose bytes are not there."""
        return [number for at, number in enumerate(numbers, place) if self.block_bytes(at) != content(number)]

    def _parts(self, place: int) -> list[tuple[int, int]]:
        """Start and length of every page of a place, in the order of `block_bytes`."""
        first = place * PAGES_PER_BLOCK
        return [
            (layer.offset + page * layer.page_stride, layer.page_bytes)
            for layer in self.layout.layers
            for page in range(first, first + PAGES_PER_BLOCK)
        ]
