"""Room under running requests: which of their chunks are revoked when DRAM is short, and when these frames come back.

A chunk may leave alone when its block is whole below; others are written there first. Called by the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from flexkv_py.core.blocks import CopyState, DramCopy
from flexkv_py.core.messages import Priority, Tier
from flexkv_py.core.moves import free_chunks
from flexkv_py.core.placement import Verdict, is_below, judge
from flexkv_py.core.room import demote
from flexkv_py.core.state import State
from flexkv_py.rows.attached import Running, grant, readers, revoke, revoke_copy
from flexkv_py.rows.policy import Place

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
    """Until enough is on its way out. What failed steps have pinned goes last, and only to one that failed earlier."""
    table = state.rows
    waiting = sum(map(len, state.lines.values())) + sum(map(len, table.wants.values()))
    going_pages = _going_pages(state)
    short_pages = table.short_pages * min(max(waiting, 1), WAITING_SERVED_MAX) - going_pages
    victims, held = list[tuple[DramCopy, int]](), list[Place]()
    pinned: list[tuple[int, DramCopy, int]] = []
    for place, copy, sharing in _offered(state):
        if short_pages <= 0:
            break
        turn = min((request.turn for request, at in sharing if request.pinned(at) >> place.chunk & 1), default=None)
        if not _may_go(state, copy, sharing, turn):
            held.append(place)
        elif turn is not None:
            pinned.append((turn, copy, place.chunk))
        elif is_below(copy.block, Tier.DRAM):
            victims.append((copy, place.chunk))
            short_pages -= copy.block.index.frame_pages
        elif _write_first(state, copy):
            short_pages -= copy.block.index.frame_pages
    if table.elder is not None and short_pages > 0 and not victims:
        wanted_pages = table.short_pages * min(len(table.wants[table.elder]), WAITING_SERVED_MAX) - going_pages
        for _, copy, chunk in sorted(pinned, key=itemgetter(0), reverse=True):
            if wanted_pages > 0:
                victims.append((copy, chunk))
                wanted_pages -= copy.block.index.frame_pages
    _send_out(state, victims)
    if not victims:
        for place in held:  # out of the way of the next scan
            table.policy.granted(place, state.now_ns)


def _offered(state: State) -> Iterator[tuple[Place, DramCopy, list[tuple[Running, int]]]]:
    """Coldest chunks, each when the last of its readers is found to be cold: it is as warm as its warmest one."""
    table, seen = state.rows, Counter[tuple[DramCopy, int]]()
    for place in islice(table.policy.coldest(state.now_ns), COLD_SCAN_MAX):
        copy = table.by_id[place.request].copies[place.block]
        assert copy is not None
        seen[copy, place.chunk] += 1
        sharing = [(request, at) for request, at in readers(copy) if request.granted[at] >> place.chunk & 1]
        if seen[copy, place.chunk] == len(sharing) and table.short_of in (None, copy.block.index.owner):
            yield place, copy, sharing


def _may_go(state: State, copy: DramCopy, sharing: list[tuple[Running, int]], turn: int | None) -> bool:
    """Whether revoking a chunk is allowed and gives room. `turn`: of the first failed step that needs it."""
    closed = any(rank.closed for request, _ in sharing for rank in request.ranks.values())
    if closed or copy.state is not CopyState.READY or copy in state.pinned:
        return False
    elder = state.rows.elder
    return turn is None or (elder is not None and elder.turn < turn and is_below(copy.block, Tier.DRAM))


def _send_out(state: State, victims: list[tuple[DramCopy, int]]) -> None:
    table = state.rows
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


def _write_first(state: State, copy: DramCopy) -> bool:
    """Set a block on its way below, or find it on its way; False when it cannot go now."""
    block = copy.block
    if any(other.state is CopyState.FILLING for other in block.copies()):
        return True
    if block.rule.skip_below or state.demotion_faults.get(block, 0) >= state.config.demotion_faults_max:
        return False
    return judge(state, copy) is Verdict.WRITE and demote(state, block, Priority.DEMOTION)
