"""How a chunk's rows lie in worker memory: checks a declared layout and cuts it into strided copies.

Pure arithmetic, no memory is touched. A layout comes from a stranger: nothing in it is believed
before it is checked. `WorkerMemory` calls it once at registration; the lanes then only read the
strands of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Piece
from flexkv_py.wire.messages import LayerLayout, RegisterMemory

MEMORY_BYTES_MAX = 1 << 46
PAGE_COUNT_MAX = 1 << 32
"""Page numbers travel as u32."""

PAGED, WINDOW = "paged", "window"


@dataclass(frozen=True, slots=True)
class Strand:
    """Layers of one plane in one chunk whose places in worker memory are evenly spaced: one copy.

    In worker memory, page p of layer i (of `layer_count`) is `page_bytes` long and starts at
    `offset + i * layer_stride + p * page_stride`. In the frame, layer i starts at
    `frame_offset + i * piece_bytes` and its pages follow each other. All in bytes.
    """

    offset: int
    layer_count: int
    layer_stride: int
    page_stride: int
    page_bytes: int
    frame_offset: int
    piece_bytes: int


@dataclass(frozen=True, slots=True)
class PageRun:
    """`count` pages of one block, `step` apart from page `first`; the first is the block's page `start`."""

    start: int
    first: int
    count: int
    step: int


def page_runs(pages: Sequence[int]) -> Iterator[PageRun]:
    """Cut one block's pages into as few evenly spaced runs as a greedy walk finds.

    >>> list(page_runs([4, 5, 6, 9]))
    [PageRun(start=0, first=4, count=3, step=1), PageRun(start=3, first=9, count=1, step=0)]
    """
    start = 0
    while start < len(pages):
        end = start + 1
        step = pages[end] - pages[start] if end < len(pages) else 0
        while end < len(pages) and pages[end] - pages[end - 1] == step:
            end += 1
        yield PageRun(start, pages[start], end - start, step)
        start = end


def check_layout(geometry: Geometry, message: RegisterMemory) -> None:
    """Refuse a registration whose numbers contradict the geometry (GEOMETRY_MISMATCH) or themselves (BAD_ARGUMENT)."""
    if not 1 <= message.bytes <= MEMORY_BYTES_MAX:
        raise _refuse(f"the memory has {message.bytes} bytes: announce 1 to {MEMORY_BYTES_MAX}")
    if not 1 <= message.page_count <= PAGE_COUNT_MAX:
        raise _refuse(f"the memory has {message.page_count} pages: announce 1 to {PAGE_COUNT_MAX}")
    if message.page_tokens < 1 or geometry.tokens_per_block % message.page_tokens:
        raise _refuse(
            f"pages of {message.page_tokens} tokens do not divide a block of {geometry.tokens_per_block} tokens: "
            "use a page size that does, or connect with a geometry whose blocks fit the pages"
        )
    if message.kind == WINDOW:
        _check_window(geometry, message)
    elif message.kind == PAGED:
        _check_paged(geometry, message)
    else:
        raise _refuse(f"memory of kind {message.kind[:32]!r} is unknown: use {PAGED!r} or {WINDOW!r}")


def _check_window(geometry: Geometry, message: RegisterMemory) -> None:
    if message.layout:
        raise _refuse("a window holds whole blocks as stored and has no layout of layers: send an empty one")
    if message.page_tokens != geometry.tokens_per_block:
        raise _refuse(f"a page of a window is one block: announce page_tokens {geometry.tokens_per_block}")
    needed = message.page_count * geometry.block_bytes
    if needed > message.bytes:
        raise _refuse(
            f"a window of {message.page_count} blocks needs {needed} bytes, {message.bytes} were announced: "
            "announce fewer pages or more memory"
        )


def _check_paged(geometry: Geometry, message: RegisterMemory) -> None:
    expected = sorted((index, layer) for index, plane in enumerate(geometry.planes) for layer in plane.layers)
    listed = sorted((entry.plane, entry.layer) for entry in message.layout)
    if listed != expected:
        wrong = next((ours for ours, theirs in zip(expected, listed, strict=False) if ours != theirs), None)
        raise _mismatch(
            f"the layout must list every layer of every plane of the geometry exactly once: {len(expected)} entries, "
            f"this one has {len(listed)}" + ("" if wrong is None else f"; see plane {wrong[0]}, layer {wrong[1]}")
        )
    for entry in message.layout:
        _check_entry(geometry, message, entry)


def _check_entry(geometry: Geometry, message: RegisterMemory, entry: LayerLayout) -> None:
    plane, where = geometry.planes[entry.plane], f"plane {entry.plane}, layer {entry.layer}"
    rows, rest = divmod(message.page_tokens, plane.tokens_per_row)
    if rest:
        raise _refuse(
            f"{where}: a page of {message.page_tokens} tokens ends inside a row of {plane.tokens_per_row} tokens: "
            "use pages of whole rows"
        )
    if entry.page_bytes != rows * plane.row_bytes:
        raise _mismatch(
            f"{where}: a page has {rows} rows of {plane.row_bytes} bytes, so page_bytes is {rows * plane.row_bytes}, "
            f"not {entry.page_bytes} (padding between pages belongs into page_stride)"
        )
    if entry.page_stride < entry.page_bytes:
        raise _refuse(
            f"{where}: pages {entry.page_stride} bytes apart would overlap: page_stride is at least {entry.page_bytes}"
        )
    end = entry.offset + (message.page_count - 1) * entry.page_stride + entry.page_bytes
    if entry.offset < 0 or end > message.bytes:
        raise _refuse(
            f"{where}: its pages lie in bytes {entry.offset} to {end} of a memory of {message.bytes} bytes: "
            "correct the offset or the stride, or announce all of the memory"
        )


@dataclass(frozen=True, slots=True)
class PageSpans:
    """Where all pages of a registered memory lie, by layer: what else may lie there is found out at once."""

    page_count: int
    starts: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, geometry: Geometry, message: RegisterMemory) -> PageSpans:
        """For a registration that passed `check_layout`."""
        # The stride of a single page is never used, so nobody has checked it.
        places = [(each.offset, min(each.page_stride, MEMORY_BYTES_MAX), each.page_bytes) for each in message.layout]
        if message.kind == WINDOW:
            places = [(0, geometry.block_bytes, geometry.block_bytes)]
        starts, strides, lengths = np.array(places, np.int64).T
        return cls(message.page_count, starts, strides, lengths)

    def touches(self, offset: int, length: int) -> bool:
        """Does a byte of `length` bytes from `offset` belong to a page?"""
        last = np.minimum((offset + length - 1 - self.starts) // self.strides, self.page_count - 1)
        return bool(((last >= 0) & (self.starts + last * self.strides + self.lengths > offset)).any())


def chunk_strands(geometry: Geometry, message: RegisterMemory) -> tuple[tuple[Strand, ...], ...]:
    """The strands of each chunk, for a registration that passed `check_layout`."""
    if message.kind == WINDOW:
        return tuple(_window_strands(geometry))
    places = {(entry.plane, entry.layer): entry for entry in message.layout}
    return tuple(tuple(_paged_strands(pieces, places)) for pieces in geometry.chunk_pieces)


def _window_strands(geometry: Geometry) -> Iterator[tuple[Strand]]:
    """One strand a chunk, padding included: a page of a window is the block byte for byte as stored."""
    offset = 0
    for length in geometry.chunk_bytes:
        yield (Strand(offset, 1, 0, geometry.block_bytes, length, 0, length),)
        offset += length


def _paged_strands(pieces: Sequence[Piece], places: dict[tuple[int, int], LayerLayout]) -> Iterator[Strand]:
    """Grow a strand while the next layer continues it; pieces lie packed in the frame, in this order."""
    open_: list[LayerLayout] = []
    first = pieces[0]
    for piece in pieces:
        place = places[piece.plane, piece.layer]
        if open_ and not _continues(open_, place):
            yield _strand(open_, first)
            open_ = []
        if not open_:
            first = piece
        open_.append(place)
    yield _strand(open_, first)


def _continues(strand: list[LayerLayout], place: LayerLayout) -> bool:
    last = strand[-1]
    if (place.plane, place.page_stride) != (last.plane, last.page_stride):
        return False
    return len(strand) == 1 or place.offset - last.offset == last.offset - strand[-2].offset


def _strand(places: list[LayerLayout], first: Piece) -> Strand:
    place = places[0]
    layer_stride = places[1].offset - place.offset if len(places) > 1 else 0
    return Strand(
        offset=place.offset,
        layer_count=len(places),
        layer_stride=layer_stride,
        page_stride=place.page_stride,
        page_bytes=place.page_bytes,
        frame_offset=first.offset,
        piece_bytes=first.length,
    )


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)


def _mismatch(why: str) -> FlexKVError:
    cure = "register the memory of the model that hello declared, or connect with this one's geometry"
    return FlexKVError(ErrorCode.GEOMETRY_MISMATCH, f"{why}: {cure}")
