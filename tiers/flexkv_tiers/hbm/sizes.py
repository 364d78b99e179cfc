"""How large each request's hot buffer is: pages go, a quantum at a time, to where misses per slot are highest.

What is measured are rows missed since the last decision; nobody knows what another page would have saved. Misses per
page stand for it: a buffer that misses much for its size is too small for what its request selects, one that misses
little has room to give. Where that was wrong, since both together miss more than before, the move is undone, and who
gave gives nothing for a while. Pure: `pool` moves the pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexkv_tiers.hbm.rooms import PoolLimits

QUANTA = 16
"""Steps from the smallest to the largest buffer, about: what one decision gives or takes."""

GAIN_MIN = 1.5
"""Pages go only to who would still miss so many times as much per page after the move: else sizes would swing."""

GAIN_ROWS_MIN = 8
"""And so many more rows per page: next to nothing is no reason, however many times nothing it is."""

HELD_DECISIONS = 32
"""For so many decisions a request gives nothing after a move from it was undone."""


@dataclass(frozen=True, slots=True)
class HotBuffer:
    """One request's, as it was while `misses` rows of all groups were fetched into it."""

    request: int
    pages: int
    misses: int

    @property
    def misses_per_page(self) -> float:
        return self.misses / self.pages


@dataclass(frozen=True, slots=True)
class _Move:
    """`count` pages from one request to another, which missed `misses` rows together before."""

    taker: int
    giver: int
    count: int
    misses: int


class HotSizes:
    """Decides again and again, each time on what was missed since."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._quantum = max(1, (limits.hot_pages_max - limits.hot_pages_min) // QUANTA)
        self._moved: list[_Move] = []  # by the last decision
        self._held: dict[int, int] = {}  # request → decisions for which it still gives nothing

    def choose(self, buffers: Sequence[HotBuffer], spare: int) -> dict[int, int]:
        """Request → HBM pages that its hot buffer gets, or gives where negative; each request a quantum at most.

        `spare` free pages go first, to whoever misses most per page. What then moves comes from those that miss least.
        """
        self._held = {request: left - 1 for request, left in self._held.items() if left > 1}
        moves = self._undo({buffer.request: buffer for buffer in buffers})
        self._moved = []
        ranked = [buffer for buffer in buffers if buffer.request not in moves]
        ranked.sort(key=lambda buffer: (-buffer.misses_per_page, buffer.request))
        givers = [buffer for buffer in ranked if self._can_give(buffer) and buffer.request not in self._held]
        for taker in ranked:
            wanted = min(self._quantum, self._limits.hot_pages_max - taker.pages)
            if not wanted or not taker.misses or taker.request in moves:
                continue
            if spare:
                moves[taker.request] = min(wanted, spare)
                spare -= moves[taker.request]
                continue
            if not givers or givers[-1] is taker:
                break
            giver = givers.pop()
            count = min(wanted, self._can_give(giver))
            if not _is_worth(taker, giver, count):
                break
            moves[taker.request], moves[giver.request] = count, -count
            self._moved.append(_Move(taker.request, giver.request, count, taker.misses + giver.misses))
        return moves

    def _undo(self, buffers: Mapping[int, HotBuffer]) -> dict[int, int]:
        moves: dict[int, int] = {}
        for move in self._moved:
            if move.taker in buffers and move.giver in buffers:
                taker, giver = buffers[move.taker], buffers[move.giver]
                back = min(move.count, self._can_give(taker), self._limits.hot_pages_max - giver.pages)
                if taker.misses + giver.misses > move.misses and back > 0:  # others may have taken it by now
                    moves[move.taker], moves[move.giver] = -back, back
                    self._held[move.giver] = HELD_DECISIONS
        return moves

    def _can_give(self, buffer: HotBuffer) -> int:
        return buffer.pages - self._limits.hot_pages_min


def _is_worth(taker: HotBuffer, giver: HotBuffer, count: int) -> bool:
    """Whether the taker would still miss clearly more per page when it has the giver's pages."""
    after, before = taker.misses / (taker.pages + count), giver.misses / (giver.pages - count)
    return after > GAIN_MIN * before and after - before >= GAIN_ROWS_MIN
