"""Shapes of tenants: what each uses, what it may use, and what it was told."""

from __future__ import annotations

from typing import Literal

from flexkvd.api.shapes.base import EXACT_MAX, Body, Shape, said
from flexkvd.tenants import WEIGHT_MAX, WEIGHT_MIN


class Quota(Shape):
    """What a tenant may use."""

    dram_bytes: int = said(68_719_476_736, "Frames in DRAM; 0: no quota.")
    ssd_bytes: int = said(1_099_511_627_776, "Records on SSD; 0: no quota.")
    s3_bytes: int = said(0, "Records in S3; 0: no quota.")
    weight: float = said(1.0, "Its share of a tier that is full, relative to others.")


class QuotaBody(Body):
    """What a tenant may use from now on; what is not given is as if there had never been a quota."""

    dram_bytes: int = said(68_719_476_736, "Frames in DRAM; 0: no quota.", default=0, ge=0, le=EXACT_MAX)
    ssd_bytes: int = said(0, "Records on SSD; 0: no quota.", default=0, ge=0, le=EXACT_MAX)
    s3_bytes: int = said(0, "Records in S3; 0: no quota.", default=0, ge=0, le=EXACT_MAX)
    weight: float = said(
        1.0, "Its share of a full tier, relative to others.", default=1.0, ge=WEIGHT_MIN, le=WEIGHT_MAX
    )


class Tenant(Shape):
    """One tenant in this life of the daemon."""

    name: str = said("team-a", "As its sessions say it; any text.")
    kind: Literal["named", "unknown", "others"] = said(
        "named",
        "`unknown` is no tenant, but blocks found at start that no session has named yet; `others` are all tenants "
        "that came when [limits] tenants_max were known. Both have no name.",
    )
    quota: Quota
    used: dict[str, int] = said({"dram": 5_242_880, "ssd": 0}, "Bytes by tier.")
    blocks: dict[str, int] = said({"dram": 2, "ssd": 0}, "Copies that stand in the tier's order, by tier.")
    hits: int = said(900, "Keys that were matched.")
    misses: int = said(100, "Keys that were asked for and not matched.")
    hit_ratio: float | None = said(0.9, "Hits of what was asked for; null when nothing was.")
    saved_bytes: int = said(5_242_880, "Of blocks that its saves stored.")
    refused: int = said(0, "Keys of saves that were refused.")
    throttled: int = said(0, "Keys of saves that were told to come again.")
    evictions: int = said(0, "Copies evicted, in all tiers.")


class Tenants(Shape):
    """All that have a quota, a session or a block."""

    tenants: list[Tenant] = said([], "In no order that means anything.")
