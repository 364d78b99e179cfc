"""Bugs to plant in the SSD log; `tests/sim/plants.py` has those of the planner and says how they are used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from xxhash import xxh3_128_digest

from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import parse_header
from flexkv_tiers.diskio import DiskFuture
from flexkv_tiers.ssd import format as pages
from flexkv_tiers.ssd import records, recovery, scan, store
from flexkv_tiers.ssd.budget import RewriteBudget
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.owed import Owed
from flexkv_tiers.ssd.recovery import Recovery
from flexkv_tiers.ssd.segment import Disk, SegmentState
from flexkv_tiers.ssd.stripe import Stripe
from tests.sim.plant import Plant, planter

PLANTS: dict[str, Plant] = {}
_plant = planter(PLANTS)


@_plant("a restart believes a footer whose checksum does not hold", (recovery, "parse_footer"))
def _log_footer_trusted_without_checksum(right: Any) -> Any:
    def parse_footer(raw: memoryview, *rest: Any) -> Any:
        mended = bytearray(raw)
        body_bytes = pages.PAGE_BYTES - 16
        for at in range(0, len(mended), pages.PAGE_BYTES):
            mended[at + body_bytes : at + pages.PAGE_BYTES] = xxh3_128_digest(mended[at : at + body_bytes])
        return right(mended, *rest)

    return parse_footer


@_plant("a segment is opened again while a record of it is being read", (Disk, "free"))
def _log_reclaim_of_a_read_segment(_: Any) -> Any:
    def free(self: Disk) -> list[Any]:
        return [each for each in self.segments if each.state is SegmentState.FREE]

    return free


@_plant("a read that the end of the file cut short counts as a whole one", (store, "read_record"))
def _log_short_read_accepted(right: Any) -> Any:
    async def read_record(*where: Any) -> AsyncIterator[range]:
        chunks, landed = where[4], 0
        reading = right(*where)
        try:
            async for run in reading:
                landed = run.stop
                yield run
        except TierFault as fault:
            if "ends" not in fault.detail:
                raise
            yield range(landed, len(chunks))
        finally:
            await reading.aclose()

    return read_record


@_plant("a restart lets records into pages it marks as dead", (Recovery, "_count_scan"))
def _log_record_put_where_dead(right: Any) -> Any:
    def count_scan(self: Recovery, segment: Any, found: scan.Scan) -> None:
        next_page = segment.next_page
        right(self, segment, found)
        segment.next_page = next_page

    return count_scan


class _NoSync:
    """An engine that says at once that everything is durable."""

    def __init__(self, io: Any) -> None:
        self.pages, self.write = io.pages, io.write

    def sync(self, _file: Any) -> DiskFuture[None]:
        future: DiskFuture[None] = DiskFuture()
        future.set_result(None)
        return future


@_plant("a record is acknowledged before it is synced", (store, "write_record"))
def _log_acknowledged_before_sync(right: Any) -> Any:
    async def write_record(io: Any, *rest: Any) -> None:
        await right(_NoSync(io), *rest)

    return write_record


@_plant("a drop marks the record as dead in memory alone", (Stripe, "kill"))
def _log_drop_not_durable(_: Any) -> Any:
    def kill(_self: Stripe, segment: Any, *pages: int) -> DiskFuture[None]:
        future: DiskFuture[None] = DiskFuture()
        for page in pages:
            segment.dead.kill(page)
        future.set_result(None)
        return future

    return kill


@_plant("a record of an earlier life of its segment counts", (scan, "parse_header"), (records, "parse_header"))
def _log_salt_ignored(_: Any) -> Any:
    def parse(raw: memoryview, _salt: bytes | None = None) -> Any:
        return parse_header(raw)

    return parse


@_plant("a record behind the last seal counts without a look at its chunks", (scan, "_is_whole"))
def _log_tail_not_verified(_: Any) -> Any:
    def is_whole(_raw: memoryview, _salt: bytes) -> bool:
        return True

    return is_whole


@_plant("a scan ends at the first hole of a write that failed", (scan, "_take"))
def _log_void_hides_later_records(right: Any) -> Any:
    async def take(io: Any, file: Any, layout: Any, candidate: Any, found: scan.Scan) -> None:
        if candidate.page == found.end:
            await right(io, file, layout, candidate, found)

    return take


@_plant("a drop forgets the place the record was moved from", (Log, "places"))
def _log_older_copy_survives_a_drop(right: Any) -> Any:
    def places(self: Log, slot: int) -> list[Any]:
        newest: list[Any] = right(self, slot)[:1]
        return newest

    return places


@_plant("a place that the disk would not mark as dead is forgotten", (Owed, "add"))
def _log_refused_kill_forgotten(_: Any) -> Any:
    def add(_self: Owed, _segment: Any, _pages: Any, _block: Any) -> None:
        return

    return add


@_plant("the room of a write that failed counts as live for ever", (Log, "abandon"))
def _log_void_counts_as_live(right: Any) -> Any:
    def abandon(self: Log, placed: Any) -> None:
        right(self, placed)
        placed.segment.live_pages += placed.entry.pages

    return abandon


@_plant("a segment file is made beyond the capacity", (Log, "may_open"))
def _log_capacity_exceeded(_: Any) -> Any:
    def may_open(self: Log, disk: int, *, rewriting: bool) -> bool:
        self.disks[disk].segments_max = max(self.disks[disk].segments_max, len(self.disks[disk].segments) + 1)
        return rewriting or self.disks[disk].free_count > 0

    return may_open


@_plant("records are rewritten without a limit", (RewriteBudget, "left_bytes"))
def _log_rewrites_unlimited(_: Any) -> Any:
    return property(lambda _self: 1 << 40)


@_plant("nobody is told of what reclaim lets go of", (store.SsdStore, "_lost"))
def _log_loss_not_told(_: Any) -> Any:
    def lost(_self: store.SsdStore, _records: Any, _reason: str) -> None:
        return

    return lost
