"""Blocks worth a look: the hottest, and those that met a fault last. Reads a bounded part of the planner's state."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from flexkv_py.core.blocks import Block, Copy, CopyState
from flexkv_py.lists import CopyList
from flexkvd.control.policies import parts_of
from flexkvd.parts import Parts

NOTABLE_MAX = 50
HOT_LOOKED_AT_MAX = 512
"""Copies of each tier looked at for the hottest: those used again most recently, as many of each tenant."""
STORIES_LOOKED_AT_MAX = 65_536
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
            again = [_newest_first(part.again) for shelf in level.shelves for part in parts_of(shelf.policy)]
            looked_at_max = 1 + HOT_LOOKED_AT_MAX // (1 + len(again))
            for copy in chain.from_iterable(islice(copies, looked_at_max) for copies in again):
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
