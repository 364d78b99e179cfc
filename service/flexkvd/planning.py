"""What the planner is told of the configuration, in its own words and units. Called by `parts` and the preflight."""

from __future__ import annotations

from flexkv_py import damage, operating
from flexkv_py.core.config import SECOND_NS, PlannerConfig
from flexkv_py.core.messages import Tier
from flexkv_py.core.planner import Planner
from flexkv_py.rows.table import RowLimits
from flexkv_py.tenants.owner import Quota
from flexkvd.config import Config, RowPathTable, TenantTable
from flexkvd.tier_tables import SsdTable

EXTENSIONS = (operating.handlers, damage.handlers)
"""What the daemon's planner handles beside its own events."""


def make_planner(told: PlannerConfig) -> Planner:
    """The planner as the daemon runs it, and as a recording of it is replayed."""
    return Planner(told, EXTENSIONS)


def planner_config(config: Config) -> PlannerConfig:
    """What of it the planner is told."""
    ssd, s3, limits, rules = config.ssd, config.s3, config.limits, config.planner
    hits_min = 2 if rules.admission == "second-use" else 1
    tiers = (Tier.DRAM, *([Tier.SSD] if ssd else []), *([Tier.S3] if s3 else []))
    return PlannerConfig(
        tiers=tiers,
        recovers=tiers[1:],
        segment_bytes=config.dram.segment_bytes,
        dram_segments=config.dram.bytes // config.dram.segment_bytes,
        ssd_bytes=_usable_bytes(ssd) if ssd else 0,
        s3_bytes=s3.bytes if s3 else 0,
        policy=rules.policy,
        ssd_hits_min=rules.ssd_hits_min or hits_min,
        s3_hits_min=rules.s3_hits_min or hits_min,
        ssd_bytes_per_day=ssd.endurance_bytes_per_day if ssd else 0,
        dram_clean_ahead=rules.clean_ahead if rules.dram_clean_ahead < 0 else rules.dram_clean_ahead,
        ssd_clean_ahead=rules.clean_ahead if rules.ssd_clean_ahead < 0 else rules.ssd_clean_ahead,
        sessions_max=limits.sessions_max,
        tickets_per_session_max=limits.tickets_per_session_max,
        leases_per_session_max=limits.leases_per_session_max,
        keys_per_event_max=limits.keys_per_event_max,
        allocation_waiters_max=limits.allocation_waiters_max,
        demotions_in_flight_max=limits.demotions_in_flight_max,
        demotion_bytes_in_flight_max=limits.demotion_bytes_in_flight_max,
        promotions_in_flight_max=limits.promotions_in_flight_max,
        promotion_bytes_in_flight_max=limits.promotion_bytes_in_flight_max,
        flush_in_flight_max=limits.flush_in_flight_max,
        demotion_faults_max=limits.demotion_faults_max,
        story_events_max=limits.story_events_max,
        hold_ns_max=int(limits.hold_s_max * SECOND_NS),
        pins_max=limits.pins_max,
        pinned_share_max=limits.pinned_share_max,
        retry_after_ns=int(limits.retry_after_s * SECOND_NS),
        tenants_max=limits.tenants_max,
        quotas={name: quota_of(table) for name, table in config.tenants.items()},
        rows=_row_limits(config.row_path),
    )


def quota_of(table: TenantTable) -> Quota:
    """A tenant's table in the planner's words."""
    return Quota(table.dram_bytes, table.ssd_bytes, table.s3_bytes, table.weight)


def _row_limits(table: RowPathTable) -> RowLimits:
    return RowLimits(
        requests_per_session_max=table.requests_per_session_max,
        blocks_per_request_max=table.blocks_per_request_max,
        blocks_per_session_max=table.blocks_per_session_max,
        policy=table.policy,
        ack_ns_max=int(table.ack_s_max * SECOND_NS),
        replay_ns_max=int(table.replay_s_max * SECOND_NS),
        absent_replays_max=table.absent_replays_max,
        pinned_share_max=table.pinned_share_max,
    )


def _usable_bytes(ssd: SsdTable) -> int:
    """What of the capacity live records may take."""
    from flexkv_tiers.ssd.sizes import planned_usable_bytes  # noqa: PLC0415 - only a daemon with a disk tier needs it

    return planned_usable_bytes(ssd.bytes, len(ssd.directory), ssd.segment_bytes)
