"""The planner's configuration in one world: small, odd and different for every seed."""

from __future__ import annotations

import random

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import NamespaceSpec, Tier
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.rows.policies import ROW_POLICIES
from flexkv_py.rows.table import RowLimits
from tests.sim.faults import MILLISECOND
from tests.sim.tenants import Tenants

CHAINS_OF_TIERS = (
    (Tier.DRAM,),
    (Tier.DRAM, Tier.SSD),
    (Tier.DRAM, Tier.SSD),
    (Tier.DRAM, Tier.S3),
    (Tier.DRAM, Tier.SSD, Tier.S3),
    (Tier.DRAM, Tier.SSD, Tier.S3),
    (Tier.DRAM, Tier.SSD, Tier.S3),
)


def make_config(
    chance: random.Random, row_chance: random.Random, specs: list[NamespaceSpec], tenants: Tenants
) -> PlannerConfig:
    """DRAM for a dozen blocks or two, tiers below by chance, and now and then limits of next to nothing."""
    largest = max(ALIGN_BYTES + spec.block_bytes for spec in specs)
    tiers = chance.choice(CHAINS_OF_TIERS)
    tight = chance.random() < 0.3
    return PlannerConfig(
        tiers=tiers,
        recovers=tiers[1:],
        segment_bytes=ALIGN_BYTES * chance.choice((4, 8, 12)),
        dram_segments=chance.randint(3, 8),
        ssd_bytes=largest * chance.choice((6, 15, 60)),
        s3_bytes=chance.choice((0, 0, largest * 20)),
        policy=chance.choice(("lru", "s3fifo", "adaptive")),
        ssd_hits_min=chance.choice((1, 1, 2)),
        s3_hits_min=chance.choice((1, 1, 3)),
        ssd_bytes_per_day=chance.choice((0, 0, largest * 1000)),
        dram_clean_ahead=chance.choice((0.0, 0.25, 0.5)),
        ssd_clean_ahead=chance.choice((0.0, 0.25, 0.5)),
        sessions_max=chance.choice((3, 1024)) if tight else 1024,
        tickets_per_session_max=chance.choice((2, 1024)) if tight else 1024,
        leases_per_session_max=chance.choice((1, 1024)) if tight else 1024,
        keys_per_event_max=chance.choice((1, 3, 16)),
        allocation_waiters_max=chance.choice((3, 65536)) if tight else 65536,
        demotions_in_flight_max=chance.choice((1, 4, 16)),
        demotion_bytes_in_flight_max=chance.choice((1, 6, 64)) * largest,
        promotions_in_flight_max=chance.choice((1, 8, 64)),
        promotion_bytes_in_flight_max=chance.choice((1, 6, 64)) * largest,
        flush_in_flight_max=chance.choice((1, 16)),
        demotion_faults_max=chance.choice((1, 2)),
        tenants_max=tenants.tenants_max,
        quotas=tenants.quotas,
        rows=RowLimits(
            policy=row_chance.choice(sorted(ROW_POLICIES)),
            requests_per_session_max=row_chance.choice((1, 1024, 1024)),
            blocks_per_request_max=row_chance.choice((4, 65536, 65536)),
            ack_ns_max=row_chance.choice((50, 500)) * MILLISECOND,
            replay_ns_max=row_chance.choice((20, 5000)) * MILLISECOND,
            absent_replays_max=row_chance.choice((1, 3, 8)),
            pinned_share_max=row_chance.choice((0.25, 0.5, 1.0)),
            let_go_per_event_max=row_chance.choice((1, 2, 256)),
        ),
    )
