"""A worker whose memory has gates behind its pages, and a look at what an open gate promises."""

from __future__ import annotations

from collections.abc import Sequence

from flexkv_py.client import Client, Gates, GateState
from flexkv_py.wire.gates import GATE_BYTES
from tests.service.conftest import GEOMETRY, Worker

ARRAY_BYTES = GATE_BYTES * GEOMETRY.chunk_count
CHUNKS = range(GEOMETRY.chunk_count)
LAYERS_OF_CHUNK = [{layer for group in groups for layer in group} for groups in GEOMETRY.chunk_groups]


class GatedWorker(Worker):
    """Paged KV with room for `arrays` arrays of gates, of which `gates` are the first."""

    def __init__(self, client: Client, block_count: int = 64, arrays: int = 1) -> None:
        super().__init__(client, block_count, spare_bytes=arrays * ARRAY_BYTES)
        self.arrays = [
            Gates.mapped(self.bytes, self.layout.bytes + number * ARRAY_BYTES, GEOMETRY.chunk_count)
            for number in range(arrays)
        ]
        self.gates = self.arrays[0]

    def chunk_bytes(self, block: int, chunk: int) -> bytes:
        """The rows of one chunk of the block in one place."""
        parts = []
        for layer in self.layout.layers:
            if layer.layer in LAYERS_OF_CHUNK[chunk]:
                for page in self.pages(block, 1):
                    start = layer.offset + page * layer.page_stride
                    parts.append(self.bytes[start : start + layer.page_bytes])
        return b"".join(parts)

    def rows(self, blocks: Sequence[int]) -> list[list[bytes]]:
        """Chunk by chunk, what these places hold."""
        return [[self.chunk_bytes(block, chunk) for block in blocks] for chunk in CHUNKS]


def states(gates: Gates) -> list[GateState]:
    return [gates.state(chunk) for chunk in CHUNKS]
