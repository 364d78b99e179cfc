"""What the planner is told once, at start: tiers, sizes, rules and every limit by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flexkv_py.core.messages import Tier
from flexkv_py.rows.table import RowLimits
from flexkv_py.tenants.owner import Quota

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """Sizes in bytes, times in nanoseconds. `ssd_bytes` and `s3_bytes` count only if the tier is there."""

    tiers: tuple[Tier, ...] = (Tier.DRAM,)
    segment_bytes: int = 64 << 20
    dram_segments: int = 16
    ssd_bytes: int = 0
    s3_bytes: int = 0
    """0 = no limit of ours."""

    recovers: tuple[Tier, ...] = ()
    """Tiers that tell at start what they still have, and end with RecoveryFinished; a reset waits for that."""

    policy: str = "adaptive"
    ssd_hits_min: int = 1
    s3_hits_min: int = 1
    """Uses a block needs before it is written there unasked. Every block has one: its save."""
    ssd_bytes_per_day: int = 0
    """What may be written to SSD unasked; 0 = no limit."""
    dram_clean_ahead: float = 0.25
    ssd_clean_ahead: float = 0.25
    """Share of the tier kept free or already copied below."""

    sessions_max: int = 1024
    tickets_per_session_max: int = 1024
    leases_per_session_max: int = 1024
    keys_per_event_max: int = 16
    """Keys of requests placed in one event: whoever asks anything else waits for no more than these."""
    allocation_waiters_max: int = 65536
    demotions_in_flight_max: int = 1024
    demotion_bytes_in_flight_max: int = 64 << 20
    """Into one tier. Small blocks need many on their way to fill a link, large ones few."""
    promotions_in_flight_max: int = 1024
    promotion_bytes_in_flight_max: int = 256 << 20
    flush_in_flight_max: int = 1024
    demotion_faults_max: int = 2
    """A block whose demotion failed so often may leave DRAM without a copy below."""
    story_events_max: int = 65536
    hold_ns_max: int = 3600 * SECOND_NS
    pins_max: int = 16_384  # copies
    pinned_share_max: float = 0.5  # of DRAM
    retry_after_ns: int = 50_000_000
    """What a throttled save is told to wait."""
    tenants_max: int = 1024
    """Known by name; all that come later count as one."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    rows: RowLimits = field(default_factory=RowLimits)

    def __post_init__(self) -> None:
        assert self.tiers[0] is Tier.DRAM, "DRAM is where every block arrives"
        assert list(self.tiers) == sorted(set(self.tiers))
        assert self.segment_bytes % 4096 == 0
        assert self.segment_bytes > 0
        assert self.dram_segments > 0
        assert 0.0 <= self.dram_clean_ahead < 1.0
        assert 0.0 <= self.ssd_clean_ahead < 1.0
