"""Every metric there is, and what it says. Documentation, dashboards and alerts are tested against this list.

Owns no value: `measures` reads them, `metrics` makes text of both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One metric; a counter's name ends in `_total`. `of` is the planner's own name of what it shows."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    of: str = ""


PLANNER_COUNTERS = tuple(
    Family(f"flexkv_{name}_total", "counter", help_text, (label,), name)
    for name, label, help_text in (
        ("matched_keys", "result", "Keys asked for by match, by hit or miss."),
        ("hits", "tier", "Blocks loaded into a worker, by the tier they came from."),
        ("load_keys", "outcome", "Keys of loads, by outcome."),
        ("save_keys", "outcome", "Keys of saves, by outcome."),
        ("prefetch_keys", "outcome", "Keys of prefetches, by outcome."),
        ("promotions", "tier", "Blocks promoted to DRAM, by the tier they came from."),
        ("demotions", "tier", "Blocks demoted, by the tier they went to."),
        ("evictions", "tier", "Copies evicted, by tier."),
        ("expired", "tier", "Copies dropped because their retention time had ended, by tier."),
        ("refused_admissions", "rule", "Evictions of blocks that no tier below admitted, by the rule that refused."),
        ("over_budget", "tier", "Blocks written although the tier's daily budget was spent: somebody waited for it."),
        ("found", "tier", "Blocks found at start, or written by other daemons since, by tier."),
        ("found_twice", "tier", "Of these, records of blocks that were known there already, by tier."),
        ("lost", "tier", "Records a tier let go of by itself, or another daemon dropped, by tier."),
        ("given_up", "tier", "Loads cut short early, because a block would have come after the deadline."),
        ("not_staged", "tier", "SSD blocks that a write-behind did not get further down; they stay where they are."),
        ("faults", "what", "Failed transfers, by tier and fault."),
        ("tier_changes", "what", "Times a tier went down or came back."),
        ("replays_refused", "outcome", "Failed steps that were told that their rows will not come, by why."),
        ("refused_requests", "code", "Requests the planner refused, by error code."),
    )
)
TIER_GAUGES = tuple(
    Family(f"flexkv_tier_{name}", "gauge", help_text, ("tier",), name)
    for name, help_text in (
        ("up", "1 when the tier serves."),
        ("used_bytes", "Bytes in use in a tier."),
        ("capacity_bytes", "Room of a tier; 0: no limit of ours."),
        ("evictable_blocks", "Blocks of a tier that nothing pins."),
        ("reclaimable_blocks", "Evictable blocks of a tier that have a copy below."),
        ("writes_in_flight", "Blocks being written into a tier."),
    )
)
PLANNER_GAUGES = tuple(
    Family(f"flexkv_{name}", "gauge", help_text, (), name)
    for name, help_text in (
        ("blocks", "Blocks known, in any tier."),
        ("indexes", "Namespaces and shards known."),
        ("sessions", "Connected clients."),
        ("tickets", "Running loads, saves, prefetches and flushes."),
        ("leases", "Leases held."),
        ("transfers", "Transfers that have not ended."),
        ("promotions_in_flight", "Blocks on their way up."),
        ("loads_waiting", "Blocks to load that wait for room in DRAM."),
        ("saves_waiting", "Blocks to save that wait for room in DRAM."),
        ("demands_waiting", "Blocks that must go down and wait for their turn."),
    )
)
SHELL_FAMILIES = (
    Family("flexkv_link_bytes_total", "counter", "Bytes moved over a link.", ("link",)),
    Family("flexkv_link_faults_total", "counter", "Transfers that failed, by link and fault.", ("link", "fault")),
    Family("flexkv_damaged_at_start_total", "counter", "Damaged records met at start and left out.", ("tier",)),
    Family("flexkv_link_waiting", "gauge", "Moves that wait for their turn on a link.", ("link",)),
    Family("flexkv_link_running", "gauge", "Moves that run on a link.", ("link",)),
    Family("flexkv_link_running_bytes", "gauge", "Bytes of the moves that run on a link.", ("link",)),
    Family(
        "flexkv_link_dropped_total",
        "counter",
        "Moves that were never begun, because their deadline passed while they waited.",
        ("link",),
    ),
    Family("flexkv_request_errors_total", "counter", "Coded errors sent to workers.", ("code",)),
    Family("flexkv_connections", "gauge", "Open connections, greeted or not."),
    Family("flexkv_arena_populated_bytes", "gauge", "How much of the arena is populated."),
    Family("flexkv_arena_pinned_bytes", "gauge", "How much of the arena is pinned for CUDA devices; 0 without any."),
    Family("flexkv_events_total", "counter", "Events the planner handled."),
    Family("flexkv_loop_cpu_seconds_total", "counter", "Time the event loop's thread ran on a core."),
    Family("flexkv_loop_queued_seconds_total", "counter", "Time it was ready to run and no core was free."),
    Family("flexkv_row_readers", "gauge", "Sessions that map the arena, closed ones of living processes included."),
    Family("flexkv_row_requests", "gauge", "Requests attached, counted once in each session."),
    Family("flexkv_row_pages_total", "counter", "Chunks granted to workers and revoked from them.", ("change",)),
    Family("flexkv_row_messages_total", "counter", "Acknowledgements and reports of workers.", ("message",)),
    Family("flexkv_row_sessions_ended_total", "counter", "Sessions ended for a promise not kept.", ("code",)),
    Family(
        "flexkv_row_lookups_total",
        "counter",
        "Rows that steps selected, by whether a hot buffer had them.",
        ("result",),
    ),
    Family(
        "flexkv_row_predicted_total", "counter", "Chunks brought back ahead of need, by the kind of guess.", ("kind",)
    ),
    Family("flexkv_row_came_true_total", "counter", "Of these, chunks that were then selected, by kind.", ("kind",)),
    Family(
        "flexkv_copies_waiting",
        "gauge",
        "Pieces of copies to and from workers that wait for a thread or stream.",
        ("device",),
    ),
    Family("flexkv_resets_waiting", "gauge", "Resets of namespaces that are not carried out yet."),
    Family("flexkv_index_bytes", "gauge", "Estimate of what blocks and their copies take in the daemon's memory."),
    Family("flexkv_ready", "gauge", "1 when /readyz answers 200."),
    Family("flexkv_draining", "gauge", "1 when nothing new is admitted, because the daemon shall stop."),
    Family("flexkv_build_info", "gauge", "1 for the version that runs.", ("version",)),
)
PROCESS_FAMILIES = (
    Family("process_start_time_seconds", "gauge", "When the daemon began, in seconds since 1970."),
    Family("process_cpu_seconds_total", "counter", "Time all threads of the daemon's own process ran on a core."),
    Family("process_resident_memory_bytes", "gauge", "Memory of the daemon's own process, with the populated arena."),
    Family("process_open_fds", "gauge", "Files the daemon has open."),
    Family("process_max_fds", "gauge", "Files it may have open."),
)
"""Named as by Prometheus' own clients. Byte workers are processes of their own."""
TENANT_FAMILIES = (
    Family("flexkv_tenants", "gauge", "Tenants that asked for anything of late, shown by name or not."),
    Family(
        "flexkv_tenant_matched_keys_total", "counter", "Keys asked for by match, by hit or miss.", ("tenant", "result")
    ),
    Family("flexkv_tenant_hits_total", "counter", "Blocks loaded, by the tier they came from.", ("tenant", "tier")),
    Family("flexkv_tenant_loaded_bytes_total", "counter", "Bytes of these blocks.", ("tenant", "tier")),
    Family("flexkv_tenant_saved_bytes_total", "counter", "Bytes of blocks stored by saves.", ("tenant",)),
    Family("flexkv_tenant_evictions_total", "counter", "Copies evicted, by tier.", ("tenant", "tier")),
    Family("flexkv_tenant_used_bytes", "gauge", "Bytes a tenant's blocks take in a tier.", ("tenant", "tier")),
    Family(
        "flexkv_tenant_quota_bytes", "gauge", "What they may take, of tenants with a quota there.", ("tenant", "tier")
    ),
    Family(
        "flexkv_tenant_unmet_keys_total", "counter", "Keys that were not served, by outcome.", ("tenant", "outcome")
    ),
)
"""Of the most used tenants by name, of the rest together as `other`."""
SSD_FAMILIES = (
    Family(
        "flexkv_ssd_written_bytes_total",
        "counter",
        "Bytes of records written: new ones, and those moved by reclaim.",
        ("why",),
    ),
    Family(
        "flexkv_ssd_write_amplification", "gauge", "(new + reclaim) / new, over the last capacity's worth of writes."
    ),
    Family("flexkv_ssd_budget_bytes_per_day", "gauge", "What may be written unasked in a day; 0: no limit."),
    Family(
        "flexkv_ssd_budget_spent_bytes", "gauge", "Written ahead of the budget; at an hour's share nothing more is."
    ),
)
"""Without samples where there is no SSD tier."""
S3_FAMILIES = (
    Family("flexkv_s3_breaker", "gauge", "1 for the state the breaker is in.", ("state",)),
    Family("flexkv_s3_breaker_opened_total", "counter", "Times the breaker opened."),
    Family("flexkv_s3_rate_limit", "gauge", "Requests per second after the server asked for fewer; 0: no limit."),
    Family("flexkv_s3_retry_tokens", "gauge", "Retries that all requests together have left."),
    Family("flexkv_s3_retries_total", "counter", "Attempts after the first."),
    Family("flexkv_s3_failed_total", "counter", "Attempts that failed, by what the failure means.", ("trouble",)),
    Family("flexkv_s3_process_deaths_total", "counter", "Byte workers that died."),
)
"""Without samples where there is no S3 tier."""
HISTOGRAMS = (
    Family("flexkv_ticket_seconds", "histogram", "Time from a ticket's opening to its end.", ("kind", "tier")),
    Family(
        "flexkv_first_chunk_seconds",
        "histogram",
        "Time from a load's opening until chunk 0 of all its keys is there.",
        ("tier",),
    ),
    Family(
        "flexkv_transfer_seconds",
        "histogram",
        "Time a transfer took from its turn to its end.",
        ("tier", "operation", "priority"),
    ),
    Family(
        "flexkv_link_queue_seconds", "histogram", "Time a move waited for its turn on a link.", ("link", "priority")
    ),
    Family("flexkv_request_seconds", "histogram", "Time the event loop spent on a request of a worker.", ("request",)),
    Family("flexkv_loop_lag_seconds", "histogram", "How late the event loop comes to what is ready."),
)
FAMILIES = (
    *PLANNER_COUNTERS,
    *TIER_GAUGES,
    *PLANNER_GAUGES,
    *SHELL_FAMILIES,
    *PROCESS_FAMILIES,
    *TENANT_FAMILIES,
    *SSD_FAMILIES,
    *S3_FAMILIES,
    *HISTOGRAMS,
)
