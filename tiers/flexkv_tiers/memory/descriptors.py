"""How copies of one chunk of many blocks become arrays that a device's driver takes. Pure arithmetic.

Three parallel arrays of addresses and lengths, in bytes. What touches on both sides is merged; where a driver
takes no arrays, runs of even spacing become rectangles. `lanes.cuda` asks, `memory.cuda` keeps the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexkv_tiers.cuda.base import Numbers, Rectangle
from flexkv_tiers.memory.layout import Strand

PITCH_BYTES_MAX = (1 << 31) - 1
"""Spacing of a rectangle's rows: what every device takes."""
ROWS_MAX = 65_535
"""Rows of one rectangle."""

_Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PieceTable:
    """The pieces of one chunk, one per plane and layer: where its pages lie, each array of shape [pieces].

    Page p of piece i is `page_bytes[i]` long and lies at `outside[i] + p * page_stride[i]`; in the frame the
    pages of a block follow each other from `inside[i]` on.
    """

    outside: _Addresses
    page_stride: _Addresses
    page_bytes: _Addresses
    inside: _Addresses


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Copies between worker memory (`outside`) and frames (`inside`): same length, no order, none overlaps another."""

    outside: Numbers
    inside: Numbers
    lengths: Numbers


def piece_table(strands: Sequence[Strand], address_of: Callable[[int], int]) -> PieceTable:
    """The pieces of one chunk's strands; `address_of` says where an offset of the registered memory lies."""
    rows = [
        (
            address_of(strand.offset + layer * strand.layer_stride),
            strand.page_stride,
            strand.page_bytes,
            strand.frame_offset + layer * strand.piece_bytes,
        )
        for strand in strands
        for layer in range(strand.layer_count)
    ]
    return PieceTable(*np.array(rows, np.int64).T.copy())


def describe(table: PieceTable, frames: Sequence[int], pages: npt.NDArray[np.uint32]) -> Descriptors:
    """The copies of one chunk of some blocks.

    `frames` are the addresses of the blocks' frames, shape [blocks]; `pages` their pages, [blocks, pages per block].
    """
    count = pages.shape[1]
    shape = (len(frames), len(table.outside), count)
    steps = pages.astype(np.int64)[:, None, :] * table.page_stride[None, :, None]
    outside = (table.outside[None, :, None] + steps).reshape(-1)
    starts = table.inside[:, None] + np.arange(count) * table.page_bytes[:, None]
    inside = (np.asarray(frames, np.int64)[:, None, None] + starts[None]).reshape(-1)
    lengths = np.broadcast_to(table.page_bytes[None, :, None], shape).reshape(-1)
    return _merged(outside, inside, lengths, len(table.outside) * count)


def _merged(outside: _Addresses, inside: _Addresses, lengths: _Addresses, per_block: int) -> Descriptors:
    """Neighbours in the arrays that touch on both sides become one copy, unless they are of two blocks.

    Two frames may touch where one pinned part of the arena ends and the next begins, which no copy may span.
    """
    apart = (outside[:-1] + lengths[:-1] != outside[1:]) | (inside[:-1] + lengths[:-1] != inside[1:])
    begins = np.concatenate(([True], apart))
    begins[::per_block] = True
    first = np.flatnonzero(begins)
    return Descriptors(
        outside[first].astype(np.uint64),
        inside[first].astype(np.uint64),
        np.add.reduceat(lengths, first).astype(np.uint64),
    )


def rectangles(targets: Numbers, sources: Numbers, lengths: Numbers) -> Iterator[Rectangle]:
    """The same copies, as few rectangles as a greedy walk finds."""
    rows = list(zip(targets.tolist(), sources.tolist(), lengths.tolist(), strict=True))
    start = 0
    while start < len(rows):
        target, source, width = rows[start]
        pitches, end = (0, 0), start + 1
        if end < len(rows):
            pitches = (rows[end][0] - target, rows[end][1] - source)
        if all(width <= pitch <= PITCH_BYTES_MAX for pitch in pitches):
            while end < min(len(rows), start + ROWS_MAX) and rows[end] == _row(rows[start], pitches, end - start):
                end += 1
        else:
            pitches = (0, 0)
        yield Rectangle(target, source, width, end - start, *(pitches if end - start > 1 else (0, 0)))
        start = end


def _row(first: tuple[int, int, int], pitches: tuple[int, int], row: int) -> tuple[int, int, int]:
    target, source, width = first
    return target + row * pitches[0], source + row * pitches[1], width
