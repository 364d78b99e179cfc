"""Worker memory for tests: geometries, layouts as engines have them, and a plain reference of a copy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from random import Random

from flexkv_py.geometry import Geometry, Plane
from flexkv_py.wire.messages import LayerLayout, RegisterMemory
from flexkv_tiers.memory import HostMemory, sealed_memfd

GEOMETRY = Geometry(
    (Plane("kv", tuple(range(6)), 40), Plane("index", (0, 1, 3, 4, 5), 12, tokens_per_row=4)),
    tokens_per_block=16,
    layer_groups=((0,), (1, 2), (3,), (4, 5)),
    chunk_count_max=4,
    chunk_bytes_min=512,
)
PAGE_COUNT = 24

Layout = Callable[[Geometry, int], RegisterMemory]


def layer_first(geometry: Geometry, page_tokens: int) -> RegisterMemory:
    """One tensor [pages, rows] per plane and layer: layers of a plane are evenly spaced."""
    layout, offset = [], 0
    for plane, layer, length in _entries(geometry, page_tokens):
        layout.append(LayerLayout(plane, layer, offset, length, length))
        offset += PAGE_COUNT * length
    return RegisterMemory(1, offset, PAGE_COUNT, page_tokens, layout)


def page_first(geometry: Geometry, page_tokens: int) -> RegisterMemory:
    """One tensor [pages, planes, layers, rows]."""
    stride = sum(length for *_, length in _entries(geometry, page_tokens)) + 24
    layout, offset = [], 8
    for plane, layer, length in _entries(geometry, page_tokens):
        layout.append(LayerLayout(plane, layer, offset, stride, length))
        offset += length
    return RegisterMemory(1, 8 + PAGE_COUNT * stride, PAGE_COUNT, page_tokens, layout)


def descending(geometry: Geometry, page_tokens: int) -> RegisterMemory:
    """Layer-first with the last layer at the lowest address: strides are negative."""
    message = layer_first(geometry, page_tokens)
    for entry in message.layout:
        entry.offset = message.bytes - entry.offset - PAGE_COUNT * entry.page_stride
    return message


def scattered(geometry: Geometry, page_tokens: int) -> RegisterMemory:
    """Tensors at no regular distance, pages padded: nothing merges."""
    random, layout, offset = Random(5), [], 0
    entries = _entries(geometry, page_tokens)
    random.shuffle(entries)
    for plane, layer, length in entries:
        offset += random.randrange(1, 500)
        stride = length + random.randrange(100)
        layout.append(LayerLayout(plane, layer, offset, stride, length))
        offset += PAGE_COUNT * stride
    return RegisterMemory(1, offset, PAGE_COUNT, page_tokens, layout)


LAYOUTS: list[Layout] = [layer_first, page_first, descending, scattered]


def window(geometry: Geometry) -> RegisterMemory:
    """Whole blocks as stored."""
    return RegisterMemory(
        1, PAGE_COUNT * geometry.block_bytes, PAGE_COUNT, geometry.tokens_per_block, layout=[], kind="window"
    )


class Worker:
    """A worker's own side of one registered memory: its memfd and its mapping of it."""

    def __init__(self, message: RegisterMemory, geometry: Geometry = GEOMETRY) -> None:
        self.message = message
        self.descriptor = sealed_memfd("test-worker", message.bytes)
        self.bytes = mmap.mmap(self.descriptor, message.bytes)
        self.memory = HostMemory(self.descriptor, message, geometry)

    def fill(self, seed: int) -> None:
        self.bytes[:] = Random(seed).randbytes(len(self.bytes))

    def close(self) -> None:
        self.memory.close()
        self.bytes.close()
        os.close(self.descriptor)


def stored_chunk(geometry: Geometry, message: RegisterMemory, raw: bytes, pages: list[int], chunk: int) -> bytes:
    """The reference: one chunk of one block as it must be stored, gathered page by page."""
    if message.kind == "window":
        start = pages[0] * geometry.block_bytes + sum(geometry.chunk_bytes[:chunk])
        payload = raw[start : start + geometry.chunk_payload_bytes[chunk]]
        return payload.ljust(geometry.chunk_bytes[chunk], b"\0")
    places = {(entry.plane, entry.layer): entry for entry in message.layout}
    rows = b""
    for piece in geometry.chunk_pieces[chunk]:
        place = places[piece.plane, piece.layer]
        starts = [place.offset + page * place.page_stride for page in pages]
        rows += b"".join(raw[start : start + place.page_bytes] for start in starts)
    return rows.ljust(geometry.chunk_bytes[chunk], b"\0")


def _entries(geometry: Geometry, page_tokens: int) -> list[tuple[int, int, int]]:
    """Plane, layer and bytes of a page, for every layer of every plane."""
    return [
        (index, layer, page_tokens // plane.tokens_per_row * plane.row_bytes)
        for index, plane in enumerate(geometry.planes)
        for layer in plane.layers
    ]
