"""The warm restart: every slot header of every segment, read in bounded batches.

Decides from a header alone whether a slot holds a whole record; damaged ones and second copies are
freed and counted. Chunks are checked when they are read. `SsdStore.found` is the only caller; it
applies the findings to its slot table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flexkv_py.core.messages import FoundBlock
from flexkv_py.keys import BlockKey, NamespaceDigest
from flexkv_tiers.base import FoundBatch, TierFault
from flexkv_tiers.codec import Header, parse_header
from flexkv_tiers.diskio import DiskFile
from flexkv_tiers.diskio.pages import PagePool
from flexkv_tiers.ssd.records import BLANK, ERASED, erase_record

SLOTS_PER_BATCH = 256
"""Headers read by one job: bounds the events' size and how long a thread is busy."""


@dataclass(slots=True)
class Slots:
    """One batch of slots, looked at: `records` by slot, and those whose header is no record's."""

    records: dict[int, Header] = field(default_factory=dict)
    erased: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)


def read_headers(file: DiskFile, slot_bytes: int, first: int, count: int, pages: PagePool) -> Slots:
    """Look at `count` slots of a segment from slot `first` on. A slot that cannot be read is damaged."""
    slots = Slots()
    with pages.lend(1) as page:
        for slot in range(first, first + count):
            _look(file, slot, slot_bytes, page, slots)
    return slots


def _look(file: DiskFile, slot: int, slot_bytes: int, page: memoryview, slots: Slots) -> None:
    try:
        file.read([page], slot * slot_bytes)
        if page in (ERASED, BLANK):
            (slots.erased if page == ERASED else slots.blank).append(slot)
            return
        header = parse_header(page)
    except TierFault:
        slots.damaged.append(slot)
        return
    if header.record_bytes == slot_bytes:
        slots.records[slot] = header
    else:
        slots.damaged.append(slot)


def erase_slots(file: DiskFile, slot_bytes: int, slots: list[int], pages: PagePool) -> list[int]:
    """Erase these slots' headers, so that none comes back over new chunks; returns those that worked."""
    erased = []
    for slot in slots:
        try:
            erase_record(file, slot * slot_bytes, pages)
        except TierFault:
            continue
        erased.append(slot)
    return erased


class Census:
    """Sorts found records into batches and sees to it that no block is found twice.

    Slots of a segment are first used in order. One that is blank before one that is not has therefore
    lost its record: an interrupted write, or something zeroed it. It is counted, and free.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[NamespaceDigest, int], set[BlockKey]] = {}
        self.found = 0
        self.damaged = 0
        self.duplicates = 0
        self.blank = 0
        self._segment = -1
        self._blank_so_far = 0  # of this segment, since the last slot that is not blank

    def end(self) -> None:
        """Every slot was looked at: keep the counts, let the keys go."""
        self._keys.clear()

    def _count_blank(self, slots: Slots, segment: int) -> None:
        if segment != self._segment:
            self._segment, self._blank_so_far = segment, 0
        last_written = max((*slots.records, *slots.erased, *slots.damaged), default=-1)
        before = sum(slot < last_written for slot in slots.blank)
        if last_written >= 0:
            self.blank += self._blank_so_far + before
            self._blank_so_far = 0
        self._blank_so_far += len(slots.blank) - before

    def take(self, slots: Slots, first_location: int, slot_bytes: int) -> tuple[list[FoundBatch], list[int]]:
        """The batches of one Slots (slot s is location `first_location` + s), and slots of second copies."""
        batches: dict[tuple[NamespaceDigest, int], FoundBatch] = {}
        second = []
        for slot, header in slots.records.items():
            block = header.block
            group = (block.namespace, block.shard)
            keys = self._keys.setdefault(group, set())
            if block.key in keys:
                second.append(slot)
                continue
            keys.add(block.key)
            batch = batches.setdefault(group, FoundBatch(*group, slot_bytes, []))
            batch.blocks.append(FoundBlock(block.key, block.parent, first_location + slot))
        self._count_blank(slots, first_location)
        self.found += len(slots.records) - len(second)
        self.damaged += len(slots.damaged)
        self.duplicates += len(second)
        return list(batches.values()), second
