"""Pins: copies that stay until their time is over, whoever needs their room.

A pin is one reader more of every copy its block has when it is made: so it stands in no order of eviction. A copy that
is lost all the same (a damaged record, a reset) loses its pin with it: see `core.moves.forget_pin`.
"""

from __future__ import annotations

import heapq

from flexkv_py.core.blocks import Block, Copy, CopyState
from flexkv_py.core.messages import Tier
from flexkv_py.core.moves import unpin
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import BlockKey
from flexkv_py.operating.messages import PinAnswered, PinAsked, UnpinAnswered, UnpinAsked, WishRefused

PINS_ENDED_PER_EVENT_MAX = 64


class Pins:
    """When each pinned copy may go again; which are pinned is in `State.pinned`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ends: list[tuple[int, int, Copy]] = []  # a heap; what was pinned anew or let go since is passed over

    def on_pin(self, event: PinAsked) -> None:
        """Pin all of the keys that have whole copies, or refuse them all."""
        state, keys = self._state, dict.fromkeys(event.keys)
        copies, missing = [], []
        for key in keys:
            found = [
                copy for block in blocks_of(state, key) for copy in block.copies() if copy.state is CopyState.READY
            ]
            copies += found
            if not found:
                missing.append(key)
        if (why := self._refusal(copies)) is not None:
            state.out.append(WishRefused(event.request, ErrorCode.LIMIT_EXCEEDED, why))
            return
        until_ns = state.now_ns + max(1, event.ttl_ns)
        for copy in copies:
            if copy not in state.pinned:
                state.pin(copy)
            state.pinned[copy] = until_ns
            heapq.heappush(self._ends, (until_ns, next(state.numbers), copy))
            state.tell(copy.block.key, "pin", copy.tier, f"by the operator, for {event.ttl_ns / 1e9:.3g} s")
        if copies:
            state.wake_at(until_ns)
        pinned_bytes = sum(bytes_of(copy) for copy in copies)
        state.out.append(PinAnswered(event.request, len(keys) - len(missing), missing, pinned_bytes))

    def _refusal(self, copies: list[Copy]) -> str | None:
        """Why these may not be pinned besides what is pinned; None when they may."""
        state, limits = self._state, self._state.config
        new = [copy for copy in copies if copy not in state.pinned]
        if len(state.pinned) + len(new) > limits.pins_max:
            so_many = f"{len(state.pinned)} copies are pinned, and {len(new)} more would be too many"
            return f"{so_many} (pins_max = {limits.pins_max}): unpin some, or raise the limit"
        dram_bytes = sum(bytes_of(copy) for copy in [*state.pinned, *new] if copy.tier is Tier.DRAM)
        room_bytes = int(limits.pinned_share_max * state.frames.total_pages * ALIGN_BYTES)
        if new and dram_bytes > room_bytes:
            so_much = f"{dram_bytes} bytes of DRAM would be pinned, and {room_bytes} may be"
            return f"{so_much} (pinned_share_max = {limits.pinned_share_max:g}): unpin some, or raise it"
        return None

    def on_unpin(self, event: UnpinAsked) -> None:
        """Let go of what is pinned of these blocks."""
        state, unpinned = self._state, 0
        for key in event.keys:
            found = [copy for block in blocks_of(state, key) for copy in block.copies() if copy in state.pinned]
            unpinned += bool(found)
            for copy in found:
                self._end(copy, "by the operator")
        state.out.append(UnpinAnswered(event.request, unpinned))

    def expire(self) -> None:
        """Let go of a bounded number of those whose time is over."""
        state, ends = self._state, self._ends
        for _ in range(PINS_ENDED_PER_EVENT_MAX):
            if not ends or ends[0][0] > state.now_ns:
                return
            until_ns, _, copy = heapq.heappop(ends)
            if state.pinned.get(copy) == until_ns:
                self._end(copy, "its time is over")
        state.more = True

    def _end(self, copy: Copy, why: str) -> None:
        del self._state.pinned[copy]
        self._state.tell(copy.block.key, "unpin", copy.tier, why)
        unpin(self._state, copy)


def blocks_of(state: State, key: BlockKey) -> list[Block]:
    """The blocks of this name: one of each namespace and shard that has it."""
    found = [index.blocks.get(key) for index in state.indexes.values()]
    return [block for block in found if block is not None]


def bytes_of(copy: Copy) -> int:
    """What a copy takes of its tier: frames of DRAM, or a record."""
    index = copy.block.index
    return index.frames_bytes if copy.tier is Tier.DRAM else index.record_bytes
