"""Blocks as an operator sees them: one by its key, or all in order of their keys, page by page. Changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from flexkv_py.core.blocks import Block, Copy, CopyState
from flexkv_py.core.matching import slowest_tier
from flexkv_py.core.messages import Tier
from flexkv_py.core.state import State
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_py.operating.gathering import bounds
from flexkv_py.operating.pins import blocks_of, bytes_of

KEYS_PER_SLICE_MAX = 1024


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block of one namespace and shard; whole copies only count as `tiers`."""

    key: BlockKey
    parent: BlockKey
    namespace: NamespaceDigest
    shard: int
    tiers: tuple[Tier, ...]
    bytes: int
    """Of all its copies."""
    uses: int
    pinned: bool
    leased: bool
    readers: int
    matchable: bool
    tenant: str = ""


def facts_of_block(state: State, block: Block) -> BlockFacts:
    """What is known of one block now."""
    copies = block.copies()
    ready = tuple(copy.tier for copy in copies if copy.state is CopyState.READY)
    return BlockFacts(
        block.key,
        block.parent,
        block.index.namespace,
        block.index.shard,
        ready,
        sum(bytes_of(copy) for copy in copies),
        block.uses,
        pinned=any(copy in state.pinned for copy in copies),
        leased=block.needed,
        readers=sum(copy.readers for copy in copies),
        matchable=block.linked and slowest_tier(state, block) is not None,
    )


def facts_of_key(state: State, key: BlockKey) -> list[BlockFacts]:
    """One entry for each namespace and shard that has the block."""
    return [facts_of_block(state, block) for block in blocks_of(state, key)]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A block with pinned copies in `tiers`, the last of them until `until_ns`."""

    key: BlockKey
    until_ns: int
    tiers: tuple[Tier, ...]
    bytes: int


def pinned_blocks(state: State) -> list[Pinned]:
    """What is pinned, in the order it was: at most `pins_max` copies."""
    copies: dict[Block, list[Copy]] = {}
    for copy in state.pinned:
        copies.setdefault(copy.block, []).append(copy)
    return [
        Pinned(
            block.key,
            max(state.pinned[copy] for copy in pinned),
            tuple(sorted(copy.tier for copy in pinned)),
            sum(map(bytes_of, pinned)),
        )
        for block, pinned in copies.items()
    ]


class Page:
    """The next `limit` keys after `after` that begin with `prefix`, found in slices.

    Keys of a million blocks stand in no order, so each slice keeps the smallest it has seen. A block that comes or
    goes meanwhile may be there or not.
    """

    def __init__(self, state: State, prefix: str, after: BlockKey | None, limit: int) -> None:
        self._state, self._after, self._limit = state, after or b"", limit
        self._lowest, self._highest = bounds(prefix)
        self._indexes = list(state.indexes.values())
        self._keys: Iterator[BlockKey] = iter(())
        self.smallest: list[BlockKey] = []  # the page, in order, once all were looked at

    def slice(self) -> bool:
        """Look at a bounded number of keys; False when all were looked at."""
        keys = list(islice(self._keys, KEYS_PER_SLICE_MAX))
        if not keys:
            if not self._indexes:
                return False
            self._keys = iter(list(self._indexes.pop().blocks))
            return True
        after, lowest, highest = self._after, self._lowest, self._highest
        fit = [key for key in keys if after < key <= highest and key >= lowest]
        self.smallest = heapq.nsmallest(self._limit, {*self.smallest, *fit})
        if len(self.smallest) == self._limit:
            self._highest = self.smallest[-1]
        return True
