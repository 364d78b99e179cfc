"""Offline check of SSD directories: every byte of every record is read, and whatever is not whole is named.

Keeps daemons off the directory meanwhile, changes nothing in it and needs no right to. `flexkv verify` prints what
comes out; a daemon that starts on the directory treats each finding as `recovery` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import parse_header
from flexkv_tiers.diskio import open_disk_to_read
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, DeadMap, Entry, Layout
from flexkv_tiers.ssd.opening import Met, meet
from flexkv_tiers.ssd.owed import Owed
from flexkv_tiers.ssd.recovery import read_index
from flexkv_tiers.ssd.scan import verify_on_disk
from flexkv_tiers.ssd.segment import Segment
from flexkv_tiers.ssd.stripe import Stripe

DEPTH = 8


@dataclass(slots=True)
class SegmentReport:
    """What one segment file holds. `damaged` counts by cause; a segment that is not believed is one damage."""

    directory: str
    number: int
    state: str  # sealed, open, free or unknown
    whole: int = 0
    dead: int = 0
    whole_bytes: int = 0
    surplus_bytes: int = 0  # behind what the header says: nobody reads them
    damaged: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, object]:
        return {
            "directory": self.directory,
            "segment": self.number,
            "state": self.state,
            "whole": self.whole,
            "dead": self.dead,
            "whole_bytes": self.whole_bytes,
            "surplus_bytes": self.surplus_bytes,
            "damaged": dict(self.damaged),
        }


async def verify_directory(directory: Path) -> AsyncIterator[SegmentReport]:
    """Check each segment of a directory, in order of number; then name what lies in the place of one and is no file.

    Raises FlexKVError: DIRECTORY_LOCKED, DIRECTORY_FOREIGN, DIRECTORY_UNREADABLE.
    """
    stripe = Stripe(directories.hold_to_read(directory), open_disk_to_read(DEPTH), 0, Owed())
    try:
        with directories.coded(directory, directories.unreadable):
            found = await stripe.io.run(partial(directories.segments, directory))
            not_files = directories.not_files(directory)
        for index, each in enumerate(found):  # one open file at a time, however many there are
            with directories.coded(directory, directories.unreadable):
                path = directories.segment_path(directory, each.number)
                stripe.files[index] = await stripe.io.run(partial(stripe.io.open, path))
            report = await _verify_segment(stripe, index, await meet(stripe, each.number, stripe.files[index]))
            stripe.files.pop(index).close()
            yield report
        for number in not_files:
            yield SegmentReport(str(directory), number, "unknown", damaged=Counter({"not a file": 1}))
    finally:
        await stripe.close()


async def _verify_segment(stripe: Stripe, index: int, met: Met) -> SegmentReport:
    report = SegmentReport(str(stripe.directory), met.number, "unknown")
    header = met.header
    if header is None and not met.is_blank:
        report.damaged["segment header"] += 1
        return report
    if header is None or header.sequence == FREE:
        report.state = "free"
        return report
    layout = Layout(header.segment_bytes)
    report.surplus_bytes = max(0, met.file.bytes - header.segment_bytes)
    if met.file.bytes < header.segment_bytes:
        report.damaged["segment length"] += 1
    segment = Segment(index, 0, met.number, DeadMap(layout.map_count), salt=header.salt, sequence=header.sequence)
    found = await read_index(stripe, segment, layout, lambda _fault: None)
    report.damaged["dead map"] += found.maps_damaged
    report.damaged["footer"] += found.footer_damaged
    if found.scan is not None:
        report.state = "open"
        report.whole = len(found.scan.entries)
        report.whole_bytes = sum(entry.pages for entry in found.scan.entries) * PAGE_BYTES
        report.damaged["torn record"] += len(found.scan.torn)
        report.damaged["unreadable"] += len(found.scan.unreadable)
    elif found.footer is not None:
        report.state = "sealed"
        for entry in found.footer.entries():
            if segment.dead.is_dead(entry.page):
                report.dead += 1
            else:
                await _verify_record(stripe, segment, entry, report)
    report.damaged = +report.damaged  # only what there is
    return report


async def _verify_record(stripe: Stripe, segment: Segment, entry: Entry, report: SegmentReport) -> None:
    io, file = stripe.io, stripe.files[segment.index]
    with io.pages(1) as page:
        try:
            parse = partial(parse_header, page, segment.salt)
            header = await io.read(file, [page], entry.page * PAGE_BYTES, parse)
        except TierFault:
            report.damaged["record header"] += 1
            return
    if header.block != entry.block or header.record_bytes != entry.pages * PAGE_BYTES:
        report.damaged["record of another block"] += 1
    elif await verify_on_disk(io, file, entry.page * PAGE_BYTES, header):
        report.whole += 1
        report.whole_bytes += header.record_bytes
    else:
        report.damaged["chunk"] += 1
