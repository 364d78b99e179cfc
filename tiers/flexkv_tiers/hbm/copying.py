"""The *copy* and *commit* kernels: bring the planned misses of one layer and plane into the hot buffer.

*copy* shares its programs among the requests that are really there, as the device says, each over every n-th tile
of a request's rows: a small batch fills the bus too, however large the captured one is. A tile's rows are all on
their way before the first is stored, and each row in two parts, the largest power of two of its words and the rest,
because tensors have sizes of powers of two: 656 bytes are 512 and 144. Loads from host memory are 16 bytes wide
whatever the row's length. Rows of whole words that are no multiple of 16 (584) begin in the middle of 16 bytes
every other time: there the load begins at the 16 bytes before, and the store, in HBM, is of 8 bytes. `gather`
launches both.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FRAME_UNIT_BYTES = tl.constexpr(4096)


# fmt: off
@triton.jit
def copy_kernel(
    batch, miss_count, miss_id, miss_slot, miss_frame, bases, units, rows, offset,
    PICKS: tl.constexpr, PER_BLOCK: tl.constexpr, ROWS_PER_ID: tl.constexpr, ROW_BYTES: tl.constexpr,
    HEAD: tl.constexpr, TAIL: tl.constexpr, TILE: tl.constexpr,
):
    """Programs go to requests in turn. `rows` int64 [slots, words of a slot]; `offset` bytes of row 0 in a frame."""
    real = tl.maximum(tl.load(batch), 1)  # where there is none, a padded row's miss count is 0
    row, part, parts = tl.program_id(0) % real, tl.program_id(0) // real, tl.num_programs(0) // real
    if part < parts:
        total = tl.load(miss_count + row) * ROWS_PER_ID
        miss_id, miss_slot, miss_frame = miss_id + row * PICKS, miss_slot + row * PICKS, miss_frame + row * PICKS
        start = part * TILE
        while start < total:  # a range of tensors is more than some releases' interpreters can do
            unit = start + tl.arange(0, TILE)
            wanted = unit < total
            each = tl.load(miss_id + unit // ROWS_PER_ID, mask=wanted, other=0)
            slot = tl.load(miss_slot + unit // ROWS_PER_ID, mask=wanted, other=0)
            frame = tl.load(miss_frame + unit // ROWS_PER_ID, mask=wanted, other=0)
            within = unit % ROWS_PER_ID
            source = _address(bases, tl.load(units), frame, wanted) + offset
            source += (each % PER_BLOCK * ROWS_PER_ID + within).to(tl.int64) * ROW_BYTES
            target = rows + (slot.to(tl.int64) * ROWS_PER_ID + within) * (ROW_BYTES // 8)
            if ROW_BYTES % 16 == 0:
                _copy_rows(source, target, wanted, ROW_BYTES // 8, HEAD, TAIL)
            else:
                _copy_shifted_rows(source, target, wanted, ROW_BYTES // 8, HEAD, TAIL)
            start += parts * TILE


@triton.jit
def _address(bases, units, frame, wanted):
    """Address of each frame as the device sees it, int64."""
    base = tl.load(bases + frame // units, mask=wanted, other=0)
    return base + (frame % units).to(tl.int64) * _FRAME_UNIT_BYTES


@triton.jit
def _copy_rows(source, target, wanted, WORDS: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr):
    """Rows that are whole 16 bytes, of `WORDS` words: HEAD of them, then the rest in a field of TAIL."""
    begin = tl.multiple_of(source.to(tl.pointer_type(tl.int64), bitcast=True), 16)[:, None]
    end = target[:, None]
    head = tl.arange(0, HEAD)[None, :]
    first = tl.load(begin + head, mask=wanted[:, None])
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)[None, :]
        there = wanted[:, None] & (tail < WORDS)
        second = tl.load(begin + tail, mask=there)
        tl.store(end + tail, second, mask=there)
    tl.store(end + head, first, mask=wanted[:, None])


@triton.jit
def _copy_shifted_rows(source, target, wanted, WORDS: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr):
    """Rows of an odd number of words: one word more is loaded, before the row or behind it, and not stored.

    That word lies in the same 16 bytes as a word of the row, so it is in the same frame.
    """
    shift = ((source >> 3) & 1).to(tl.int32)[:, None]
    begin = tl.multiple_of((source & -16).to(tl.pointer_type(tl.int64), bitcast=True), 16)[:, None]
    end = target[:, None]
    head = tl.arange(0, HEAD)[None, :]
    first = tl.load(begin + head, mask=wanted[:, None])
    tail = HEAD + tl.arange(0, TAIL)[None, :]
    second = tl.load(begin + tail, mask=wanted[:, None] & (tail < WORDS + 1))
    tl.store(end + tail - shift, second, mask=wanted[:, None] & (tail - shift < WORDS))
    tl.store(end + head - shift, first, mask=wanted[:, None] & (head >= shift))


@triton.jit
def commit_kernel(batch, request_of, accepted, length, ok, TILE: tl.constexpr):
    """One program for the whole batch: requests that are ok grow by what verification kept."""
    row = tl.arange(0, TILE)
    real = row < tl.load(batch)
    request = tl.load(request_of + row, mask=real, other=0)
    alive = real & (tl.load(ok + request, mask=real, other=0) != 0)
    tokens = tl.load(length + request, mask=alive, other=0)
    tl.store(length + request, tokens + tl.load(accepted + row, mask=alive, other=0), mask=alive)
# fmt: on
