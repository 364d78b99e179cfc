"""The blocks an operation means, found in slices: by their keys, by walking a tier's orders, or in whole indexes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from flexkv_py.core.blocks import Block, Copy, CopyList
from flexkv_py.core.messages import Tier
from flexkv_py.core.state import State
from flexkv_py.keys import KEY_BYTES
from flexkv_py.operating.messages import Choice, OperationKind
from flexkv_py.operating.pins import blocks_of

GATHERED_PER_EVENT_MAX = 256


class Gathering:
    """What is found so far. An eviction walks its tier's orders, so the coldest come first, of all tenants in turn."""

    def __init__(self, state: State, choice: Choice, kind: OperationKind, tier: Tier) -> None:
        self._state, self._choice, self._tier = state, choice, tier
        self._namespaces = None if choice.namespaces is None else frozenset(choice.namespaces)
        self._lowest, self._highest = bounds(choice.prefix)
        self.found: dict[Block, None] = {}
        self.missing = 0
        self.over = False
        self.walks = kind is OperationKind.EVICT and not choice.keys
        self._keys = deque(choice.keys)
        self._indexes = [] if choice.keys or self.walks else list(state.indexes.values())
        self._blocks: Iterator[Block] = iter(())
        self._orders: list[deque[CopyList]] | None = None  # not yet walked to their ends; others' after them

    def slice(self) -> bool:
        """Look at a bounded number more; False when there are no more."""
        if self._choice.keys:
            self.over = not self._look_up()
        else:
            self.over = not (self._walk() if self.walks else self._read())
        return not self.over

    def _look_up(self) -> bool:
        for _ in range(min(GATHERED_PER_EVENT_MAX, len(self._keys))):
            blocks = blocks_of(self._state, self._keys.popleft())
            self.found |= dict.fromkeys(blocks)
            self.missing += not blocks
        return bool(self._keys)

    def _read(self) -> bool:
        blocks = list(islice(self._blocks, GATHERED_PER_EVENT_MAX))
        self.found |= {block: None for block in blocks if self._means(block)}
        if blocks:
            return True
        index = self._indexes.pop() if self._indexes else None
        self._blocks = iter([] if index is None else list(index.blocks.values()))
        return index is not None

    def _walk(self) -> bool:
        if self._orders is None:
            self._orders = self._begin_walk()
        for _ in range(GATHERED_PER_EVENT_MAX):
            while self._orders and self._orders[0][0].hand is None:
                self._orders[0].popleft()
                if not self._orders[0]:
                    self._orders.pop(0)
            if not self._orders:
                return False
            order = self._orders[0][0]
            self._orders[0].rotate(-1)
            copy = order.hand
            assert copy is not None
            order.hand = copy.newer
            if self._means(copy.block):
                self.found[copy.block] = None
        return True

    def _begin_walk(self) -> list[deque[CopyList]]:
        shelves = self._state.levels[self._tier].shelves
        orders = [deque(alike) for alike in zip(*(shelf.lists for shelf in shelves), strict=True)]
        for alike in orders:
            for order in alike:
                order.hand = order.oldest
        return orders

    def end(self) -> None:
        """Walk no further."""
        self.over = True
        for alike in self._orders or ():
            for order in alike:
                order.hand = None

    def means_pinned(self, copy: Copy) -> bool:
        """Whether a pinned copy, which stands in no order, would have been met."""
        return self.walks and copy.tier is self._tier and self._means(copy.block)

    def _means(self, block: Block) -> bool:
        known = self._namespaces is None or block.index.namespace in self._namespaces
        return known and self._lowest <= block.key <= self._highest


def bounds(prefix: str) -> tuple[bytes, bytes]:
    """The lowest and the highest key that begins with these hexadecimal digits."""
    return bytes.fromhex(prefix.ljust(2 * KEY_BYTES, "0")), bytes.fromhex(prefix.ljust(2 * KEY_BYTES, "f"))
