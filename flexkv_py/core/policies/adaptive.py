"""LRU until something else is seen to be better: the share of room for blocks used once is learnt.

Blocks used once and blocks used again stand in two lists, each from least to most recently used (2Q:
Johnson and Shasha, VLDB 1994). Evicting the older of both tails is LRU; keeping the first list to a
share of the room protects the second from a flood of blocks that never return. Which share is best is
found by miniature simulations on a sample of the keys (Waldspurger et al., USENIX ATC 2017): each
candidate serves the same references in a small cache of its own, and the live order follows the one
with fewer misses. LRU is the floor: another must beat it by a margin, and loses its place once it does not.
"""

from __future__ import annotations

from collections import OrderedDict

from flexkv_py.core.blocks import Block, Copy
from flexkv_py.core.policies.base import NEW_MIN, USES_OF_AGAIN_MIN, Policy
from flexkv_py.keys import BlockKey

SHARES = (1.0, 0.1, 0.5)
"""Candidates: the room for blocks used once. The whole of it is LRU."""
SAMPLE_MAX, SAMPLE_MIN = 2048, 64
"""Keys in one miniature at most: beyond that, half as many keys are sampled. The n-th tenant has an n-th of them."""

REFERENCES_PER_ROUND = 512
ROUND_WEIGHT = 0.8
"""What the misses of earlier rounds weigh against those of this one."""

MARGIN = 0.02
ADDS_PER_STAMP = 32


class Miniature:
    """One candidate's cache of sampled keys, and its misses, those of late weighing most."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.misses = 0.0
        self._once: OrderedDict[BlockKey, int] = OrderedDict()  # the uses known, from least to most recently used
        self._again: OrderedDict[BlockKey, int] = OrderedDict()

    def uses(self, key: BlockKey) -> int:
        """Uses known at the last reference; 0 when the key is not here."""
        return self._once.get(key) or self._again.get(key, 0)

    def refer(self, key: BlockKey, uses: int, capacity: int, *, counts: bool) -> None:
        """The key was used, or (with `counts` false) is named once more for the same use."""
        once, again = self._once, self._again
        known = once.pop(key, 0) or again.pop(key, 0)
        self.misses += counts and not known
        (again if self.share < 1.0 and uses >= USES_OF_AGAIN_MIN else once)[key] = uses
        while len(once) + len(again) > capacity:
            (once if len(once) > self.share * capacity or not again else again).popitem(last=False)


class Duel:
    """Which candidate has missed least of late."""

    def __init__(self, sample_max: int = SAMPLE_MAX) -> None:
        self._sample_max = sample_max
        self._begin()
        self._halvings = 0  # one key in 2**halvings is sampled
        self.mask = 0
        self._references = 0
        self._blocks_max = 0  # the room, as far as it was seen filled since the last round but one

    def _begin(self) -> None:
        self.minis = [Miniature(share) for share in SHARES]
        self.best = self.minis[0]

    def samples(self, key: BlockKey) -> bool:
        """Whether references to this key count. Most are told by its last byte already, without this call."""
        return not int.from_bytes(key[-4:], "big") & self.mask

    def refer(self, block: Block, *, fresh: bool, count: int) -> None:
        """A sampled block was used; `fresh` when it was not in the tier before. The order holds `count` copies."""
        key = block.key
        self._blocks_max = max(self._blocks_max, count)
        while self._blocks_max >> self._halvings > self._sample_max:
            self._halvings += 1
            self.mask = (1 << self._halvings) - 1
            self._begin()  # what was seen of the larger sample would count double
        counts = fresh or self.minis[0].uses(key) != block.uses
        capacity = max(1, self._blocks_max >> self._halvings)
        for mini in self.minis:
            mini.refer(key, block.uses, capacity, counts=counts)
        self._references += counts
        if self._references >= REFERENCES_PER_ROUND:
            self._end_round()

    def _end_round(self) -> None:
        floor, best = self.minis[0], min(self.minis, key=lambda mini: mini.misses)
        if best.misses < floor.misses * (1 - MARGIN):
            self.best = best
        elif self.best.misses >= floor.misses:
            self.best = floor
        self._references = 0
        for mini in self.minis:
            mini.misses *= ROUND_WEIGHT


class Adaptive(Policy):
    """`mark` is when the copy was last used, in steps that many copies share: one int object for all of them."""

    def __init__(self, tenants: int = 1) -> None:
        super().__init__(tenants)
        self.duel = Duel(max(SAMPLE_MIN, SAMPLE_MAX // tenants))
        self._stamp = 1
        self._adds = 0

    def add(self, copy: Copy) -> None:
        block, fresh = copy.block, not copy.mark
        self._adds += 1
        if self._adds % ADDS_PER_STAMP == 0:
            self._stamp += 1
        copy.mark = self._stamp
        (self.again if block.uses >= USES_OF_AGAIN_MIN else self.once).push_newest(copy)
        duel = self.duel
        if not block.key[-1] & duel.mask and duel.samples(block.key):
            duel.refer(block, fresh=fresh, count=self.count)

    def coldest(self) -> Copy | None:
        if self.cold.oldest is not None:
            return self.cold.oldest
        once, again, share = self.once, self.again, self.duel.best.share
        if once.oldest is None or again.oldest is None:
            return once.oldest or again.oldest
        if once.count <= NEW_MIN and once.oldest.mark >= again.oldest.mark:
            return again.oldest
        if share < 1.0:
            return once.oldest if once.count > share * self.count else again.oldest
        return once.oldest if once.oldest.mark <= again.oldest.mark else again.oldest
