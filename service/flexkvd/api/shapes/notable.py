"""Shapes of blocks worth a look: what the dashboard shows of single blocks before anybody asks for one."""

from __future__ import annotations

from flexkvd.api.shapes.base import EXAMPLE_KEY, Shape, TierWord, said


class HotBlock(Shape):
    """A block that is used again and again."""

    key: str = said(EXAMPLE_KEY, "Its key.")
    namespace: str = said("9c" * 32, "The namespace's digest.")
    shard: int = said(0, "Part of the model.")
    tiers: list[TierWord] = said(["dram", "ssd"], "Where a whole copy is, the fastest first.")
    uses: int = said(42, "Saved, loaded or met again, as often as is known.")


class FaultedBlock(Shape):
    """A block's copy that could not be read or written, or was lost."""

    key: str = said(EXAMPLE_KEY, "Its key.")
    age_s: float = said(12.5, "Seconds since.")
    what: str = said("fault", "`fault` or `lost`, as in its story.")
    tier: str = said("ssd", "Where.")
    detail: str = said("promotion: corrupt", "What failed, and why.")


class Notable(Shape):
    """Blocks worth a look."""

    hottest: list[HotBlock] = said([], "The most often used first.")
    faulted: list[FaultedBlock] = said([], "The newest first; a block may stand here more than once.")
