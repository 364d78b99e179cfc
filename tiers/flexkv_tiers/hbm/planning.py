"""The *plan* kernel: one program decides one request's step of one layer group. `reference` says what it means.

One program per request, because a request's phases depend on each other and programs cannot wait for one
another. Within a program, what one thread wrote to global memory others read only after `tl.debug_barrier`
(bar.sync orders global memory among the threads of a block); every phase below names what it waits for.
Where several threads write one cell in a phase they write the same value. Ranks come from scans and elections
from an atomic minimum, so the outcome does not depend on the order of threads. `gather` launches it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flexkv_tiers.hbm.lookup import EMPTY_CELL, find_cells, insert_picks

_EMPTY = tl.constexpr(-1)


# fmt: off
@triton.jit
def plan_kernel(
    batch, request_of, length, newest_first, ok, absent_group, absent_count, absent_ids,
    slot_count, slot_page, slot_position, order, page_table, planned_length, heat, counters,
    topk, slots, newest_slot, miss_count, miss_id, miss_slot, miss_frame,
    cells, notes,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, PICKS: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr,
    NEWEST_AT: tl.constexpr, NEWEST: tl.constexpr,
    PER_ID: tl.constexpr, PARTIAL: tl.constexpr, PER_BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    ABSENT_STRIDE: tl.constexpr, CELL_BITS: tl.constexpr, PICK_TILE: tl.constexpr, SLOT_TILE: tl.constexpr,
):
    """One program per row of the batch. Tensors as in `tables` and `gather.Scratch`, sizes as in `GroupShape`."""
    row = tl.program_id(0)
    real = row < tl.load(batch)
    request = tl.load(request_of + row, mask=real, other=0)
    alive = real & (tl.load(ok + request, mask=real, other=0) != 0)
    slots, newest_slot, miss_count = slots + row * PICKS, newest_slot + row * QUERIES, miss_count + row
    if alive:
        _plan_request(
            tl.load(length + request), tl.load(newest_first + request), ok + request,
            absent_group + request, absent_count + request, absent_ids + request * ABSENT_STRIDE,
            tl.load(slot_count + request), slot_page + request * COLUMNS,
            slot_position + request * SLOTS, order + request * SLOTS, page_table + request * BLOCKS,
            planned_length + request, heat + request * BLOCKS, counters + request * 4,
            topk + row * PICKS, slots, newest_slot, miss_count,
            miss_id + row * PICKS, miss_slot + row * PICKS, miss_frame + row * PICKS,
            cells + row * (1 << CELL_BITS), notes + row * ((1 << CELL_BITS) + 2 * PICKS + SLOTS),
            GROUP, QUERIES, PICKS, SLOTS, NEWEST_AT, NEWEST, PER_ID, PARTIAL, PER_BLOCK, BLOCKS, CELL_BITS,
            PICK_TILE, SLOT_TILE,
        )
    else:
        _answer_nothing(slots, newest_slot, miss_count, PICKS, QUERIES, PICK_TILE)


@triton.jit
def _plan_request(
    tokens, newest_first, ok, absent_group, absent_count, absent_ids,
    count, slot_page, slot_position, order, page_table, planned_length, heat, counters,
    topk, slots, newest_slot, miss_count, miss_id, miss_slot, miss_frame, cells, cell_slot,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, PICKS: tl.constexpr, SLOTS: tl.constexpr, NEWEST_AT: tl.constexpr,
    NEWEST: tl.constexpr, PER_ID: tl.constexpr, PARTIAL: tl.constexpr, PER_BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    CELL_BITS: tl.constexpr, PICK_TILE: tl.constexpr, SLOT_TILE: tl.constexpr,
):
    """The phases of one request's step; all pointers are this request's own, and it has `count` LRU slots."""
    pick_cell = cell_slot + (1 << CELL_BITS)
    victims, walk = pick_cell + PICKS, pick_cell + 2 * PICKS
    planned = _bind_written(planned_length, slot_position, tokens, count, QUERIES, PER_ID, PARTIAL)
    first = tl.minimum(tokens, newest_first) // PER_ID
    visible = tl.minimum(_visible_ids(tokens + QUERIES, PER_ID, PARTIAL), BLOCKS * PER_BLOCK)
    fits = visible <= count
    refused = _insert_all(topk, cells, first, visible, PICKS, PICK_TILE, CELL_BITS)
    refused += ((visible > count) & (visible - first > NEWEST)).to(tl.int32)
    tl.debug_barrier()  # the table is complete, and what was written is bound
    refused += _find_all(
        topk, cells, cell_slot, pick_cell, slot_page, slot_position, first, visible, fits, PICKS, NEWEST_AT, NEWEST,
        PER_BLOCK, PICK_TILE, CELL_BITS,
    )
    tl.debug_barrier()  # each selected cell's slot is that of its own, or empty
    if visible > count:
        _mark_hits(cells, cell_slot, slot_position, order, walk, count, SLOTS, SLOT_TILE, CELL_BITS)
    tl.debug_barrier()  # slots of hits are in their cells, and the order is in the walk
    distinct, misses, absents = _list_misses(
        topk, cells, cell_slot, pick_cell, page_table, miss_id, miss_frame, absent_ids, PICKS, PER_BLOCK, PICK_TILE
    )
    refused += (distinct > count).to(tl.int32)
    if refused + absents > 0:
        _refuse(ok, absent_group, absent_count, counters, absents, refused, GROUP)
        _answer_nothing(slots, newest_slot, miss_count, PICKS, QUERIES, PICK_TILE)
    else:
        if visible > count:
            _replace(order, walk, victims, count - distinct + misses, misses, count, SLOTS, SLOT_TILE)
        tl.debug_barrier()  # each miss's victim is known
        _place_misses(
            topk, cells, cell_slot, pick_cell, slot_page, slot_position, victims, miss_slot, heat, fits,
            planned != -2 - tokens, PICKS, PER_BLOCK, PICK_TILE,
        )
        tl.debug_barrier()  # every selected cell has its slot
        _answer(
            topk, slots, cell_slot, pick_cell, slot_page, first, visible, fits, PICKS, NEWEST_AT, NEWEST, PER_BLOCK,
            PICK_TILE,
        )
        _place_newest(newest_slot, slot_page, tokens, visible, fits, QUERIES, NEWEST_AT, NEWEST, PER_ID, PER_BLOCK)
        _count(miss_count, counters, distinct - misses, misses)
    tl.debug_barrier()  # nobody looks anything up any more
    _empty_cells(cells, pick_cell, PICKS, PICK_TILE)


@triton.jit
def _visible_ids(tokens, PER_ID: tl.constexpr, PARTIAL: tl.constexpr):
    if PARTIAL:
        tokens += PER_ID - 1
    return tokens // PER_ID


@triton.jit
def _newest_of(ids, fits, NEWEST_AT: tl.constexpr, NEWEST: tl.constexpr):
    """The slot of an id in no saved page."""
    return tl.where(fits, ids, NEWEST_AT + ids % NEWEST)


@triton.jit
def _placed(slot_page, slots, wanted, PER_BLOCK: tl.constexpr):
    """Where `wanted` slots lie in HBM pages; EMPTY for others, and where a column has no page."""
    page = tl.load(slot_page + slots // PER_BLOCK, mask=wanted, other=_EMPTY)
    return tl.where(page < 0, _EMPTY, page * PER_BLOCK + slots % PER_BLOCK)


@triton.jit
def _bind_written(
    planned_length, slot_position, tokens, count,
    QUERIES: tl.constexpr, PER_ID: tl.constexpr, PARTIAL: tl.constexpr,
):
    """What the last step wrote to own slots, and verification kept, is resident; at most QUERIES ids.

    Returns the planned length as it was.
    """
    planned = tl.load(planned_length)
    written = planned // PER_ID + tl.arange(0, 4)
    end = tl.minimum(tokens, planned + QUERIES) // PER_ID
    did_fit = (planned >= 0) & (_visible_ids(planned + QUERIES, PER_ID, PARTIAL) <= count)
    tl.store(slot_position + written, written, mask=did_fit & (written < end))
    tl.debug_barrier()  # everyone has read the planned length
    tl.store(planned_length, tokens)
    return planned


@triton.jit
def _insert_all(
    topk, cells, first, visible, PICKS: tl.constexpr, PICK_TILE: tl.constexpr, CELL_BITS: tl.constexpr
):
    """Put the ids of saved rows into the table; returns how many cells name ids the sequence has not."""
    refused = 0
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        ids = tl.load(topk + picks, mask=picks < PICKS, other=_EMPTY)
        refused += tl.sum(((ids < _EMPTY) | (ids >= visible)).to(tl.int32), axis=0)
        insert_picks(cells, ids, picks, (ids >= 0) & (ids < first), CELL_BITS)
    return refused


@triton.jit
def _find_all(
    topk, cells, cell_slot, pick_cell, slot_page, slot_position, first, visible, fits,
    PICKS: tl.constexpr, NEWEST_AT: tl.constexpr, NEWEST: tl.constexpr, PER_BLOCK: tl.constexpr,
    PICK_TILE: tl.constexpr, CELL_BITS: tl.constexpr,
):
    """Note each pick's cell, and give the cell its first slot: its own where rows are their own slots, or empty.

    Returns how many cells name newest ids whose slot lies in no page.
    """
    homeless = 0
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        ids = tl.load(topk + picks, mask=picks < PICKS, other=_EMPTY)
        saved = (ids >= 0) & (ids < first)
        cell = find_cells(cells, ids, saved, CELL_BITS)
        held = tl.load(slot_position + ids, mask=saved & fits, other=_EMPTY)
        tl.store(pick_cell + picks, cell, mask=picks < PICKS)
        tl.store(cell_slot + cell, tl.where(held == ids, ids, _EMPTY), mask=saved)
        newest = (ids >= first) & (ids < visible)
        place = _placed(slot_page, _newest_of(ids, fits, NEWEST_AT, NEWEST), newest, PER_BLOCK)
        homeless += tl.sum((newest & (place < 0)).to(tl.int32), axis=0)
    return homeless


@triton.jit
def _mark_hits(
    cells, cell_slot, slot_position, order, walk, count,
    SLOTS: tl.constexpr, SLOT_TILE: tl.constexpr, CELL_BITS: tl.constexpr,
):
    """Walk the slots from the oldest: hits tell their cell, and the walk keeps ~slot for them, slot for others."""
    for start in range(0, SLOTS, SLOT_TILE):
        turns = start + tl.arange(0, SLOT_TILE)
        slot = tl.load(order + turns, mask=turns < count, other=0).to(tl.int32)
        held = tl.load(slot_position + slot, mask=turns < count, other=_EMPTY)
        cell = find_cells(cells, held, held >= 0, CELL_BITS)
        tl.store(cell_slot + cell, slot, mask=cell >= 0)
        tl.store(walk + turns, tl.where(cell >= 0, -1 - slot, slot), mask=turns < count)


@triton.jit
def _elected(cells, cell, picks):
    """Whether a pick is the first occurrence of its id; `cell` is -1 where it looks for nothing."""
    key = tl.load(cells + cell, mask=cell >= 0, other=EMPTY_CELL)
    return (cell >= 0) & ((key & 0xFFFFFFFF) == picks.to(tl.int64))


@triton.jit
def _list_misses(
    topk, cells, cell_slot, pick_cell, page_table, miss_id, miss_frame, absent_ids,
    PICKS: tl.constexpr, PER_BLOCK: tl.constexpr, PICK_TILE: tl.constexpr,
):
    """Write misses, and the absent ones among them, in order of first occurrence; returns the three counts."""
    distinct, misses, absents = 0, 0, 0
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        ids = tl.load(topk + picks, mask=picks < PICKS, other=_EMPTY)
        cell = tl.load(pick_cell + picks, mask=picks < PICKS, other=_EMPTY)
        first = _elected(cells, cell, picks)
        miss = first & (tl.load(cell_slot + cell, mask=first, other=0) < 0)
        frame = tl.load(page_table + ids // PER_BLOCK, mask=miss, other=0)
        absent = frame < 0
        place = misses + tl.cumsum(miss.to(tl.int32), axis=0) - 1
        tl.store(miss_id + place, ids, mask=miss)
        tl.store(miss_frame + place, frame, mask=miss)
        tl.store(absent_ids + absents + tl.cumsum(absent.to(tl.int32), axis=0) - 1, ids, mask=absent)
        distinct += tl.sum(first.to(tl.int32), axis=0)
        misses += tl.sum(miss.to(tl.int32), axis=0)
        absents += tl.sum(absent.to(tl.int32), axis=0)
    return distinct, misses, absents


@triton.jit
def _replace(order, walk, victims, unused_count, misses, count, SLOTS: tl.constexpr, SLOT_TILE: tl.constexpr):
    """Write the new order, [remaining stale, just loaded, hits], and the victim of each miss."""
    before = 0
    for start in range(0, SLOTS, SLOT_TILE):
        turns = start + tl.arange(0, SLOT_TILE)
        noted = tl.load(walk + turns, mask=turns < count, other=_EMPTY)
        unused = noted >= 0
        rank = before + tl.cumsum(unused.to(tl.int32), axis=0) - 1
        taken = unused & (rank < misses)
        slot = tl.where(unused, noted, -1 - noted)
        kept = tl.where(unused, rank - misses, unused_count + turns - rank - 1)
        turn = tl.where(taken, unused_count - misses + rank, kept)
        tl.store(order + turn, slot.to(tl.int16), mask=turns < count)
        tl.store(victims + rank, slot, mask=taken)
        before += tl.sum(unused.to(tl.int32), axis=0)


@triton.jit
def _place_misses(
    topk, cells, cell_slot, pick_cell, slot_page, slot_position, victims, miss_slot, heat, fits, counts,
    PICKS: tl.constexpr, PER_BLOCK: tl.constexpr, PICK_TILE: tl.constexpr,
):
    """Give each miss its slot; count the heat where it `counts`. Each cell is its elected pick's alone."""
    misses = 0
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        ids = tl.load(topk + picks, mask=picks < PICKS, other=_EMPTY)
        cell = tl.load(pick_cell + picks, mask=picks < PICKS, other=_EMPTY)
        first = _elected(cells, cell, picks)
        miss = first & (tl.load(cell_slot + cell, mask=first, other=0) < 0)
        place = misses + tl.cumsum(miss.to(tl.int32), axis=0) - 1
        slot = tl.where(fits, ids, tl.load(victims + place, mask=miss & (fits == 0), other=0))
        tl.store(cell_slot + cell, slot, mask=miss)
        tl.store(slot_position + slot, ids, mask=miss)
        tl.store(miss_slot + place, _placed(slot_page, slot, miss, PER_BLOCK), mask=miss)
        tl.atomic_add(heat + ids // PER_BLOCK, 1, mask=first & counts, sem="relaxed")
        misses += tl.sum(miss.to(tl.int32), axis=0)


@triton.jit
def _answer(
    topk, slots, cell_slot, pick_cell, slot_page, first, visible, fits,
    PICKS: tl.constexpr, NEWEST_AT: tl.constexpr, NEWEST: tl.constexpr, PER_BLOCK: tl.constexpr,
    PICK_TILE: tl.constexpr,
):
    """Write every output cell."""
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        ids = tl.load(topk + picks, mask=picks < PICKS, other=_EMPTY)
        cell = tl.load(pick_cell + picks, mask=picks < PICKS, other=_EMPTY)
        saved = tl.load(cell_slot + cell, mask=cell >= 0, other=0)
        newest = (ids >= first) & (ids < visible)
        slot = tl.where(newest, _newest_of(ids, fits, NEWEST_AT, NEWEST), saved)
        tl.store(slots + picks, _placed(slot_page, slot, newest | (cell >= 0), PER_BLOCK), mask=picks < PICKS)


@triton.jit
def _place_newest(
    newest_slot, slot_page, tokens, visible, fits,
    QUERIES: tl.constexpr, NEWEST_AT: tl.constexpr, NEWEST: tl.constexpr, PER_ID: tl.constexpr,
    PER_BLOCK: tl.constexpr,
):
    queries = tl.arange(0, 4)
    ids = (tokens + queries) // PER_ID
    slot = _placed(slot_page, _newest_of(ids, fits, NEWEST_AT, NEWEST), ids < visible, PER_BLOCK)
    tl.store(newest_slot + queries, slot, mask=queries < QUERIES)


@triton.jit
def _count(miss_count, counters, hits, misses):
    tl.store(miss_count, misses)
    tl.store(counters, tl.load(counters) + hits)
    tl.store(counters + 1, tl.load(counters + 1) + misses)


@triton.jit
def _refuse(ok, absent_group, absent_count, counters, absents, refused, GROUP: tl.constexpr):
    tl.store(ok, 0)
    tl.store(absent_group, GROUP)
    tl.store(absent_count, absents)
    tl.store(counters + 2, tl.load(counters + 2) + absents)
    tl.store(counters + 3, tl.load(counters + 3) + refused)


@triton.jit
def _answer_nothing(slots, newest_slot, miss_count, PICKS: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr):
    for start in range(0, PICKS, TILE):
        picks = start + tl.arange(0, TILE)
        tl.store(slots + picks, tl.full((TILE,), _EMPTY, tl.int32), mask=picks < PICKS)
    queries = tl.arange(0, 4)
    tl.store(newest_slot + queries, tl.full((4,), _EMPTY, tl.int32), mask=queries < QUERIES)
    tl.store(miss_count, 0)


@triton.jit
def _empty_cells(cells, pick_cell, PICKS: tl.constexpr, PICK_TILE: tl.constexpr):
    """Leave the table empty for the next launch: every key's cell is known to a pick."""
    for start in range(0, PICKS, PICK_TILE):
        picks = start + tl.arange(0, PICK_TILE)
        cell = tl.load(pick_cell + picks, mask=picks < PICKS, other=_EMPTY)
        tl.store(cells + cell, tl.full((PICK_TILE,), EMPTY_CELL, tl.int64), mask=cell >= 0)
# fmt: on
