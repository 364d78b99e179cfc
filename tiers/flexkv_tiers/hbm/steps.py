"""The device side of a worker's row path: every table, and a step on them.

Owns the tables of all groups and the order of what is enqueued: split the selection, plan, copies beside, merge.
Knows table rows, not requests, and decides nothing: `worker` says what to write between steps. The same
calls run on CPU by `reference` and on a device by the kernels of `gather`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.checks import check_step
from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.graph import Copies, HostCopies, SideCopies
from flexkv_tiers.hbm.replay import Part
from flexkv_tiers.hbm.resident import ResidentPages
from flexkv_tiers.hbm.shape import GroupShape, TableLimits
from flexkv_tiers.hbm.tables import (
    EMPTY,
    HITS,
    MISSES,
    SLOT_TENSORS,
    Allocate,
    GroupTables,
    RequestTables,
    RowSteps,
    resize_slots,
)


@dataclass(frozen=True, slots=True)
class RowRun:
    """How a step went for one batch row."""

    ok: bool
    absents: tuple[Part, ...]
    """(block, chunk) of the rows that were not in DRAM, each once; all of the first group that met any."""
    refused: bool
    """The group's selection named ids the request has not: the engine's mistake, no absence."""


class StepTables:
    """Tables of a worker's layer groups, and the steps on them."""

    def __init__(
        self,
        shapes: Sequence[GroupShape],
        page_count: int,
        device: torch.device,
        allocate: Allocate | None = None,
        row_steps: RowSteps | None = None,
    ) -> None:
        """Allocate everything; nothing is allocated later. `row_steps` are by default the device's own.

        Raises FlexKVError(BAD_ARGUMENT) for unlike shapes, and for memory that rows cannot be copied to.
        """
        _check_shapes(shapes)
        if not isinstance(page_count, int) or page_count < 0:
            raise _refuse(f"{page_count!r} HBM pages: give a number, as `budget.page_count` computes it")
        self._row_steps = row_steps or _steps_of(device, shapes)
        self.limits: TableLimits = shapes[0].limits
        self.requests = RequestTables(self.limits, max(shape.picks for shape in shapes), device)
        self.resident = ResidentPages(self.limits, device)
        self._device = device
        self._page_tables: dict[int, Tensor] = {}
        self.groups = {shape.group: self._make_group(shape, page_count, allocate) for shape in shapes}
        self._group_of = {layer: shape.group for shape in shapes for layer in shape.layers}
        self._slots = {number: torch.full_like(group.slots, EMPTY) for number, group in self.groups.items()}
        # One tensor for all groups, so that a step's end and a report are one operation each.
        self._planned_length = _gather_into_one([group.planned_length for group in self.groups.values()])
        self.heat = _gather_into_one([group.heat for group in self.groups.values()])
        self._numbers = torch.tensor(list(self.groups), dtype=torch.int32, device=device).view(-1, 1)
        for at, group in enumerate(self.groups.values()):
            group.planned_length, group.heat = self._planned_length[at], self.heat[at]
        self._alike = _gather_alike(self.groups.values())
        self.copies: Copies = (
            SideCopies(self._row_steps.copy, list(self._group_of), device)
            if device.type == "cuda"
            else HostCopies(self._row_steps.copy)
        )

    def open(self, row: int, length: int) -> None:
        """Table row `row` belongs to a new request: nothing resident, granted or counted, and no hot buffer."""
        self.requests.open(row, length)
        self.resident.clear(row)
        for group in self.groups.values():
            group.open(row)
        self.resize(row, ())

    def set_length(self, row: int, length: int) -> None:
        self.requests.length[row] = length

    def close(self, row: int) -> None:
        self.requests.close(row)
        self.resident.clear(row)
        self.resize(row, ())

    @property
    def hot_pages_min(self) -> int:
        """Pages of a hot buffer that any one step's selections fit into."""
        return max(group.shape.hot_columns_min for group in self.groups.values())

    @property
    def hot_pages_max(self) -> int:
        """Pages of a hot buffer with H slots in every group."""
        return max(group.shape.hot_columns for group in self.groups.values())

    def resize(self, row: int, pages: Sequence[int]) -> None:
        """From the next step on these HBM pages are the row's hot buffer; pages at the old places keep their rows."""
        for shape, slots in self._alike:
            count = min(shape.slots, len(pages) * shape.ids_per_block)
            visible = self.resident.visible(self.requests, shape, row)
            resize_slots(shape, [tensor[:, row] for tensor in slots], pages, count, visible)

    def change_pages(self, row: int, change: PagesChange) -> None:
        """Let the next step see one version of the daemon's pages."""
        cells: dict[int, dict[int, int]] = {}
        for block, chunk in change.revoked:
            cells.setdefault(chunk, {})[block] = EMPTY
        for block, chunk, frame in change.granted:
            cells.setdefault(chunk, {})[block] = frame
        for chunk, frames in cells.items():
            if chunk in self._page_tables:  # chunks whose groups do not move by rows have no table
                at = torch.tensor(list(frames), dtype=torch.int64).to(self._device)
                new = torch.tensor(list(frames.values()), dtype=torch.int32).to(self._device)
                self._page_tables[chunk][row].index_copy_(0, at, new)

    def begin(self, rows: Sequence[int], failed: Iterable[int] = ()) -> None:
        """The next step's batch is these rows, in order; `failed` ones among them run again."""
        for row in failed:
            self.requests.rearm(row)
        self.requests.request[: len(rows)] = torch.tensor(list(rows), dtype=torch.int32)
        self.requests.batch.fill_(len(rows))

    def plan(self, group: int, topk: Tensor) -> Tensor:
        """Slots int32 of the ids `topk` int32 [batch_max, Q, K]; copies of what is missing are started."""
        tables = self.groups[group]
        rest, resident = self.resident.split(self.requests, tables.shape, topk)
        if self._device.type == "cpu" and not (rest != EMPTY).any():
            tables.slots.fill_(EMPTY)  # all of it lies in pages: on a CPU looking costs less than planning nothing
        else:
            self._row_steps.plan(self.requests, tables, rest)
            self.copies.start(self.requests, tables)
        self.resident.merge(self.requests, tables.slots, resident, self._slots[group])
        return self._slots[group]

    def newest_slots(self, group: int) -> Tensor:
        return self.resident.newest(self.requests, self.groups[group].shape)

    def runs(self, rows: Sequence[int]) -> list[RowRun]:
        """How the step went for its rows. Waits for the step's end on a device."""
        at = torch.tensor(list(rows), dtype=torch.int64).to(self._device)
        tables = self.requests
        oks, groups, counts = torch.stack((tables.ok[at], tables.absent_group[at], tables.absent_count[at])).tolist()
        return [self._run(*run) for run in zip(rows, oks, groups, counts, strict=True)]

    def commit(self, accepted: Sequence[int]) -> None:
        """Each ok row is `accepted` tokens longer, in batch order; the batch is over."""
        self.requests.accepted[: len(accepted)] = torch.tensor(list(accepted), dtype=torch.int32)
        self._row_steps.commit(self.requests)
        self.end()

    def end(self) -> None:
        """The batch is over, whatever became of it."""
        # The step's own rows went to HBM pages, so the next plan may not take them for written into slots. What is
        # left is `counted_at`, but in the group that met an absent row: that one has counted nothing yet.
        planned = self._planned_length
        planned.copy_(torch.minimum(planned, EMPTY - 1 - planned))
        planned.masked_fill_(self._numbers == self.requests.absent_group, EMPTY)
        self.requests.batch.fill_(0)

    def take_counts(self, row: int) -> list[tuple[int, int, int]]:
        """(group, hits, misses) of a table row since the last call. Waits for a device."""
        counters = torch.stack([group.counters[row] for group in self.groups.values()])
        for group in self.groups.values():
            group.counters[row] = 0
        found = counters[:, (HITS, MISSES)].tolist()
        return [(group, hits, misses) for group, (hits, misses) in zip(self.groups, found, strict=True)]

    def forget_resident(self, row: int) -> None:
        """Empty the row's hot buffers: after a step that broke off, nobody knows which planned copies ran."""
        for group in self.groups.values():
            group.slot_position[row] = EMPTY

    def warm(self, row: int, group: int, ids: Sequence[int]) -> None:
        """Bring rows of `ids`, in DRAM frames all of them, into the hot buffer; counts neither heat nor hits."""
        tables = self.groups[group]
        picks, kept = tables.shape.picks, (tables.heat[row].clone(), tables.counters[row].clone())
        self.begin([row])
        for first in range(0, len(ids), picks):
            topk = torch.full_like(tables.slots, EMPTY)
            part = torch.tensor(list(ids[first : first + picks]), dtype=torch.int32)
            topk.view(-1)[: len(part)] = part
            self.plan(group, topk)
            self.copies.join()
        tables.heat[row], tables.counters[row] = kept
        tables.planned_length[row] = EMPTY  # the first step is still to be counted
        self.end()

    def rows_of(self, layer: int, plane: int) -> Tensor:
        """Uint8 [slots, slot_bytes] that slots of this layer count in: HBM pages.

        `plane` counts among the planes of the layer's group that move by rows.
        """
        group = self.groups[self.group_with(layer)]
        return group.all_rows[plane][group.shape.layers.index(layer)]

    def group_of(self, group: int) -> GroupTables:
        """The tables of a layer group. Raises FlexKVError(BAD_ARGUMENT)."""
        if group not in self.groups:
            raise _refuse(f"layer group {group} does not move by rows: name one of {sorted(self.groups)}")
        return self.groups[group]

    def group_with(self, layer: int) -> int:
        """The layer group that has this layer. Raises FlexKVError(BAD_ARGUMENT)."""
        if layer not in self._group_of:
            raise _refuse(f"layer {layer} does not move by rows: name one of {sorted(self._group_of)}")
        return self._group_of[layer]

    def check_step(self, group: int, topk: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Raises FlexKVError before anything is planned; while a graph is captured the batch is empty."""
        self.group_of(group)
        if not isinstance(topk, Tensor):
            raise _refuse(f"the selection is a {type(topk).__name__}: give a tensor")
        if topk.device != self._slots[group].device:
            raise _refuse(f"the selection is on {topk.device}: leave it on {self._device}")
        check_step(self.groups[group].shape, topk, rows, lengths)

    def check(
        self, row: int, length: int, pages: Mapping[int, int], frames: Mapping[Part, int], hot: Sequence[int] = ()
    ) -> None:
        """Compare one row's tables with what was decided for its request."""
        assert int(self.requests.length[row]) == length
        placed = self.resident.page[row]
        assert {block: int(placed[block]) for block in (placed >= 0).nonzero().flatten().tolist()} == dict(pages)
        for chunk, table in self._page_tables.items():
            there = {block: int(table[row, block]) for block in (table[row] >= 0).nonzero().flatten().tolist()}
            assert there == {block: frame for (block, part), frame in frames.items() if part == chunk}
        for group in self.groups.values():
            columns, slots = group.shape.hot_columns, len(hot) * group.shape.ids_per_block
            assert group.slot_page[row, :columns].tolist() == [*hot, *[EMPTY] * columns][:columns]
            assert int(group.slot_count[row]) == min(group.shape.slots, slots)

    def page_slots(self, group: int, page: int) -> slice:
        """The slots of a group that an HBM page is: `ids_per_block` of them, in the order of the block's ids."""
        shape = self.groups[group].shape
        return slice(page * shape.ids_per_block, (page + 1) * shape.ids_per_block)

    def _run(self, row: int, ok: int, group: int, count: int) -> RowRun:
        if ok or group == EMPTY:
            return RowRun(bool(ok), (), refused=False)
        shape = self.groups[group].shape
        ids = self.requests.absent_ids[row, :count].tolist()
        blocks = sorted({number // shape.ids_per_block for number in ids})
        return RowRun(False, tuple((block, shape.chunk) for block in blocks), refused=not count)

    def _make_group(self, shape: GroupShape, page_count: int, allocate: Allocate | None) -> GroupTables:
        tables = GroupTables(shape, self._device, self._page_tables.get(shape.chunk), page_count, allocate)
        self._page_tables[shape.chunk] = tables.page_table
        return tables


def _steps_of(device: torch.device, shapes: Sequence[GroupShape]) -> RowSteps:
    if device.type != "cuda":
        return reference
    from flexkv_tiers.hbm.gather import Kernels  # noqa: PLC0415 - Triton is imported where a device is used only

    return Kernels(shapes, device)


def _refuse(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_ARGUMENT, why)


def _gather_into_one(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors)


def _gather_alike(groups: Iterable[GroupTables]) -> list[tuple[GroupShape, list[Tensor]]]:
    """The slots of groups with like sizes become one tensor each, so that a resize is one operation for all of them."""
    alike: dict[tuple[int, ...], list[GroupTables]] = {}
    for group in groups:
        shape = group.shape
        alike.setdefault((shape.slots, shape.newest, shape.tokens_per_id, shape.partial_ids), []).append(group)
    found = []
    for members in alike.values():
        tensors = [_gather_into_one([getattr(group, name) for group in members]) for name in SLOT_TENSORS]
        for name, tensor in zip(SLOT_TENSORS, tensors, strict=True):
            for at, group in enumerate(members):
                setattr(group, name, tensor[at])
        found.append((members[0].shape, tensors))
    return found


def _check_shapes(shapes: Sequence[GroupShape]) -> None:
    if not shapes:
        raise _refuse("no layer group moves by rows: name at least one, or use the page path")
    first = shapes[0]
    for shape in shapes:
        if (shape.limits, shape.tokens_per_block) != (first.limits, first.tokens_per_block):
            raise _refuse(
                f"groups {first.group} and {shape.group} differ in limits or tokens per block: make them of one "
                "geometry with the same limits"
            )
    if len({shape.group for shape in shapes}) != len(shapes):
        raise _refuse("a layer group is named twice: name each once")
