"""Whether an SSD tier could start as configured, found out by looking only.

Asks what a start asks, in the same words: `sizes` for the arithmetic, `directory` for whose a directory is,
`stripe_set` for what belongs together. Locks are not looked at: another daemon is no fault of a configuration.
`preflight` of the daemon calls it, before every start too.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexkv_tiers.base import TierFault
from flexkv_tiers.ssd import directory as directories
from flexkv_tiers.ssd.format import PAGE_BYTES, parse_segment_header
from flexkv_tiers.ssd.sizes import (
    SEGMENT_BYTES_LEAST,
    check_capacity,
    kept_segment_bytes,
    reserve_bytes_of,
    target_segment_bytes,
    whole_pages,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tier as configured, in the words of `SsdStore`."""

    directories: Sequence[Path]
    capacity_bytes: int
    segment_bytes: int = 0
    reserve_bytes: int | None = None
    forget_missing: bool = False

    @property
    def share_bytes(self) -> int:
        """The capacity of each directory."""
        return self.capacity_bytes // len(self.directories)


@dataclass(frozen=True, slots=True)
class Room:
    """A directory's file system in bytes: all of it, and what the tier can have: free room and its own files."""

    file_system_bytes: int
    usable_bytes: int


def check(wanted: Wanted) -> None:
    """Raise the FlexKVError that a start would end in."""
    check_capacity(wanted.capacity_bytes, len(wanted.directories), wanted.segment_bytes)
    for directory in wanted.directories:
        directories.inspect(directory)
    plan = directories.look(wanted.directories, forget_missing=wanted.forget_missing)
    for directory in wanted.directories:
        room_in(directory, wanted.reserve_bytes)
    met: set[int] = set()
    for directory, its_id in zip(wanted.directories, plan.ids, strict=True):
        with directories.coded(directory):
            met |= _segment_sizes(directory, bytes.fromhex(its_id))
    if met:
        kept_segment_bytes(met, whole_pages(wanted.segment_bytes), wanted.share_bytes, len(wanted.directories))
    else:
        _check_room_for_one(wanted)


def room_in(directory: Path, reserve_bytes: int | None) -> Room:
    """What a directory's disk has for the tier beyond the reserve. Raises FlexKVError."""
    with directories.coded(directory):
        place = directories.existing(directory)
        disk = os.statvfs(place)
        own_bytes = sum(segment.file_bytes for segment in directories.segments(directory)) if place == directory else 0
    whole_bytes = disk.f_blocks * disk.f_frsize
    kept_free_bytes = reserve_bytes_of(whole_bytes, reserve_bytes, directory)
    return Room(whole_bytes, max(0, disk.f_bavail * disk.f_frsize - kept_free_bytes) + own_bytes)


def segment_count(wanted: Wanted) -> int:
    """Segments of all directories together once the tier is full, of the size most of those have that are there.

    Where none is there and the first record is still to decide, of the size aimed at. Raises FlexKVError.
    """
    met: Counter[int] = Counter()
    for directory in wanted.directories:
        with directories.coded(directory):
            if directory.exists():
                met.update(each.file_bytes for each in directories.segments(directory))
    [(usual_bytes, _)] = met.most_common(1) or [(0, 0)]
    size_bytes = usual_bytes if usual_bytes >= SEGMENT_BYTES_LEAST else whole_pages(wanted.segment_bytes)
    return len(wanted.directories) * (wanted.share_bytes // (size_bytes or target_segment_bytes(wanted.share_bytes)))


def _segment_sizes(directory: Path, its_id: bytes) -> set[int]:
    """The sizes of all segments that a start would take for this directory's. Raises OSError."""
    sizes = set()
    for segment in directories.segments(directory) if directory.exists() else ():
        with directories.segment_path(directory, segment.number).open("rb", buffering=0) as file:
            page = file.read(PAGE_BYTES)
        try:
            header = parse_segment_header(page)
        except TierFault:
            continue
        if (header.directory, header.number) == (its_id, segment.number):
            sizes.add(header.segment_bytes)
    return sizes


def _check_room_for_one(wanted: Wanted) -> None:
    """An empty tier must be able to hold something. Raises FlexKVError(DISK_FULL)."""
    size_bytes = whole_pages(wanted.segment_bytes) or target_segment_bytes(wanted.share_bytes)
    for directory in wanted.directories:
        room = room_in(directory, 0)
        if room.file_system_bytes and room.usable_bytes < size_bytes:
            why = f"{room.usable_bytes} bytes are free, a first segment takes {size_bytes}"
            raise directories.refusal(directory, OSError(errno.ENOSPC, why))
