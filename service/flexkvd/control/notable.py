"""Blocks worth a look: the hottest, and those that met a fault last. Reads a bounded part of the planner's state."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from flexkv_py.core.blocks import Block, Copy, CopyList, CopyState
from flexkv_py.core.policies.base import USES_OF_AGAIN_MIN
from flexkvd.parts import Parts

NOTABLE_MAX = 50
HOT_LOOKED_AT_MAX = 1024
"""Copies of each tier looked at for the hottest: the newest of each order, as many of each tenant, and one at least."""
STORIES_LOOKED_AT_MAX = 16_384
"""Lines of stories looked through for faults: the newest."""
TROUBLE = frozenset({"fault", "lost"})
"""Words of stories that mean that a copy could not be read or written, or is gone without having been evicted."""


class Notable:
    """Answers GET /v1/notable."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def hottest(self, limit: int) -> list[dict[str, Any]]:
        """The most often used first, and of those used as often the most recent; where nothing was used twice, none."""
        seen: dict[Block, None] = {}
        for level in self._parts.planner.state.levels.values():
            orders = [
                order for shelf in level.shelves for order in (*shelf.policy.lists, shelf.high, shelf.reclaimable)
            ]
            each_max = max(1, HOT_LOOKED_AT_MAX // max(1, len(orders)))
            for copy in chain.from_iterable(islice(_newest_first(order), each_max) for order in orders):
                if copy.block.uses >= USES_OF_AGAIN_MIN:
                    seen[copy.block] = None
        hottest = heapq.nlargest(limit, seen, key=lambda block: block.uses)
        return [_facts(block) for block in hottest]

    def faulted(self, limit: int) -> list[dict[str, Any]]:
        """Each fault of a block that its story knows, the newest first."""
        now_ns = self._parts.engine.now_ns()
        newest = islice(reversed(self._parts.planner.state.story), STORIES_LOOKED_AT_MAX)
        found = islice((event for event in newest if event[2] in TROUBLE), limit)
        return [
            {
                "key": key.hex(),
                "age_s": round((now_ns - at_ns) / 1e9, 3),
                "what": what,
                "tier": tier.name.lower(),
                "detail": detail,
            }
            for at_ns, key, what, tier, detail in found
        ]


def _newest_first(copies: CopyList) -> Iterator[Copy]:
    copy = copies.newest
    while copy is not None:
        yield copy
        copy = copy.older


def _facts(block: Block) -> dict[str, Any]:
    ready = [copy for copy in block.copies() if copy.state is CopyState.READY]
    return {
        "key": block.key.hex(),
        "namespace": block.index.namespace.hex(),
        "shard": block.index.shard,
        "tiers": [copy.tier.name.lower() for copy in ready],
        "uses": block.uses,
    }
