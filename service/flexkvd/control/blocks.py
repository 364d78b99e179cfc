"""Single blocks as answers: listed, explained, with their stories, and pinned. What pins and lists is `operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.operating.listing import BlockFacts
from flexkvd.parts import Parts

STORY_EVENTS_SCANNED_MAX = 262_144
"""Lines of all blocks' stories looked through for one block's: the newest."""
STORY_EVENTS_PER_TURN_MAX = 16_384
PINS_PER_ANSWER_MAX = 256
KEYS_PER_UNPIN_MAX = 256


class Blocks:
    """Everything an answer says of single blocks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._operations = parts.operations

    async def page(self, prefix: str, after: BlockKey | None, limit: int) -> dict[str, Any]:
        """The next blocks in order of their keys, and where to go on."""
        found = await self._operations.blocks(prefix, after, limit)
        keys = dict.fromkeys(facts.key for facts in found)
        following = found[-1].key.hex() if len(keys) == limit else None
        return {"blocks": [_facts(each) for each in found], "next": following}

    def one(self, key: BlockKey) -> dict[str, Any]:
        """A block in every namespace and shard. Raises FlexKVError(NOT_FOUND)."""
        found = self._operations.block(key)
        if not found:
            raise FlexKVError(
                ErrorCode.NOT_FOUND, f"block {key.hex()} is in no tier: /v1/blocks/{key.hex()}/story says what is known"
            )
        return {"key": key.hex(), "copies": [_facts(each) for each in found]}

    async def story(self, key: BlockKey) -> dict[str, Any]:
        """What is remembered of a block, oldest first, and why it is or is not a hit; looked for in bounded pieces."""
        newest = list(islice(reversed(self._parts.planner.state.story), STORY_EVENTS_SCANNED_MAX))
        now_ns, found = self._parts.engine.now_ns(), []
        for start in range(0, len(newest), STORY_EVENTS_PER_TURN_MAX):
            found += [event for event in newest[start : start + STORY_EVENTS_PER_TURN_MAX] if event[1] == key]
            await asyncio.sleep(0)
        events = [
            {"age_s": round((now_ns - at_ns) / 1e9, 3), "what": what, "tier": tier.name.lower(), "detail": detail}
            for at_ns, _, what, tier, detail in reversed(found)
        ]
        return {"key": key.hex(), "explanation": self._operations.explain(key), "events": events}

    async def pin(self, keys: Sequence[BlockKey], ttl_s: float) -> dict[str, Any]:
        """Pin all, or raise FlexKVError and pin none."""
        report = await self._operations.pin(_distinct(keys), ttl_s)
        missing = [key.hex() for key in report.missing]
        return {"pinned": report.pinned, "missing": missing, "bytes": report.bytes, "expires_in_s": ttl_s}

    async def unpin(self, keys: Sequence[BlockKey]) -> int:
        """How many of the keys were pinned; asked for in pieces, because nothing here may hold the loop for long."""
        distinct, unpinned = _distinct(keys), 0
        for start in range(0, len(distinct), KEYS_PER_UNPIN_MAX):
            unpinned += await self._operations.unpin(distinct[start : start + KEYS_PER_UNPIN_MAX])
            await asyncio.sleep(0)
        return unpinned

    def pins(self) -> dict[str, Any]:
        """What is pinned; the first `PINS_PER_ANSWER_MAX` of it, and how many there are."""
        now_ns, pinned = self._parts.engine.now_ns(), self._operations.pins()
        shown = [
            {
                "key": each.key.hex(),
                "tiers": [tier.name.lower() for tier in each.tiers],
                "bytes": each.bytes,
                "expires_in_s": round(max(0, each.until_ns - now_ns) / 1e9, 3),
            }
            for each in pinned[:PINS_PER_ANSWER_MAX]
        ]
        return {"pins": shown, "count": len(pinned)}


def _distinct(keys: Sequence[BlockKey]) -> list[BlockKey]:
    return list(dict.fromkeys(keys))


def _facts(facts: BlockFacts) -> dict[str, Any]:
    return {
        "key": facts.key.hex(),
        "parent": None if facts.parent == ROOT else facts.parent.hex(),
        "namespace": facts.namespace.hex(),
        "tenant": facts.tenant,
        "shard": facts.shard,
        "tiers": [tier.name.lower() for tier in facts.tiers],
        "bytes": facts.bytes,
        "uses": facts.uses,
        "pinned": facts.pinned,
        "leased": facts.leased,
        "readers": facts.readers,
        "matchable": facts.matchable,
    }
