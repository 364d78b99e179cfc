"""Device functions that find a selection's ids: a hash table in scratch, built and read within one program.

An ordered hash table (Amble and Knuth, "Ordered hash tables", 1974) with linear probing, filled by atomic
minimum as in Shun and Blelloch, "Phase-concurrent hash tables for determinism" (SPAA 2014): smaller keys stand
nearer to their home cell, so the table's contents do not depend on who came first, and a search for what is
not there ends at the first larger key. A key is `id << 32 | pick`, and of equal ids the smallest pick stays:
this elects the first occurrence. `gather` owns the phases and the barriers between them.
"""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY_CELL = tl.constexpr((1 << 63) - 1)
"""Larger than any key: an id is below 2**31 - 1."""

_GOLDEN = tl.constexpr(2654435769)
"""2**32 divided by the golden ratio: multiplicative hashing (Knuth, vol. 3, section 6.4)."""


@triton.jit
def home_cell(ids, CELL_BITS: tl.constexpr):
    """Where the search for an id begins; int32 below 2**CELL_BITS."""
    return ((ids.to(tl.uint32) * _GOLDEN) >> (32 - CELL_BITS)).to(tl.int32)


@triton.jit
def insert_picks(cells, ids, picks, wanted, CELL_BITS: tl.constexpr):
    """Put the `wanted` ids into the table. Each round either settles a key or carries the larger one on.

    The table is never more than a quarter full, so the rounds are few, and every key finds its cell.
    """
    carried = (ids.to(tl.int64) << 32) | picks.to(tl.int64)
    cell = home_cell(ids, CELL_BITS)
    while tl.max(wanted.to(tl.int32), axis=0) > 0:
        met = tl.atomic_min(cells + cell, carried, mask=wanted, sem="relaxed")
        wanted = wanted & (met != EMPTY_CELL) & ((met >> 32) != (carried >> 32))
        carried = tl.maximum(met, carried)
        cell = (cell + 1) & ((1 << CELL_BITS) - 1)


@triton.jit
def find_cells(cells, ids, wanted, CELL_BITS: tl.constexpr):
    """The cell that holds each `wanted` id, int32, -1 where the table has it not. Only between barriers."""
    cell = home_cell(ids, CELL_BITS)
    found = tl.full(ids.shape, -1, tl.int32)
    while tl.max(wanted.to(tl.int32), axis=0) > 0:
        met = (tl.load(cells + cell, mask=wanted, other=EMPTY_CELL) >> 32).to(tl.int32)
        found = tl.where(wanted & (met == ids), cell, found)
        wanted = wanted & (met < ids)
        cell = (cell + 1) & ((1 << CELL_BITS) - 1)
    return found
