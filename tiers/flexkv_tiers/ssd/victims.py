"""Which segment is emptied next, and which of its live records are worth rewriting. Pure choices.

Cost-benefit: M. Rosenblum and J. Ousterhout, The Design and Implementation of a Log-Structured File System,
SOSP 1991, section 3.6: the space gained times its age, over the cost of reading and rewriting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flexkv_tiers.ssd.format import PAGE_BYTES
from flexkv_tiers.ssd.log import Log
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.table import DAMAGED, LEAVING, WAS_READ

DEAD_SHARE_MIN = 4
"""Without need, a segment is emptied only when at least one page in so many of it holds nothing live."""

OLDEST_COUNT_MAX, OLDEST_SHARE = 4, 2
"""Live records are let go of in the oldest segments only: so many, and no more than one sealed segment in so many."""
KEPT_SHARE = 2
"""One segment's worth divided by this stays in the budget for records that are read."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The segment to empty. Unless it `may_lose`, it is emptied only if every live record finds another place."""

    segment: Segment
    may_lose: bool


def choose_victim(log: Log, disk: int, *, urgent: bool, may_lose: bool, spared: Collection[Segment]) -> Victim | None:
    """The segment of a directory to empty, none of `spared`; None when none is worth it.

    Its live records must all fit the budget, less what is kept for those that are read; with urgency any dead
    page is then worth it. Where the budget does not reach, the room is needed and live records may be lost, of
    the oldest segments the one that is read least goes: what was written last was promised last. Where none may
    be lost, a segment that is worth emptying is, budget or not: else dead records would hold a full disk for good.
    """
    sealed = [each for each in log.disks[disk].segments if each.state is SegmentState.SEALED]
    sealed.sort(key=lambda each: (each.written_until, each.sequence))
    budget_pages = log.budget.left_bytes // PAGE_BYTES - log.room_pages // KEPT_SHARE
    affordable = []
    for each in sealed:
        is_worth = _is_worth(log, each)
        fits = each.live_pages <= budget_pages or (urgent and not may_lose and is_worth)
        if fits and each not in spared and (is_worth or (urgent and log.used_pages(each) > each.live_pages)):
            affordable.append(each)
    if affordable:
        return Victim(max(affordable, key=lambda each: _benefit(log, each)), may_lose=False)
    if not (urgent and may_lose and sealed):
        return None
    middle = _middle_age(log)
    oldest = sealed[: max(1, min(OLDEST_COUNT_MAX, len(sealed) // OLDEST_SHARE))]
    oldest = [each for each in oldest if each not in spared and (each.written_until <= middle or each is sealed[0])]
    return Victim(min(oldest, key=lambda each: _read_pages(log, each)), may_lose=True) if oldest else None


def _middle_age(log: Log) -> int:
    """Half of all sealed segments were written to after this: what is old in its directory may be young in the log."""
    ages = sorted(
        each.written_until for disk in log.disks for each in disk.segments if each.state is SegmentState.SEALED
    )
    return ages[len(ages) // OLDEST_SHARE]


def _read_pages(log: Log, segment: Segment) -> int:
    return sum(log.table.pages(slot) for slot in log.live_slots(segment) if log.table.has(slot, WAS_READ))


def _is_worth(log: Log, segment: Segment) -> bool:
    """Whether much of a segment is dead, or was never used because it was sealed early."""
    room_pages = log.room_pages
    return (room_pages - segment.live_pages) * DEAD_SHARE_MIN >= room_pages


def _benefit(log: Log, segment: Segment) -> float:
    live_share = segment.live_pages / log.room_pages
    return (1 - live_share) * (log.sequence - segment.sequence + 1) / (1 + live_share)


def choose_rewrites(log: Log, slots: Sequence[int], *, may_lose: bool) -> list[int]:
    """Which of a victim's live records are rewritten: all, or if it may lose some, those that were read first.

    Those while the budget lasts, then all others, but only while enough of it is left for what is read in the
    next victim. Damaged ones and those being dropped never are. A victim that is all live keeps half at most:
    something must go.
    """
    table = log.table
    worthy = [slot for slot in slots if not table.has(slot, DAMAGED | LEAVING)]
    if not may_lose:
        return worthy
    left_pages = log.budget.left_bytes // PAGE_BYTES
    segment = log.segments[table.place(slots[0])[0]] if slots else None
    if segment is not None and segment.live_pages >= log.used_pages(segment) and not _is_worth(log, segment):
        left_pages = min(left_pages, segment.live_pages // 2)
    chosen, others = [], []
    for slot in worthy:
        pages = table.pages(slot)
        if not table.has(slot, WAS_READ):
            others.append(slot)
        elif pages <= left_pages:
            chosen.append(slot)
            left_pages -= pages
    if sum(map(table.pages, others)) + log.room_pages // KEPT_SHARE <= left_pages:
        chosen += others
    return chosen
