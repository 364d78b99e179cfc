"""All size arithmetic: planes, chunks, frames, records.

A *block* is the KV of `tokens_per_block` tokens, all layers, all planes. It is cut into *chunks*: runs
of whole consecutive layer groups with all their planes. A chunk is laid out `[plane][layer][row]`,
starts on 4 KiB and is padded to 4 KiB, in memory and in records alike, so direct I/O needs no copy
between. This module is the only place that converts between counts, indexes and bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError

ALIGN_BYTES = 4096
"""Alignment of frames and of everything in a record: the direct-I/O unit."""

LAYERS_MAX = 512
PLANES_MAX = 16
CHUNKS_MAX = 64
TOKENS_PER_BLOCK_MAX = 4096
ROW_BYTES_MAX = 1 << 20
BLOCK_BYTES_MAX = 1 << 30


class NeedKind(StrEnum):
    """When a plane's rows are needed for a block to be usable at a position."""

    ALL = "all"
    TRAILING = "trailing"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Plane:
    """One kind of row: which layers have it, how many tokens share a row, how long a row is.

    `row_bytes` is the length in bytes of one row of one layer; `tokens_per_row` is 1, 4, 128 …;
    `need` says when the plane must be there (`trailing` with `need_tokens` for a sliding window).
    """

    name: str
    layers: tuple[int, ...]
    row_bytes: int
    tokens_per_row: int = 1
    need: NeedKind = NeedKind.ALL
    need_tokens: int = 0


@dataclass(frozen=True)
class Piece:
    """Where one layer of one plane lies within a chunk: bytes from the chunk's start."""

    plane: int
    layer: int
    offset: int
    length: int


@dataclass(frozen=True)
class Geometry:
    """What a worker's KV looks like; declared at connect and fingerprinted into the namespace.

    `layer_groups` lists layers that share one indexer selection, in layer order; empty means every
    layer is its own group. `chunk_count_max` and `chunk_bytes_min` steer how a block is cut: at most
    that many chunks, none smaller where the block allows.
    """

    planes: tuple[Plane, ...]
    tokens_per_block: int = 64
    layer_groups: tuple[tuple[int, ...], ...] = ()
    dtype: str = "bfloat16"
    model: str = ""
    revision: str = ""
    chunk_count_max: int = 8
    chunk_bytes_min: int = 256 * 1024

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer groups, given or one per layer, covering every layer once in order."""
        if self.layer_groups:
            return self.layer_groups
        layers = sorted({layer for plane in self.planes for layer in plane.layers})
        return tuple((layer,) for layer in layers)

    def rows_per_block(self, plane: int) -> int:
        return self.tokens_per_block // self.planes[plane].tokens_per_row

    def piece_bytes(self, plane: int) -> int:
        """Bytes of one layer of one plane in one block."""
        return self.rows_per_block(plane) * self.planes[plane].row_bytes

    @cached_property
    def chunk_groups(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Layer groups of each chunk.

        Groups are dealt out in order: each chunk is closed as soon as it has reached its even share
        of the bytes, so chunks are of about equal size whatever the groups weigh.
        """
        weights = [self._group_bytes(group) for group in self.groups]
        total = sum(weights)
        count = max(1, min(self.chunk_count_max, total // self.chunk_bytes_min, len(weights)))
        chunks: list[list[tuple[int, ...]]] = [[]]
        done = 0
        for at, group in enumerate(self.groups):
            groups_left = len(weights) - at
            full = done * count >= total * len(chunks)
            must = groups_left <= count - len(chunks)  # or the last chunks would stay empty
            if chunks[-1] and len(chunks) < count and (full or must):
                chunks.append([])
            chunks[-1].append(group)
            done += weights[at]
        return tuple(tuple(chunk) for chunk in chunks)

    @cached_property
    def chunk_pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """Pieces of each chunk in layout order `[plane][layer]`, packed without gaps."""
        chunks = []
        for groups in self.chunk_groups:
            layers = {layer for group in groups for layer in group}
            offset, pieces = 0, []
            for plane_index, plane in enumerate(self.planes):
                length = self.piece_bytes(plane_index)
                for layer in plane.layers:
                    if layer in layers:
                        pieces.append(Piece(plane_index, layer, offset, length))
                        offset += length
            chunks.append(tuple(pieces))
        return tuple(chunks)

    @cached_property
    def chunk_payload_bytes(self) -> tuple[int, ...]:
        """Bytes of rows in each chunk, without padding."""
        return tuple(pieces[-1].offset + pieces[-1].length for pieces in self.chunk_pieces)

    @cached_property
    def chunk_bytes(self) -> tuple[int, ...]:
        """Bytes of each chunk as stored: padded to 4 KiB with zeros."""
        return tuple(align_up(length) for length in self.chunk_payload_bytes)

    @property
    def chunk_count(self) -> int:
        return len(self.chunk_groups)

    @property
    def frame_bytes(self) -> int:
        """Room one chunk takes in the arena: the largest chunk, whole 4 KiB pages."""
        return max(self.chunk_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block as stored, without the record's header."""
        return sum(self.chunk_bytes)

    @property
    def block_payload_bytes(self) -> int:
        """Bytes of the rows of one block, without padding."""
        return sum(self.chunk_payload_bytes)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 over everything that decides what a block's bytes mean and how they lie."""
        parts = {
            "planes": [[p.name, p.layers, p.row_bytes, p.tokens_per_row, p.need, p.need_tokens] for p in self.planes],
            "groups": self.groups,
            "chunks": self.chunk_groups,
            "tokens": self.tokens_per_block,
            "dtype": self.dtype,
            "model": self.model,
            "revision": self.revision,
        }
        return hashlib.sha256(msgspec.msgpack.encode(parts, order="deterministic")).digest()

    def _group_bytes(self, group: tuple[int, ...]) -> int:
        return sum(
            self.piece_bytes(index) * sum(layer in plane.layers for layer in group)
            for index, plane in enumerate(self.planes)
        )


def align_up(length: int, align: int = ALIGN_BYTES) -> int:
    """Smallest multiple of `align` that is at least `length`."""
    return -(-length // align) * align


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_GEOMETRY, why)


def _check(geometry: Geometry) -> None:
    """A geometry comes from a stranger: nothing in it is believed before it is checked."""
    planes, tokens = geometry.planes, geometry.tokens_per_block
    if not 1 <= len(planes) <= PLANES_MAX:
        raise _refuse(f"a geometry has 1 to {PLANES_MAX} planes, this one has {len(planes)}")
    if len({plane.name for plane in planes}) != len(planes):
        raise _refuse("two planes have the same name: give each its own")
    if not 1 <= tokens <= TOKENS_PER_BLOCK_MAX:
        raise _refuse(f"tokens_per_block is {tokens}: use 1 to {TOKENS_PER_BLOCK_MAX}")
    if not 1 <= geometry.chunk_count_max <= CHUNKS_MAX:
        raise _refuse(f"chunk_count_max is {geometry.chunk_count_max}: use 1 to {CHUNKS_MAX}")
    if not 1 <= geometry.chunk_bytes_min <= BLOCK_BYTES_MAX:
        raise _refuse(f"chunk_bytes_min is {geometry.chunk_bytes_min}: use 1 to {BLOCK_BYTES_MAX}")
    for plane in planes:
        _check_plane(plane, tokens)
    layers = sorted({layer for plane in planes for layer in plane.layers})
    if geometry.layer_groups:
        grouped = [layer for group in geometry.layer_groups for layer in group]
        if grouped != layers or not all(geometry.layer_groups):
            raise _refuse("layer_groups must list every layer of the planes once, in ascending order, no group empty")
    total = sum(geometry.piece_bytes(index) * len(plane.layers) for index, plane in enumerate(planes))
    if total > BLOCK_BYTES_MAX:
        raise _refuse(f"one block would take {total} bytes, the limit is {BLOCK_BYTES_MAX}: lower tokens_per_block")


def _check_plane(plane: Plane, tokens_per_block: int) -> None:
    name = plane.name
    if not 1 <= len(name) <= 64:
        raise _refuse(f"a plane's name has 1 to 64 characters, {name[:64]!r} has {len(name)}")
    if not 1 <= len(plane.layers) <= LAYERS_MAX:
        raise _refuse(f"plane {name!r} covers {len(plane.layers)} layers: use 1 to {LAYERS_MAX}")
    if list(plane.layers) != sorted(set(plane.layers)) or not 0 <= plane.layers[0] <= plane.layers[-1] < LAYERS_MAX:
        raise _refuse(f"plane {name!r}: list its layers once each, ascending, below {LAYERS_MAX}")
    if not 1 <= plane.row_bytes <= ROW_BYTES_MAX:
        raise _refuse(f"plane {name!r} has rows of {plane.row_bytes} bytes: use 1 to {ROW_BYTES_MAX}")
    if plane.tokens_per_row < 1 or tokens_per_block % plane.tokens_per_row:
        raise _refuse(
            f"plane {name!r}: {plane.tokens_per_row} tokens per row do not divide a block of {tokens_per_block} tokens"
        )
    if plane.need is not NeedKind.ALL:
        raise _refuse(f"plane {name!r} needs {plane.need.value!r}: this version keeps planes of need 'all' only")
