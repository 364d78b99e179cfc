"""The codecs of the configured tiers, and who tells them what blocks consist of.

Makes one pool of compressing processes for all tiers. Where nothing is to be compressed none of them runs,
until the SSD tier meets a record that an earlier life compressed: whatever is configured for writing, what
lies there is read. The stores use their tier's codec; sessions introduce their geometry here as they open.
"""

from __future__ import annotations

from flexkv_py.core.messages import Tier
from flexkv_py.geometry import Geometry
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.codec.choice import CodecChooser
from flexkv_tiers.codec.plan import section_plan
from flexkv_tiers.codec.pool import CodecPool, TierCodec
from flexkv_tiers.memory import Arena
from flexkvd.config import Config

CALL_S_MAX = 30.0
"""A chunk or block that takes longer to compress, waits for scratch and processes included, has failed."""


class Codecs:
    """`of` says how a tier compresses: None where the daemon neither compresses nor decompresses for it."""

    def __init__(self, pool: CodecPool | None, by_tier: dict[Tier, TierCodec]) -> None:
        self._pool = pool
        self._by_tier = by_tier
        self._compresses = any(codec.compresses for codec in by_tier.values())

    @classmethod
    def make(cls, config: Config, arena: Arena) -> Codecs:
        """As configured; nothing runs before `start`."""
        tables = {Tier.SSD: config.ssd, Tier.S3: config.s3}
        choosers = {
            tier: CodecChooser(table.codec, dict(table.codec_planes))
            for tier, table in tables.items()
            if table is not None
        }
        # What S3 has is decompressed by its own byte workers.
        choosers = {tier: chooser for tier, chooser in choosers.items() if chooser.compresses or tier is Tier.SSD}
        if not choosers:
            return cls(None, {})
        table = config.codec
        pool = CodecPool(arena, processes=table.processes, scratch_bytes=table.scratch_bytes, timeout_s=CALL_S_MAX)
        return cls(pool, {tier: TierCodec(pool, chooser) for tier, chooser in choosers.items()})

    def of(self, tier: Tier) -> TierCodec | None:
        return self._by_tier.get(tier)

    def introduce(self, namespace: NamespaceDigest, geometry: Geometry) -> None:
        """A session says what the blocks of its namespace consist of."""
        if self._compresses:
            plan = section_plan(geometry)
            for codec in self._by_tier.values():
                codec.introduce(namespace, plan)

    async def start(self) -> None:
        """Start the processes if anything is to be compressed."""
        if self._pool is not None and self._compresses:
            await self._pool.start()

    async def close(self) -> None:
        """End the processes: after the stores, whose moves would fail with them. Idempotent."""
        if self._pool is not None:
            await self._pool.close()
