"""Room under running requests: which of their chunks are revoked when DRAM is short, and when these frames come back.

A chunk may leave alone when its block is whole below; others are written there first. Called by the planner.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

from flexkv_py.core.blocks import CopyState, DramCopy
from flexkv_py.core.messages import Priority, Tier
from flexkv_py.core.moves import free_chunks
from flexkv_py.core.placement import Verdict, is_below, judge
from flexkv_py.core.room import demote
from flexkv_py.core.state import State
from flexkv_py.rows.attached import Running, grant, readers, revoke, revoke_copy

COLD_SCAN_MAX = 256
WAITING_SERVED_MAX = 8
"""Room is made for so many of those that wait at a time."""


def free_going(state: State) -> None:
    """Give back the frames of chunks that were revoked for room, once nothing reads them any more."""
    table = state.rows
    for copy, going in list(table.going.items()):
        reading = readers(copy)
        if copy.block.dram is not copy:
            table.settle_going(copy, going)
        elif copy.state is CopyState.READY and not is_below(copy.block, Tier.DRAM):
            table.settle_going(copy, going)  # its record was lost meanwhile: it must stay
            grant(state, copy)
        elif copy.state is CopyState.READY and copy.readers == len(reading):
            chunks = going
            for request, position in reading:
                chunks &= ~request.held(position)
            if chunks:
                table.settle_going(copy, chunks)
                free_chunks(state, copy, chunks)


def make_room(state: State) -> None:
    """Revoke what is no copy any more; and when DRAM was short, what is coldest, for those that wait."""
    for copy in list(state.dropped):
        if isinstance(copy, DramCopy):
            revoke_copy(state, copy)
    if state.rows.short_pages:
        _revoke_cold(state)


def _revoke_cold(state: State) -> None:
    """Until enough is on its way out."""
    table = state.rows
    waiting = sum(map(len, state.lines.values())) + len(table.wants)
    short_pages = table.short_pages * min(max(waiting, 1), WAITING_SERVED_MAX) - _going_pages(state)
    offered: Counter[tuple[DramCopy, int]] = Counter()
    victims: list[tuple[DramCopy, int]] = []
    for place in islice(table.policy.coldest(state.now_ns), COLD_SCAN_MAX):
        if short_pages <= 0:
            break
        copy, chunk = table.by_id[place.request].copies[place.block], place.chunk
        assert copy is not None
        offered[copy, chunk] += 1
        sharing = [(request, at) for request, at in readers(copy) if request.granted[at] >> chunk & 1]
        if offered[copy, chunk] < len(sharing):
            continue  # it is as warm as its warmest reader
        if table.short_of not in (None, copy.block.index.owner):
            continue
        kept = copy in state.pinned or any(_keeps(request, at, chunk) for request, at in sharing)
        if kept or copy.state is not CopyState.READY:
            continue
        if is_below(copy.block, Tier.DRAM):
            victims.append((copy, chunk))
            short_pages -= copy.block.index.frame_pages
        elif _write_first(state, copy):
            short_pages -= copy.block.index.frame_pages
    for copy, chunk in victims:
        table.going[copy] = table.going.get(copy, 0) | 1 << chunk
        for request, position in readers(copy):
            if request.granted[position] >> chunk & 1:
                revoke(state, request, position, 1 << chunk)
        state.count("rows", "revoked")


def _going_pages(state: State) -> int:
    """What is on its way out, but for what a rank holds that will acknowledge nothing more."""
    return sum(
        chunks.bit_count() * copy.block.index.frame_pages
        for copy, chunks in state.rows.going.items()
        if not any(rank.closed for request, _ in readers(copy) for rank in request.ranks.values())
    )


def _keeps(request: Running, position: int, chunk: int) -> bool:
    """Whether revoking a chunk from this request is not allowed, or would give no room."""
    return bool(request.pinned(position) >> chunk & 1) or any(rank.closed for rank in request.ranks.values())


def _write_first(state: State, copy: DramCopy) -> bool:
    """Set a block on its way below, or find it on its way; False when it cannot go now."""
    block = copy.block
    if any(other.state is CopyState.FILLING for other in block.copies()):
        return True
    if block.rule.skip_below or state.demotion_faults.get(block, 0) >= state.config.demotion_faults_max:
        return False
    return judge(state, copy) is Verdict.WRITE and demote(state, block, Priority.DEMOTION)
