"""What the SSD tier says of itself to people: plain data out of the log and the directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flexkv_tiers.ssd.format import PAGE_BYTES
from flexkv_tiers.ssd.health import Health
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.reclaim import Reclaimed
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.stripe import Stripe


def status_of(
    log: Log, directories: Sequence[Path], stripes: Sequence[Stripe], reclaimed: Reclaimed, health: Health
) -> dict[str, object]:
    """Bytes, segments by state, what was written and rewritten, and each directory for itself."""
    budget = log.budget
    return {
        "up": not health.down,
        "down_because": health.because if health.down else "",
        "segment_bytes": log.layout.segment_bytes if log.layout else 0,
        "used_bytes": log.live_pages * PAGE_BYTES,
        "records": len(log.table) - log.table.count_damaged(),
        "records_quarantined": log.table.count_damaged(),
        **_account(log, log.segments),
        "written_bytes": budget.new_bytes,
        "rewritten_bytes": budget.rewritten_bytes,
        "write_amplification": round(budget.life_amplification, 4),
        "write_amplification_window": round(budget.window_amplification, 4),
        "segments_reclaimed": reclaimed.segments,
        "records_let_go": reclaimed.let_go,
        "records_let_go_damaged": reclaimed.damaged,
        "records_let_go_unnamed": reclaimed.nameless,
        "directories": [
            {**_of_directory(log, number, path, stripes), "failing_because": health.failing(number)}
            for number, path in enumerate(directories)
        ],
    }


def _of_directory(log: Log, number: int, path: Path, stripes: Sequence[Stripe]) -> dict[str, object]:
    io = stripes[number].io.status() if number < len(stripes) else {}
    return {
        "directory": str(path),
        **io,
        **_account(log, log.disks[number].segments),
        "segments_free": log.disks[number].free_count,
        "cut_by_file_system": bool(stripes) and stripes[number].cut,
        "writing_bytes": log.disks[number].writing_bytes,
    }


def _account(log: Log, segments: Sequence[Segment]) -> dict[str, object]:
    """Every page of these segments is overhead, live, dead or free."""
    states = Counter(segment.state for segment in segments)
    live_pages = sum(segment.live_pages for segment in segments)
    used_pages = sum(log.used_pages(segment) for segment in segments if segment.state is not SegmentState.FREE)
    room_pages = len(segments) * log.room_pages if log.layout else 0
    return {
        "segments": len(segments) - states[SegmentState.DELETED],
        "segments_by_state": {state.value: count for state, count in sorted(states.items())},
        "live_bytes": live_pages * PAGE_BYTES,
        "dead_bytes": (used_pages - live_pages) * PAGE_BYTES,
        "free_bytes": (room_pages - used_pages) * PAGE_BYTES,
    }
