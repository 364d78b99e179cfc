"""The step of the row path in plain array operations: the CPU path, and the oracle of the kernels, bit for bit.

Owns the semantics (docs/row-path.md states them in words). The step is that of HiSparse (SGLang 0.5.23),
with duplicates loaded once, every output cell written, and absent rows refused. Called by `steps` on CPU
and by tests; `gather` has the same three functions for a device. Works on the tables through numpy: on so few
numbers its operations cost a third of torch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.hbm.shape import GroupShape
from flexkv_tiers.hbm.tables import (
    ABSENTS,
    EMPTY,
    HITS,
    MISSES,
    REFUSED,
    UNMANAGED,
    GroupTables,
    RequestTables,
    counted_at,
)

Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Window:
    """What of one request may be selected: ids below `visible`, of which those from `first` on are newest."""

    first: int
    visible: int
    slots: int

    @property
    def fits(self) -> bool:
        """Every row is its own slot."""
        return self.visible <= self.slots


def plan(requests: RequestTables, group: GroupTables, topk: torch.Tensor) -> None:
    """Decide one step of one group: `topk` int32 [batch_max, Q, K] ids, EMPTY = padding, to `group.slots`.

    Also fills the miss list, and for requests whose rows are all there updates residency, order, heat and
    counters. A request with an absent row, or an id it has not, loses its `ok` and changes nothing else.
    """
    group.slots.fill_(EMPTY)
    group.newest_slot.fill_(EMPTY)
    group.miss_count.fill_(0)
    chosen = requests.request[: int(requests.batch)].long()
    bare = _takes_no_part(requests, group, topk[: len(chosen)], chosen)
    group.planned_length[chosen[bare]] = requests.length[chosen[bare]]
    for row in (~bare & (requests.ok[chosen] != 0)).nonzero().flatten().tolist():
        _plan_request(requests, group, topk[row].numpy().reshape(-1).astype(np.int64), row, int(chosen[row]))


def copy(requests: RequestTables, group: GroupTables, layer: int, plane: int) -> None:
    """Bring the planned misses of one layer (index within the group) and plane into the hot buffer."""
    shape, moving = group.shape, group.shape.planes[plane]
    segments, words = requests.segments, moving.slot_bytes // 8
    units, batch = int(segments.units), int(requests.batch)
    rows = group.all_rows[plane][layer].view(torch.int64)
    missed = np.arange(shape.picks) < group.miss_count[:batch, None].numpy()
    frames, ids, slots = (
        column[:batch].numpy()[missed].astype(np.int64) for column in (group.miss_frame, group.miss_id, group.miss_slot)
    )
    starts = frames % units * ALIGN_BYTES + moving.offsets[layer] + ids % shape.ids_per_block * moving.slot_bytes
    for segment in np.unique(frames // units):
        here = np.flatnonzero(frames // units == segment)
        loaded = sliding_window_view(segments.views[segment], words)[starts[here] // 8]
        rows[torch.from_numpy(slots[here])] = torch.from_numpy(loaded)


def commit(requests: RequestTables) -> None:
    """After verification: each request that is ok is `accepted` tokens longer. Once per step, for all groups."""
    batch = int(requests.batch)
    chosen = requests.request[:batch].long()
    kept = requests.accepted[:batch] * (requests.ok[chosen] != 0)
    requests.length[chosen] += kept


def _takes_no_part(
    requests: RequestTables, group: GroupTables, topk: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """Rows of the batch that select nothing and have no slot, as all whose rows lie in HBM pages.

    Nothing of theirs is bound, placed or refused: looking at them all at once is what keeps them cheap.
    """
    nothing, slots = (topk == EMPTY).flatten(1).all(1), (group.slot_page[chosen] != EMPTY).any(1)
    return nothing & ~slots & (requests.newest_first[chosen] == UNMANAGED) & (requests.ok[chosen] != 0)


def _plan_request(requests: RequestTables, group: GroupTables, ids: Ints, row: int, request: int) -> None:
    shape = group.shape
    replayed = int(group.planned_length[request]) == counted_at(int(requests.length[request]))
    _bind_written(requests, group, request)
    window = _window(requests, group, request)
    if (ids == EMPTY).all() and not _overflows(shape, window):  # all of it lies in HBM pages
        _place_newest(requests, group, window, row, request)
        return
    saved = (ids >= 0) & (ids < window.first)
    newest = (ids >= window.first) & (ids < window.visible)
    newest_place = _place(group, request, _newest_slot(shape, window, ids[newest]))
    selected, inverse = _by_first_occurrence(ids[saved])
    refused = int(((ids < EMPTY) | (ids >= window.visible)).sum() + (newest_place < 0).sum())
    refused += _overflows(shape, window) + (len(selected) > window.slots)
    slot = _resident_slots(group, selected, request, window)
    missed = slot < 0
    missing = selected[missed]
    frames = group.page_table.numpy()[request, missing // shape.ids_per_block]
    absent = missing[frames < 0]
    if refused or len(absent):
        _refuse(requests, group, absent, refused, request)
        return
    slot[missed] = missing if window.fits else _replace(group, request, slot[~missed], len(missing))
    group.slot_position.numpy()[request, slot[missed]] = missing
    place, count = _place(group, request, slot), len(missing)
    group.miss_count.numpy()[row] = count
    for misses, found in ((group.miss_id, missing), (group.miss_slot, place[missed]), (group.miss_frame, frames)):
        misses.numpy()[row, :count] = found
    out = group.slots.numpy()[row].reshape(-1)  # of this row; padding is EMPTY already
    out[saved] = place[inverse]
    out[newest] = newest_place
    _place_newest(requests, group, window, row, request)
    _count(group, request, selected, count, replayed=replayed)


def _window(requests: RequestTables, group: GroupTables, request: int) -> _Window:
    shape, length = group.shape, int(requests.length[request])
    first = shape.whole_ids(min(length, int(requests.newest_first[request])))
    visible = min(shape.visible_ids(length + shape.limits.queries), shape.ids_max)
    return _Window(first, visible, int(group.slot_count[request]))


def _overflows(shape: GroupShape, window: _Window) -> bool:
    """More rows are in no saved page than there are newest slots: two would share one."""
    return not window.fits and window.visible - window.first > shape.newest


def _by_first_occurrence(ids: Ints) -> tuple[Ints, Ints]:
    """Distinct ids in order of their first occurrence, and for each of `ids` its place among them."""
    distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    turn = first.argsort()
    place = np.empty_like(turn)
    place[turn] = np.arange(len(turn))
    return distinct[turn], place[inverse]


def _resident_slots(group: GroupTables, selected: Ints, request: int, window: _Window) -> Ints:
    """The slot of each selected id, EMPTY where its rows are not in the hot buffer."""
    position = group.slot_position.numpy()[request]
    if window.fits:
        return np.where(position[selected] == selected, selected, EMPTY)
    slots = position.argsort()
    at = slots[np.searchsorted(position, selected, sorter=slots).clip(max=len(slots) - 1)]
    return np.where(position[at] == selected, at, EMPTY)


def _place(group: GroupTables, request: int, slots: Ints) -> Ints:
    """Where slots of a request lie in the rows of a layer, EMPTY where their column has no page."""
    size = group.shape.ids_per_block
    page = group.slot_page.numpy()[request, slots // size]
    return np.where(page < 0, EMPTY, page.astype(np.int64) * size + slots % size)


def _bind_written(requests: RequestTables, group: GroupTables, request: int) -> None:
    """Rows that the last step wrote to their own slots, and verification kept, are resident from now on.

    This ends the step before, so it holds even if the step that begins here is refused.
    """
    shape, queries = group.shape, group.shape.limits.queries
    length, planned = int(requests.length[request]), int(group.planned_length[request])
    if planned >= 0 and shape.visible_ids(planned + queries) <= int(group.slot_count[request]):
        end = shape.whole_ids(min(length, planned + queries))
        written = torch.arange(shape.whole_ids(planned), end, dtype=torch.int32)
        group.slot_position[request, written.long()] = written
    group.planned_length[request] = length


def _replace(group: GroupTables, request: int, hits: Ints, misses: int) -> Ints:
    """Move the order on; the m-th miss takes the m-th oldest unused slot: these slots are returned."""
    order: NDArray[np.int16] = group.order.numpy()[request, : int(group.slot_count[request])]
    used = np.zeros(len(order), dtype=np.bool_)
    used[hits] = True
    hit = used[order]
    unused = order[~hit]
    victims, stale = unused[:misses], unused[misses:]
    order[:] = np.concatenate((stale, victims, order[hit]))
    return victims.astype(np.int64)


def _newest_slot(shape: GroupShape, window: _Window, ids: Ints) -> Ints:
    return ids if window.fits else ids % shape.newest + shape.newest_at


def _place_newest(requests: RequestTables, group: GroupTables, window: _Window, row: int, request: int) -> None:
    """Where the step's own tokens write their rows; EMPTY for a compressed row that is not complete yet, or no page."""
    shape = group.shape
    ids = (int(requests.length[request]) + np.arange(shape.limits.queries)) // shape.tokens_per_id
    known = ids < window.visible
    slots = _place(group, request, _newest_slot(shape, window, np.where(known, ids, 0)))
    group.newest_slot.numpy()[row] = np.where(known, slots, EMPTY)


def _count(group: GroupTables, request: int, selected: Ints, misses: int, *, replayed: bool) -> None:
    if not replayed:
        np.add.at(group.heat.numpy()[request], selected // group.shape.ids_per_block, 1)
    counters = group.counters.numpy()[request]
    counters[HITS] += len(selected) - misses
    counters[MISSES] += misses


def _refuse(requests: RequestTables, group: GroupTables, absent: Ints, refused: int, request: int) -> None:
    requests.ok[request] = 0
    requests.absent_group[request] = group.shape.group
    requests.absent_count[request] = len(absent)
    requests.absent_ids.numpy()[request, : len(absent)] = absent
    group.counters[request, ABSENTS] += len(absent)
    group.counters[request, REFUSED] += refused
