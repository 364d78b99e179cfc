"""Shapes of single blocks, their stories and pins."""

from __future__ import annotations

from flexkvd.api.shapes.base import EXAMPLE_KEY, KEYS_MAX, PIN_KEYS_MAX, TTL_S_MAX, Body, Key, Shape, TierWord, said


class StoryEvent(Shape):
    """Something that happened to a block."""

    age_s: float = said(12.5, "Seconds ago.")
    what: str = said("demote", "Saved, promoted, demoted, evicted, lost, …")
    tier: str = said("ssd", "Where.")
    detail: str = said("", "Why, where there is more to say.")


class Story(Shape):
    """What is remembered of a block, and what it is now."""

    key: Key
    explanation: str = said("never seen", "One sentence: why it is or is not a hit now.")
    events: list[StoryEvent] = said([], "Oldest first, as far back as the ring of stories reaches.")


class Block(Shape):
    """A block in one namespace and shard."""

    key: str = said(EXAMPLE_KEY, "Its key, hex: it names the whole prefix.")
    parent: str | None = said("00ff" * 8, "Key of the block before it; null for the first of a chain.")
    namespace: str = said("ab" * 32, "Digest of geometry, model, tenant and epoch.")
    tenant: str = said("team-a", "Whose; empty when no session said so yet.")
    shard: int = said(0, "Part of the model.")
    tiers: list[TierWord] = said(["dram", "ssd"], "Where it is whole.")
    bytes: int = said(5_242_880, "Of all its copies.")
    uses: int = said(3, "Saves and loads, those of earlier lives as far as known.")
    pinned: bool = said(False, "By the operator.")
    leased: bool = said(False, "A lease, a promise or a running request needs it.")
    readers: int = said(0, "Readers of its copies now.")
    matchable: bool = said(True, "A hit now: READY in a tier that is up, as is its whole prefix.")


class BlockPage(Shape):
    """Some blocks, in order of their keys."""

    blocks: list[Block] = said([], "At most `limit` keys; a key has one entry per namespace and shard.")
    next: str | None = said(EXAMPLE_KEY, "Pass it as `after` for the next page; null after the last.")


class BlockDetail(Shape):
    """One block wherever it is."""

    key: str = said(EXAMPLE_KEY, "Its key, hex.")
    copies: list[Block] = said([], "One entry for each namespace and shard.")


class PinBody(Body):
    """What to keep, and for how long."""

    keys: list[Key] = said([EXAMPLE_KEY], "Block keys, hex.", min_length=1, max_length=PIN_KEYS_MAX)
    ttl_s: float = said(600, "Seconds after which the pin ends by itself.", default=600.0, gt=0, le=TTL_S_MAX)


class PinReport(Shape):
    """What was pinned."""

    pinned: int = said(1, "Keys with pinned copies.")
    missing: list[str] = said([], "Keys that no tier has.")
    bytes: int = said(5_242_880, "Of the pinned copies.")
    expires_in_s: float = said(600.0, "Seconds until they are let go.")


class Pinned(Shape):
    """One pinned block."""

    key: str = said(EXAMPLE_KEY, "Its key, hex.")
    tiers: list[TierWord] = said(["dram"], "Where it has pinned copies.")
    bytes: int = said(5_242_880, "Of these copies.")
    expires_in_s: float = said(412.5, "Seconds until the last of them is let go.")


class Pins(Shape):
    """What is pinned."""

    pins: list[Pinned] = said([], "The first 256, in the order they were pinned.")
    count: int = said(1, "All of them.")


class UnpinBody(Body):
    """What to let go."""

    keys: list[Key] = said([EXAMPLE_KEY], "Block keys, hex.", min_length=1, max_length=KEYS_MAX)


class UnpinReport(Shape):
    """What was let go."""

    unpinned: int = said(1, "Keys that were pinned.")
