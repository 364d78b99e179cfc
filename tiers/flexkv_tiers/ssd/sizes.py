"""How large segments are, and how much of the capacity may hold live records. Pure arithmetic.

Owns what sizes may be configured, too: a start asks here, and so does whoever checks a configuration.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd.format import ENTRY_BYTES, MAP_BIT_PAGES, PAGE_BYTES, Layout
from flexkv_tiers.ssd.segment import APART_SEGMENTS_MIN

SEGMENTS_PER_DIRECTORY = 256
"""What a directory's capacity is cut into unless told otherwise."""
SEGMENT_BYTES_MIN = 1 << 20
SEGMENT_BYTES_USUAL_MAX = 256 << 20
"""More only where a directory would have more segments than SEGMENTS_MAX: a restart verifies one whole segment."""
SEGMENTS_MAX = 4000
"""Of one directory: each is an open file."""
SEGMENT_BYTES_LEAST = 7 * PAGE_BYTES
"""A record of two pages, and what every segment has besides."""
RESERVE_BYTES_MAX = 1 << 30
RESERVE_SHARE = 50
"""Unless told otherwise, one part in so many of the file system stays free, at most RESERVE_BYTES_MAX."""
SPARE_SHARE = 128
"""One segment in so many is kept free, so that reclaim has somewhere to go; at least one of a directory."""
DEAD_SHARE = 40
"""One segment's worth in so many, spare ones included, holds no live records: the less, the more is rewritten."""
_FOOTER_PAGE_BYTES = PAGE_BYTES - 64


def check_capacity(capacity_bytes: int, directory_count: int, segment_bytes: int) -> None:
    """Whether a tier of this size can work in so many directories. Raises FlexKVError(BAD_CONFIG)."""
    share_bytes, least_bytes = capacity_bytes // directory_count, segment_bytes or SEGMENT_BYTES_LEAST
    if least_bytes < SEGMENT_BYTES_LEAST:
        raise _bad(
            f"[ssd] segment_bytes = {segment_bytes} holds no record: give at least {SEGMENT_BYTES_LEAST} and room for "
            "the largest block, or 0 to have it chosen"
        )
    if share_bytes < 2 * least_bytes:
        lower = ", lower segment_bytes (0 has it chosen)" if segment_bytes else ""
        fewer = " or name fewer directories" if directory_count > 1 else ""
        raise _bad(
            f"[ssd] bytes = {capacity_bytes} gives each of {directory_count} directories {share_bytes}, which is not "
            f"two segments of {least_bytes}: raise bytes to {2 * least_bytes * directory_count} or more{lower}{fewer}"
        )
    if segment_bytes and share_bytes // segment_bytes > SEGMENTS_MAX:
        raise _bad(
            f"[ssd] segment_bytes = {segment_bytes} makes {share_bytes // segment_bytes} files in a directory, each of "
            f"them open: at most {SEGMENTS_MAX} are allowed, so raise it to {share_bytes // SEGMENTS_MAX + 1} or more, "
            "or give 0 to have it chosen"
        )


def kept_segment_bytes(met: Set[int], segment_bytes: int, share_bytes: int, directory_count: int) -> int:
    """The size that goes on, of the segments that are there. Raises FlexKVError(BAD_CONFIG) when it is not wanted.

    `share_bytes` is the capacity of each directory; `segment_bytes` 0 takes what is there.
    """
    size_bytes = segment_bytes if segment_bytes in met else min(met)
    if segment_bytes and segment_bytes != size_bytes:
        raise _bad(
            f"[ssd] segment_bytes = {segment_bytes}, but the directories hold segments of {size_bytes}: set it to "
            f"{size_bytes} or 0, or empty all directories to have another size"
        )
    if share_bytes < 2 * size_bytes:
        raise _bad(
            f"[ssd] bytes allows {share_bytes} in each directory, but they hold segments of {size_bytes}, and two are "
            f"the least: raise bytes to {2 * size_bytes * directory_count} or more, or empty all directories"
        )
    return size_bytes


def reserve_bytes_of(file_system_bytes: int, configured_bytes: int | None, directory: Path) -> int:
    """What of a file system stays free (size 0: it has none of its own). Raises FlexKVError(BAD_CONFIG)."""
    if configured_bytes is None:
        return min(RESERVE_BYTES_MAX, file_system_bytes // RESERVE_SHARE)
    if file_system_bytes and configured_bytes >= file_system_bytes:
        raise _bad(
            f"[ssd] free_space_reserve_bytes = {configured_bytes}, but the whole file system of {directory} has "
            f"{file_system_bytes}: nothing is left for the tier, so lower it, or give 0 to have it chosen"
        )
    return configured_bytes


def whole_pages(segment_bytes: int) -> int:
    """A configured segment size, rounded down to whole pages."""
    return segment_bytes // PAGE_BYTES * PAGE_BYTES


def target_segment_bytes(capacity_bytes: int) -> int:
    """The segment size to aim at in a directory of `capacity_bytes`, before any record is known."""
    target = min(max(capacity_bytes // SEGMENTS_PER_DIRECTORY, SEGMENT_BYTES_MIN), SEGMENT_BYTES_USUAL_MAX)
    target = max(min(target, capacity_bytes // 4), capacity_bytes // SEGMENTS_MAX)
    return -(-target // PAGE_BYTES) * PAGE_BYTES


def segment_bytes_for(record_pages: int, capacity_bytes: int) -> int:
    """The size, near the target, that records of this length fill to the last page; 0 when two segments do not fit.

    Records of one geometry are all equal, so nothing is lost at the end of a segment.
    """
    target_pages = target_segment_bytes(capacity_bytes) // PAGE_BYTES
    records = max(1, target_pages // record_pages)
    pages = 1 + records * record_pages + _footer_pages(records)
    for _ in range(2):  # the maps grow with the segment, and the segment with them
        first_page = Layout(pages * PAGE_BYTES).first_page
        pages = first_page + records * record_pages + _footer_pages(records) + 1
    return pages * PAGE_BYTES if 2 * pages * PAGE_BYTES <= capacity_bytes else 0


def too_long(record_pages: int, room_bytes: int, share_bytes: int) -> str:
    """Why a record does not go into a segment of `room_bytes`, and what would have to be set."""
    wanted_bytes = segment_bytes_for(record_pages, share_bytes)
    cure = f"set segment_bytes to {wanted_bytes} or more" if wanted_bytes else "raise bytes; two segments must fit"
    return (
        f"a record of {record_pages * PAGE_BYTES} bytes does not fit a segment of {room_bytes}: to have such blocks on "
        f"SSD, empty all its directories and, in [ssd], {cure}"
    )


def spare_count(segment_count: int) -> int:
    """Segments of a directory's `segment_count` that are kept free."""
    return max(1, segment_count // SPARE_SHARE)


def planned_usable_bytes(capacity_bytes: int, directory_count: int, segment_bytes: int) -> int:
    """`usable_bytes` as far as it is known before anything is opened; `segment_bytes` 0 aims at the target size."""
    share_bytes = capacity_bytes // directory_count
    count = max(1, share_bytes // target_segment_bytes(share_bytes))
    planned = whole_pages(segment_bytes or share_bytes // count)
    return usable_bytes(planned, [share_bytes // planned] * directory_count)


def usable_bytes(segment_bytes: int, segment_counts: list[int]) -> int:
    """What live records may take in directories of so many segments: all but spare segments, headers, maps, footers.

    Told too little, the tier is a little smaller; told too much, it would let go of its oldest records before
    whoever keeps it full drops the worst.
    """
    layout = Layout(segment_bytes)
    room_pages = layout.trailer_page - layout.first_page
    room_pages -= _footer_pages(room_pages // MAP_BIT_PAGES)
    return max(0, sum(map(_usable_count, segment_counts)) * room_pages * PAGE_BYTES)


def _usable_count(count: int) -> int:
    """Segments' worth of live records of a directory's `count`.

    Two segments are half empty where new and rewritten records are kept apart.
    """
    half_empty = 1 if count >= APART_SEGMENTS_MIN else 0
    return max(0, count - max(spare_count(count) + half_empty, count // DEAD_SHARE))


def _footer_pages(records: int) -> int:
    """Pages of a footer with so many entries, one group and one shape of the most chunks."""
    return -(-(records * ENTRY_BYTES + 512) // _FOOTER_PAGE_BYTES)


def _bad(why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_CONFIG, why)
