"""Sizes of one layer group's row path: what a selection id names, how many slots, how many bytes of tables.

Owns every limit of the row path and their refusals; holds no tensor. All byte arithmetic of frames is
`flexkv_py.geometry`'s: `group_shape` asks it where rows lie. Called by whoever makes tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry

SELECTED_MAX = 2048
"""K: ids one query selects."""

QUERIES_MAX = 4
"""Q: tokens one step verifies."""

SLOTS_MAX = 8192
"""H: the most slots one request may have in one group, outside the newest ones."""

NEWEST_MAX = 1024
"""Slots for rows that are in no saved page yet."""

REQUESTS_MAX = 4096
BLOCKS_MAX = 1 << 18
ROW_ALIGN_BYTES = 8
"""Rows are whole 8-byte words. Loads are 16 bytes wide either way; see docs/row-path.md, "Alignment"."""


@dataclass(frozen=True)
class RowPlane:
    """One plane whose rows move between DRAM and the hot buffer.

    An id names `rows_per_id` consecutive rows of `row_bytes` each. `offsets` has one entry per layer of
    the group: bytes from the start of a frame to row 0 of that layer.
    """

    name: str
    row_bytes: int
    rows_per_id: int
    offsets: tuple[int, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes one slot of the hot buffer takes in one layer."""
        return self.row_bytes * self.rows_per_id


@dataclass(frozen=True)
class TableLimits:
    """What all groups of one worker share: room for requests, rows of a batch, blocks of a request, queries."""

    requests_max: int
    batch_max: int
    blocks_max: int
    queries: int = 1

    def __post_init__(self) -> None:
        _in_range("requests_max", self.requests_max, 1, REQUESTS_MAX)
        _in_range("batch_max", self.batch_max, 1, self.requests_max)
        _in_range("blocks_max", self.blocks_max, 1, BLOCKS_MAX)
        _in_range("queries (Q)", self.queries, 1, QUERIES_MAX)


@dataclass(frozen=True)
class GroupShape:
    """One layer group: who shares its selections, what an id names, how many slots a request has.

    `tokens_per_id` is 1, 4, 64, 128 …; with `partial_ids` an id may be selected while its tokens are still
    being written (blocks of 64 or 128), without it only once they are all there (compressed tokens).
    `slots` is H, the most a request may have, `newest` the slots for rows in no saved page (at least enough for
    one step), `selected` K. Slots lie in HBM pages: a *column* is as many as one page holds.
    """

    group: int
    chunk: int
    layers: tuple[int, ...]
    planes: tuple[RowPlane, ...]
    tokens_per_block: int
    slots: int
    selected: int
    limits: TableLimits
    newest: int = 1
    tokens_per_id: int = 1
    partial_ids: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def ids_per_block(self) -> int:
        return self.tokens_per_block // self.tokens_per_id

    @property
    def ids_max(self) -> int:
        """Ids a page table has room for."""
        return self.limits.blocks_max * self.ids_per_block

    @property
    def picks(self) -> int:
        """Cells of one request's selection: Q·K."""
        return self.limits.queries * self.selected

    @property
    def hot_columns_min(self) -> int:
        """HBM pages that any one step's selections fit into."""
        return -(-self.picks // self.ids_per_block)

    @property
    def hot_columns(self) -> int:
        """HBM pages that H slots lie in."""
        return -(-self.slots // self.ids_per_block)

    @property
    def columns(self) -> int:
        """HBM pages of one request's slots: H LRU slots, then from a new page on the newest ones."""
        return self.hot_columns - (-self.newest // self.ids_per_block)

    @property
    def newest_at(self) -> int:
        """The first of the newest slots."""
        return self.hot_columns * self.ids_per_block

    def whole_ids(self, tokens: int) -> int:
        """Ids all of whose tokens are among the first `tokens`."""
        return tokens // self.tokens_per_id

    def visible_ids(self, tokens: int) -> int:
        """Ids that may be selected when `tokens` tokens are there."""
        return (tokens + (self.tokens_per_id - 1) * self.partial_ids) // self.tokens_per_id


def group_shape(
    geometry: Geometry,
    group: int,
    planes: Sequence[str],
    limits: TableLimits,
    *,
    slots: int,
    selected: int,
    newest: int = 1,
    tokens_per_id: int = 1,
    partial_ids: bool = False,
) -> GroupShape:
    """The shape of a geometry's layer group `group` whose planes `planes` move by rows.

    Raises FlexKVError(BAD_ARGUMENT) for a group or plane the geometry has not, an id that is not whole
    rows, and every limit of this module.
    """
    _in_range("group", group, 0, len(geometry.groups) - 1)
    layers = geometry.groups[group]
    chunk = next(number for number, groups in enumerate(geometry.chunk_groups) if layers in groups)
    moving = tuple(_row_plane(geometry, chunk, layers, name, tokens_per_id) for name in planes)
    return GroupShape(
        group,
        chunk,
        layers,
        moving,
        geometry.tokens_per_block,
        slots,
        selected,
        limits,
        newest,
        tokens_per_id,
        partial_ids,
    )


def metadata_bytes(shape: GroupShape) -> dict[str, int]:
    """Bytes of the tables beside the rows, by what they are for; see docs/row-path.md, "Metadata".

    `per_request` is one group's, `per_batch_row` what each row of the batch takes besides (the miss list),
    `page_table` is shared by all groups of a chunk.
    """
    blocks = shape.limits.blocks_max
    return {
        "per_request": 6 * shape.slots + 4 * shape.columns + 4 * blocks + 4 * COUNTERS + 2 * 4,
        "per_batch_row": 4 + 12 * shape.picks + 4 * shape.limits.queries,
        "page_table": 4 * blocks,
    }


COUNTERS = 4
"""Counters per request and group: hits, misses, absents, refused."""


def _row_plane(geometry: Geometry, chunk: int, layers: tuple[int, ...], name: str, tokens_per_id: int) -> RowPlane:
    names = [plane.name for plane in geometry.planes]
    if name not in names:
        raise _refuse(f"the geometry has no plane {name!r}: name some of {', '.join(names)}")
    number = names.index(name)
    plane = geometry.planes[number]
    missing = [layer for layer in layers if layer not in plane.layers]
    if missing:
        raise _refuse(f"plane {name!r} has no rows in layer {missing[0]} of this group: leave the plane out")
    if tokens_per_id < 1 or tokens_per_id % plane.tokens_per_row:
        raise _refuse(
            f"an id of {tokens_per_id} tokens is not whole rows of plane {name!r}, {plane.tokens_per_row} tokens each: "
            "use a multiple"
        )
    offsets = {(piece.plane, piece.layer): piece.offset for piece in geometry.chunk_pieces[chunk]}
    placed = tuple(offsets[number, layer] for layer in layers)
    return RowPlane(name, plane.row_bytes, tokens_per_id // plane.tokens_per_row, placed)


def _check(shape: GroupShape) -> None:
    queries = shape.limits.queries
    _in_range("selected (K)", shape.selected, 1, SELECTED_MAX)
    _in_range("slots (H)", shape.slots, 1, SLOTS_MAX)
    if shape.slots < shape.picks:
        raise _refuse(
            f"one step may select {queries} × {shape.selected} rows and a request has {shape.slots} slots: "
            "give it at least queries × selected slots, or verify fewer tokens a step"
        )
    if shape.tokens_per_id < 1 or shape.tokens_per_block % shape.tokens_per_id:
        raise _refuse(
            f"an id of {shape.tokens_per_id} tokens does not divide a block of {shape.tokens_per_block}: "
            "raise tokens_per_block to a multiple of it"
        )
    straddling = -(-(queries - 1) // shape.tokens_per_id) + 1  # ids that the tokens of one step may lie in
    _in_range("newest", shape.newest, straddling, NEWEST_MAX)
    names = [plane.name for plane in shape.planes]
    if not names or len(set(names)) != len(names):
        raise _refuse(f"planes {names} move by rows: name at least one, and each once")
    for plane in shape.planes:
        if plane.row_bytes < 1 or plane.row_bytes % ROW_ALIGN_BYTES or plane.rows_per_id < 1:
            raise _refuse(
                f"plane {plane.name!r} has rows of {plane.row_bytes} bytes: the row path copies whole words of "
                f"{ROW_ALIGN_BYTES} bytes, pad the rows to a multiple of 16"
            )
        if len(plane.offsets) != len(shape.layers) or any(offset % 16 for offset in plane.offsets):
            raise _refuse(
                f"plane {plane.name!r}: every layer's rows must start on 16 bytes in a frame; make rows per block "
                "× row bytes a multiple of 16"
            )


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, Integral) or not least <= value <= most:
        raise _refuse(f"{name} is {value}: use {least} to {most}")


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)
