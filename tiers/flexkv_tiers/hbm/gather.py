"""The step of the row path on a device: launches *plan*, *copy* and *commit* with everything at fixed addresses.

Owns the kernels' scratch and their launch sizes; the semantics are `reference`'s, and the kernels must equal
it bit for bit. A launch neither allocates nor waits, so a graph can capture it. Imported only where a device is
used (or under Triton's interpreter): importing it imports Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton

from flexkv_tiers.hbm.copying import commit_kernel, copy_kernel
from flexkv_tiers.hbm.planning import plan_kernel
from flexkv_tiers.hbm.shape import GroupShape
from flexkv_tiers.hbm.tables import GroupTables, RequestTables

CELLS_PER_PICK = 4
"""Cells of the lookup table for one picked id: at a quarter full a search takes a few rounds."""

PICK_TILE_MAX = SLOT_TILE_MAX = 2048
"""Picks and slots a plan program handles at a time; more would not stay in registers."""

COPY_TILE = 16
"""Rows a copy program has on their way at once: 10 KB of 656-byte rows."""

COPY_PROGRAMS = 256
"""Copy programs of a launch, about two for each multiprocessor, shared by the requests of the batch."""

COPY_PROGRAMS_EACH = 4
"""But never fewer per request: 4 are 42 KB on their way."""

PLAN_WARPS, COPY_WARPS = 16, 4


class Scratch:
    """What a plan needs within a launch and nobody afterwards; one for all groups planned on one stream.

    `cells` int64 [batch_max · 2**bits] is empty between launches. `notes` int32 holds per row of the batch the slot
    of each cell, each pick's cell, the misses' victims, and the slots in LRU order; it means nothing in between.
    """

    def __init__(self, shapes: Sequence[GroupShape], device: torch.device) -> None:
        batch = max(shape.limits.batch_max for shape in shapes)
        cell_count = 1 << max(cell_bits(shape.picks) for shape in shapes)
        notes = max((1 << cell_bits(shape.picks)) + 2 * shape.picks + shape.slots for shape in shapes)
        empty = torch.iinfo(torch.int64).max
        self.cells = torch.full((batch * cell_count,), empty, dtype=torch.int64, device=device)
        self.notes = torch.zeros(batch * notes, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        return self.cells.nbytes + self.notes.nbytes


class Kernels:
    """`reference`'s three functions, on a device. `programs` copy at a time, at least one for each row of a batch."""

    def __init__(self, shapes: Sequence[GroupShape], device: torch.device, programs: int = COPY_PROGRAMS) -> None:
        self.scratch = Scratch(shapes, device)
        self.programs = max(programs, COPY_PROGRAMS_EACH * max(shape.limits.batch_max for shape in shapes))

    def plan(self, requests: RequestTables, group: GroupTables, topk: torch.Tensor) -> None:
        """As `reference.plan`; one program per row of the batch."""
        # fmt: off
        shape, scratch = group.shape, self.scratch
        plan_kernel[(shape.limits.batch_max,)](
            requests.batch, requests.request, requests.length, requests.newest_first, requests.ok,
            requests.absent_group, requests.absent_count, requests.absent_ids,
            group.slot_count, group.slot_page, group.slot_position, group.order,
            group.page_table, group.planned_length, group.heat, group.counters,
            topk, group.slots, group.newest_slot, group.miss_count, group.miss_id, group.miss_slot, group.miss_frame,
            scratch.cells, scratch.notes,
            **plan_constants(shape, requests.absent_ids.shape[1]), num_warps=PLAN_WARPS,
        )
        # fmt: on

    def copy(self, requests: RequestTables, group: GroupTables, layer: int, plane: int) -> None:
        """As `reference.copy`; the programs are shared by the requests of the batch."""
        # fmt: off
        shape, segments = group.shape, requests.segments
        copy_kernel[(self.programs,)](
            requests.batch, group.miss_count, group.miss_id, group.miss_slot, group.miss_frame,
            segments.bases, segments.units, group.all_rows[plane][layer].view(torch.int64),
            shape.planes[plane].offsets[layer], **copy_constants(shape, plane), num_warps=COPY_WARPS,
        )
        # fmt: on

    def commit(self, requests: RequestTables) -> None:
        """As `reference.commit`."""
        tile = triton.next_power_of_2(requests.limits.batch_max)
        commit_kernel[(1,)](
            requests.batch, requests.request, requests.accepted, requests.length, requests.ok, TILE=tile, num_warps=1
        )


def plan_constants(shape: GroupShape, absent_stride: int) -> dict[str, int]:
    """The compile-time sizes of *plan* for this group."""
    return {
        "GROUP": shape.group,
        "QUERIES": shape.limits.queries,
        "PICKS": shape.picks,
        "SLOTS": shape.slots,
        "COLUMNS": shape.columns,
        "NEWEST_AT": shape.newest_at,
        "NEWEST": shape.newest,
        "PER_ID": shape.tokens_per_id,
        "PARTIAL": int(shape.partial_ids),
        "PER_BLOCK": shape.ids_per_block,
        "BLOCKS": shape.limits.blocks_max,
        "ABSENT_STRIDE": absent_stride,
        "CELL_BITS": cell_bits(shape.picks),
        "PICK_TILE": min(PICK_TILE_MAX, triton.next_power_of_2(shape.picks)),
        "SLOT_TILE": min(SLOT_TILE_MAX, triton.next_power_of_2(shape.slots)),
    }


def copy_constants(shape: GroupShape, plane: int) -> dict[str, int]:
    """The compile-time sizes of *copy* for this plane."""
    moving = shape.planes[plane]
    words = -(-moving.row_bytes // 16) * 2  # as loaded
    head = 1 << (words.bit_length() - 1)
    return {
        "PICKS": shape.picks,
        "PER_BLOCK": shape.ids_per_block,
        "ROWS_PER_ID": moving.rows_per_id,
        "ROW_BYTES": moving.row_bytes,
        "HEAD": head,
        "TAIL": triton.next_power_of_2(words - head) if words > head else 0,
        "TILE": COPY_TILE,
    }


def cell_bits(picks: int) -> int:
    """The lookup table for so many picks has 2**bits cells."""
    return (CELLS_PER_PICK * picks - 1).bit_length()
