"""Opening the segments of the last life: which files are ours, and which still fit the capacity.

Only headers are read here; what segments hold is `recovery`'s. `SsdStore.start` is the only caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.diskio import DiskFile
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.format import FREE, PAGE_BYTES, Layout, SegmentHeader, parse_segment_header
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.recovery import Census
from flexkv_tiers.ssd.segment import SegmentState
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


async def adopt_segments(
    log: Log, stripes: Sequence[Stripe], share_bytes: int, segment_bytes: int, census: Census
) -> None:
    """Open every segment file and enter it into the log, UNREAD or FREE; remove what is over the capacity.

    `share_bytes` is the capacity of each directory, `segment_bytes` what the configuration wants (0: whatever
    is there). Raises FlexKVError.
    """
    met = [await meet_segments(stripe) for stripe in stripes]
    sizes = {each.header.segment_bytes for files in met for each in files if each.header is not None}
    if not sizes:
        for stripe, files in zip(stripes, met, strict=True):
            census.headers_damaged += sum(not each.is_blank for each in files)
            await _remove(stripe, files)
        return
    size_bytes = segment_bytes if segment_bytes in sizes else min(sizes)
    if (segment_bytes and segment_bytes != size_bytes) or share_bytes < 2 * size_bytes:
        for each in (each for files in met for each in files):
            each.file.close()
        raise FlexKVError(
            ErrorCode.BAD_CONFIG,
            f"the segments in {stripes[0].directory} have {size_bytes} bytes, which is not [ssd] segment_bytes = "
            f"{segment_bytes}, or two of them are more than the capacity of {share_bytes} allows: set segment_bytes to "
            "0 and a larger capacity, or empty the directory",
        )
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
    census.headers_damaged += not whole and not met.is_blank
    state = SegmentState.UNREAD if whole and met.sequence != FREE else SegmentState.FREE
    segment = log.add_segment(number, met.number, state)
    stripe.files[segment.index] = met.file
    if state is SegmentState.UNREAD:
        assert met.header is not None
        segment.salt, segment.sequence = met.header.salt, met.header.sequence
        log.sequence = max(log.sequence, segment.sequence)


async def meet_segments(stripe: Stripe) -> list[Met]:
    """Open every segment file of a directory and read its header. Raises FlexKVError."""
    try:
        files = await stripe.io.run(partial(_open_all, stripe))
    except OSError as error:
        raise directories.refusal(stripe.directory, error) from error
    met = []
    for number, file in files:
        header, is_blank = None, False
        with stripe.io.pages(2) as memory, suppress(TierFault):  # cut off, or unreadable
            header, is_blank = await stripe.io.read(file, [memory], 0, partial(_look, memory))
        if header is not None and (header.directory, header.number) != (stripe.held.id, number):
            header = None  # a copy from elsewhere
        met.append(Met(number, file, header, is_blank))
    return met


def _look(memory: memoryview) -> tuple[SegmentHeader | None, bool]:
    """The header, and whether neither it nor the dead map behind it was ever written."""
    try:
        return parse_segment_header(memory[:PAGE_BYTES]), False
    except TierFault:
        return None, not any(memory)


def _open_all(stripe: Stripe) -> list[tuple[int, DiskFile]]:
    found = directories.segments(stripe.directory)
    return [(each.number, stripe.io.open(directories.segment_path(stripe.directory, each.number))) for each in found]


async def _remove(stripe: Stripe, files: Sequence[Met]) -> None:
    def remove() -> None:
        for each in files:
            each.file.close()
            each.file.path.unlink(missing_ok=True)

    if files:
        try:
            await stripe.io.run(remove)
        except OSError as error:
            raise directories.refusal(stripe.directory, error) from error
