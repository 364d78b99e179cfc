"""Opening the directories and the segments of the last life: which files are ours, and which still fit the capacity.

Only headers are read here; what segments hold is `recovery`'s. `SsdStore.start` is the only caller, but for
`verify`, which meets segments too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flexkv_py.errors import FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskFile, DiskIo
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, Layout, SegmentHeader, parse_segment_header
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.owed import Owed
from flexkv_tiers.ssd.recovery import Census
from flexkv_tiers.ssd.segment import SegmentState
from flexkv_tiers.ssd.sizes import kept_segment_bytes, reserve_bytes_of
from flexkv_tiers.ssd.stripe import Stripe


@dataclass(slots=True)
class Met:
    """A segment file met at start. `header` is None when it is no header of this file; `is_blank` when nothing is
    written there, because a life ended between making the file and its first use.
    """

    number: int
    file: DiskFile
    header: SegmentHeader | None
    is_blank: bool

    @property
    def sequence(self) -> int:
        return self.header.sequence if self.header is not None else FREE


def open_stripes(
    stripes: list[Stripe],
    paths: Sequence[Path],
    open_io: Callable[[Path], DiskIo],
    reserve_bytes: int | None,
    owed: Owed,
    *,
    forget_missing: bool,
) -> None:
    """Take the directories and add each to `stripes`, to be closed by the caller whatever happens. Blocks.

    Raises FlexKVError.
    """
    holds = directories.acquire(paths, forget_missing=forget_missing)
    for number, held in enumerate(holds):
        try:
            with directories.coded(held.directory):
                kept_free_bytes = reserve_bytes_of(
                    directories.file_system_bytes(held.directory), reserve_bytes, held.directory
                )
                stripes.append(Stripe(held, open_io(held.directory), kept_free_bytes, owed))
        except BaseException:
            for other in holds[number:]:
                os.close(other.lock)
            raise


async def adopt_segments(
    log: Log, stripes: Sequence[Stripe], share_bytes: int, segment_bytes: int, census: Census
) -> None:
    """Open every segment file and enter it into the log, UNREAD or FREE; remove what is over the capacity.

    `share_bytes` is the capacity of each directory, `segment_bytes` what the configuration wants (0: whatever
    is there). Raises FlexKVError.
    """
    met = []
    for stripe in stripes:
        with directories.coded(stripe.directory):
            met.append(await meet_segments(stripe))
    sizes = {each.header.segment_bytes for files in met for each in files if each.header is not None}
    if not sizes:
        for stripe, files in zip(stripes, met, strict=True):
            census.headers_damaged += sum(not each.is_blank for each in files)
            await _remove(stripe, files)
        return
    try:
        size_bytes = kept_segment_bytes(sizes, segment_bytes, share_bytes, len(stripes))
    except FlexKVError:
        for each in (each for files in met for each in files):
            each.file.close()
        raise
    log.fix(Layout(size_bytes), [share_bytes // size_bytes] * len(stripes))
    for number, (stripe, files) in enumerate(zip(stripes, met, strict=True)):
        kept = sorted(files, key=lambda each: each.sequence, reverse=True)[: share_bytes // size_bytes]
        removed = [each for each in files if each not in kept]
        census.segments_removed += len(removed)
        await _remove(stripe, removed)
        for each in sorted(kept, key=lambda each: each.number):
            _adopt(log, number, stripe, each, size_bytes, census)


def _adopt(log: Log, number: int, stripe: Stripe, met: Met, size_bytes: int, census: Census) -> None:
    whole = met.header is not None and met.header.segment_bytes == size_bytes
    damaged = not whole and not met.is_blank
    census.headers_damaged += damaged
    state = SegmentState.UNREAD if damaged or met.sequence != FREE else SegmentState.FREE
    segment = log.add_segment(number, met.number, state)
    stripe.files[segment.index] = met.file
    if whole:
        assert met.header is not None
        segment.salt, segment.sequence = met.header.salt, met.header.sequence
        segment.written_until = segment.sequence
        log.sequence = max(log.sequence, segment.sequence)


async def meet_segments(stripe: Stripe) -> list[Met]:
    """Open every segment file of a directory and read its header. Raises OSError."""
    return [await meet(stripe, number, file) for number, file in await stripe.io.run(partial(_open_all, stripe))]


async def meet(stripe: Stripe, number: int, file: DiskFile) -> Met:
    """Read the header of an open segment file."""
    header, is_blank = None, False
    with stripe.io.pages(2) as memory, suppress(TierFault):  # cut off, or unreadable
        header, is_blank = await stripe.io.read(file, [memory], 0, partial(_look, memory))
    if header is not None and (header.directory, header.number) != (stripe.held.id, number):
        header = None  # a copy from elsewhere
    return Met(number, file, header, is_blank)


def _look(memory: memoryview) -> tuple[SegmentHeader | None, bool]:
    """The header, and whether neither it nor the dead map behind it was ever written."""
    try:
        return parse_segment_header(memory[:PAGE_BYTES]), False
    except TierFault:
        return None, not any(memory)


def _open_all(stripe: Stripe) -> list[tuple[int, DiskFile]]:
    opened: list[tuple[int, DiskFile]] = []
    try:
        for each in directories.segments(stripe.directory):
            file = stripe.io.open(directories.segment_path(stripe.directory, each.number))
            opened.append((each.number, file))
    except BaseException:
        for _, file in opened:
            file.close()
        raise
    return opened


async def _remove(stripe: Stripe, files: Sequence[Met]) -> None:
    def remove() -> None:
        for each in files:
            each.file.close()
            each.file.path.unlink(missing_ok=True)
        directories.sync_directory(stripe.directory)  # or a power cut brings back what is in them

    if files:
        try:
            await stripe.io.run(remove)
        except OSError as error:
            raise directories.refusal(stripe.directory, error) from error


def check_disks(stripes: Sequence[Stripe], segment_bytes: int) -> None:
    """An empty tier must be able to hold something; one with segments serves those, full disk or not."""
    for stripe in stripes:
        try:
            directories.reserve_once(stripe.directory, segment_bytes)
        except OSError as error:
            raise directories.refusal(stripe.directory, error) from error
