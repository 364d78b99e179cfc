"""Every tensor the row path keeps, preallocated: a captured graph may rely on the addresses.

Owns allocation and what an empty request looks like; decides nothing. `reference` and `gather` change the
contents in a step, `steps` between them. docs/row-path.md says what each tensor means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from mmap import mmap
from typing import Protocol

import numpy as np
import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.hbm.shape import COUNTERS, GroupShape, TableLimits

EMPTY = -1
"""In a table: no row in this slot, no frame of this block. In a selection or an output: padding."""

UNMANAGED = torch.iinfo(torch.int32).max
"""In `newest_first`: rows are in DRAM one step after they were written, nothing older is kept in HBM."""

HITS, MISSES, ABSENTS, REFUSED = range(COUNTERS)
SEGMENTS_MAX = 4096
STORE_BYTES_MAX = 16
"""Rows are stored by so many bytes at once, where their length is a multiple."""
SLOT_TENSORS = ("slot_count", "slot_page", "slot_position", "order")
"""What says which slots a request has in a group, and which rows they hold."""

Allocate = Callable[[tuple[int, int]], torch.Tensor]
"""Makes the uint8 tensor [slots, slot_bytes] of one layer and plane: in memory a daemon can open, if it is to."""


class Segments:
    """Where the arena's segments lie, for kernels at a fixed address: contents change, tensors do not.

    `bases` is int64 [SEGMENTS_MAX], the address of each segment as the device sees it; `units` int32 [1],
    frame numbers per segment (a frame number counts 4 KiB pages of the arena from its start).
    """

    def __init__(self, device: torch.device) -> None:
        self.bases = torch.zeros(SEGMENTS_MAX, dtype=torch.int64, device=device)
        self.units = torch.ones(1, dtype=torch.int32, device=device)
        self.frame_count = 0
        """Frame numbers of all segments together; 0 while there is no arena."""
        self.views: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        """The same segments as 8-byte words, for the reference; empty where only a device reads them."""

    def map(self, buffers: Sequence[memoryview | bytearray | mmap | np.ndarray], segment_bytes: int) -> None:
        """Use these mapped segments; they may be read-only and must stay mapped. Host memory only."""
        self._check(len(buffers), segment_bytes)
        self.views = [np.frombuffer(buffer, dtype=np.int64, count=segment_bytes // 8) for buffer in buffers]
        self.point([view.ctypes.data for view in self.views], segment_bytes)

    def point(self, addresses: Sequence[int], segment_bytes: int) -> None:
        """Use segments at these addresses of the device."""
        self._check(len(addresses), segment_bytes)
        self.bases[: len(addresses)] = torch.tensor(addresses, dtype=torch.int64)
        self.units.fill_(segment_bytes // ALIGN_BYTES)
        self.frame_count = len(addresses) * (segment_bytes // ALIGN_BYTES)

    @staticmethod
    def _check(count: int, segment_bytes: int) -> None:
        if count > SEGMENTS_MAX or segment_bytes < ALIGN_BYTES or segment_bytes % ALIGN_BYTES:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"an arena of {count} segments of {segment_bytes} bytes: the row path reads at most {SEGMENTS_MAX}, of "
                "whole 4 KiB pages; make the daemon's [dram] segment_bytes larger",
            )


class RequestTables:
    """What all groups of a worker share: the batch of this step, and the state of each attached request.

    Of the batch, int32: `batch` [1] real rows; `request` [batch_max] which table row each is; `accepted`
    [batch_max] tokens that verification kept. Of requests, int32 [requests_max]: `length` tokens whose
    rows are valid; `newest_first` first token in no saved page; `ok`; `absent_group` the group that met an
    absent row this step (EMPTY: none) and `absent_count` of `absent_ids` [requests_max, picks] it named.
    """

    def __init__(self, limits: TableLimits, picks: int, device: torch.device) -> None:
        self.limits, self.device = limits, device
        self.segments = Segments(device)
        self.batch = _full((1,), 0, device)
        self.request = _full((limits.batch_max,), 0, device)
        self.accepted = _full((limits.batch_max,), 0, device)
        self.length = _full((limits.requests_max,), 0, device)
        self.newest_first = _full((limits.requests_max,), UNMANAGED, device)
        self.ok = _full((limits.requests_max,), 0, device)
        self.absent_group = _full((limits.requests_max,), EMPTY, device)
        self.absent_count = _full((limits.requests_max,), 0, device)
        self.absent_ids = _full((limits.requests_max, picks), EMPTY, device)

    def open(self, request: int, length: int) -> None:
        """Table row `request` now belongs to a request whose first `length` tokens have rows."""
        self.length[request] = length
        self.newest_first[request] = UNMANAGED
        self.rearm(request)

    def rearm(self, request: int) -> None:
        """The request takes part in steps again after an absent row."""
        self.ok[request] = 1
        self.absent_group[request] = EMPTY
        self.absent_count[request] = 0

    def close(self, request: int) -> None:
        """The request is padding from now on."""
        self.ok[request] = 0
        self.length[request] = 0


def counted_at(length: int) -> int:
    """The planned length after a step at this length: if it runs again at the same, its heat is not counted again."""
    return EMPTY - 1 - length


class GroupTables:
    """State and outputs of one layer group.

    Per request: `slot_count` int32 [requests_max], how many LRU slots it has now, 0 … H; `slot_page` int32
    [requests_max, columns], the HBM page of each column of its slots or EMPTY; `slot_position` int32
    [requests_max, H], the id whose rows a slot holds or EMPTY; `order` int16 [requests_max, H], of which the first
    `slot_count` are its slots from least to most recently used; `page_table` int32 [requests_max,
    blocks_max], the frame with this group's chunk of each block or EMPTY (one tensor for all groups of a
    chunk); `planned_length` int32 [requests_max], the length at the last step that was applied, EMPTY, or the
    mark of a step whose heat is counted (`counted_at`); `heat` int32 [requests_max, blocks_max], distinct ids selected
    per block; `counters` int32
    [requests_max, 4]. Of the step: `slots` int32 [batch_max, Q, K], the output; `newest_slot` int32
    [batch_max, Q], where the rows of the step's own tokens belong; the miss list, `miss_count` int32
    [batch_max] and `miss_id`, `miss_slot`, `miss_frame` int32 [batch_max, Q·K]. `all_rows[plane][layer]` is uint8
    [page_count · ids_per_block, slot_bytes]: HBM pages and nothing else. Slot numbers in outputs count in it; those
    in `order` and `slot_position` count within the request, and `place` says where they lie.
    """

    def __init__(
        self,
        shape: GroupShape,
        device: torch.device,
        page_table: torch.Tensor | None = None,
        page_count: int | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        """Of `page_count` pages nobody has any yet. By default every request has all its slots, in pages of its own."""
        self.shape = shape
        requests, batch, blocks = shape.limits.requests_max, shape.limits.batch_max, shape.limits.blocks_max
        self.slot_count = _full((requests,), 0 if page_count is not None else shape.slots, device)
        self.slot_page = _full((requests, shape.columns), EMPTY, device)
        if page_count is None:
            page_count = self.slot_page.numel()
            self.slot_page.view(-1).copy_(torch.arange(page_count))
        self.slot_position = _full((requests, shape.slots), EMPTY, device)
        self.order = torch.arange(shape.slots, dtype=torch.int16, device=device).repeat(requests, 1)
        self.page_table = page_table if page_table is not None else _full((requests, blocks), EMPTY, device)
        self.planned_length = _full((requests,), EMPTY, device)
        self.heat = _full((requests, blocks), 0, device)
        self.counters = _full((requests, COUNTERS), 0, device)
        self.slots = _full((batch, shape.limits.queries, shape.selected), EMPTY, device)
        self.newest_slot = _full((batch, shape.limits.queries), EMPTY, device)
        self.miss_count = _full((batch,), 0, device)
        self.miss_id = _full((batch, shape.picks), EMPTY, device)
        self.miss_slot = _full((batch, shape.picks), EMPTY, device)
        self.miss_frame = _full((batch, shape.picks), EMPTY, device)
        slots = page_count * shape.ids_per_block
        make = allocate or (lambda size: torch.zeros(size, dtype=torch.uint8, device=device))
        self.all_rows = tuple(
            tuple(_checked(make((slots, plane.slot_bytes)), slots, plane.slot_bytes) for _ in shape.layers)
            for plane in shape.planes
        )

    def open(self, request: int) -> None:
        """Table row `request` begins empty: no row resident, no page granted, nothing counted. It keeps its slots."""
        self.slot_position[request] = EMPTY
        self.order[request] = torch.arange(self.shape.slots, dtype=torch.int16)
        self.page_table[request] = EMPTY
        self.planned_length[request] = EMPTY
        self.heat[request] = 0
        self.counters[request] = 0

    def resize(self, request: int, pages: Sequence[int], count: int, visible: int | torch.Tensor) -> None:
        """From the next step on the request has `count` LRU slots, in these HBM pages; waits for no device.

        New slots are empty and the oldest. Of the others, in their old order, those keep their rows whose column
        keeps its page. Where the request, of whose ids `visible` can be selected now, did not fit into its slots and
        now does, or the reverse, no row is kept: one id could be in two slots.
        """
        resize_slots(self.shape, [getattr(self, name)[request] for name in SLOT_TENSORS], pages, count, visible)
        self.planned_length[request].clamp_(max=EMPTY)  # what was written to own slots is not bound any more

    def place(self, request: int, slots: torch.Tensor) -> torch.Tensor:
        """Where slots of a request lie in `all_rows`, EMPTY where their column has no page."""
        page = self.slot_page[request, slots // self.shape.ids_per_block]
        return torch.where(page < 0, EMPTY, page * self.shape.ids_per_block + slots % self.shape.ids_per_block)

    def settle(self, request: int, first: int, end: int) -> None:
        """Copy the rows of ids `first` … `end` - 1 from their own slots to the newest slots.

        For rows that are in no saved page yet, once, before the first step in which the request no longer
        fits into its slots: from then on a step looks for them there.
        """
        ids = torch.arange(first, end, device=self.order.device)
        source, target = self.place(request, ids), self.place(request, self.shape.newest_at + ids % self.shape.newest)
        for layers in self.all_rows:
            for rows in layers:
                rows[target] = rows[source]


def resize_slots(
    shape: GroupShape,
    slots: Sequence[torch.Tensor],
    pages: Sequence[int],
    count: int,
    visible: int | torch.Tensor,
) -> None:
    """`GroupTables.resize` on the `SLOT_TENSORS` of one request, or of several groups' that are alike: [groups, …]."""
    number, all_pages, position, order = slots
    slot = torch.arange(shape.slots, device=order.device)
    page, before = all_pages[..., : shape.hot_columns], number[..., None]
    assert 0 <= count <= min(shape.slots, len(pages) * shape.ids_per_block)
    padded = [*pages, *[EMPTY] * shape.hot_columns][: shape.hot_columns]
    new = torch.tensor(padded, dtype=torch.int32, pin_memory=slot.is_cuda).to(slot.device, non_blocking=True)
    stays = (page == new)[..., slot // shape.ids_per_block] & (slot < count)
    position.masked_fill_(~(stays & ((visible <= before) == (visible <= count))), EMPTY)
    age = torch.where(slot < before, order.long().argsort(), slot - shape.slots)
    order.copy_(torch.where(slot < count, age, slot + shape.slots).argsort())
    page.copy_(new)
    number.fill_(count)


class RowSteps(Protocol):
    """The step of the row path: `reference` on a CPU, `gather.Kernels` on a device, equal bit for bit."""

    def plan(self, requests: RequestTables, group: GroupTables, topk: torch.Tensor) -> None:
        """Decide one step of one group: `topk` int32 [batch_max, Q, K] ids, EMPTY = padding, to `group.slots`."""
        ...

    def copy(self, requests: RequestTables, group: GroupTables, layer: int, plane: int) -> None:
        """Bring the planned misses of one layer (index within the group) and plane into the hot buffer."""
        ...

    def commit(self, requests: RequestTables) -> None:
        """After verification: each request that is ok is `accepted` tokens longer. Once per step, for all groups."""
        ...


def _checked(rows: torch.Tensor, slots: int, slot_bytes: int) -> torch.Tensor:
    """Refuse memory of an embedder's that rows cannot be copied to."""
    made, align = (
        rows.dtype is torch.uint8 and tuple(rows.shape) == (slots, slot_bytes),
        gcd(slot_bytes, STORE_BYTES_MAX),
    )
    if not made or not rows.is_contiguous() or rows.data_ptr() % align:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"`allocate` made {rows.dtype} {list(rows.shape)} at {rows.data_ptr():#x}: make contiguous uint8 "
            f"[{slots}, {slot_bytes}] that begins on {align} bytes",
        )
    return rows


def _full(size: tuple[int, ...], value: int, device: torch.device) -> torch.Tensor:
    return torch.full(size, value, dtype=torch.int32, device=device)
