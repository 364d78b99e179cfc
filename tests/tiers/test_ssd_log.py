"""The log's decisions without a disk: random lives of it, every page accounted for after each step."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from flexkv_tiers.ssd.budget import RewriteBudget
from flexkv_tiers.ssd.format import PAGE_BYTES, Layout
from flexkv_tiers.ssd.log import Log, Placed
from flexkv_tiers.ssd.segment import Segment, SegmentState
from flexkv_tiers.ssd.sizes import planned_usable_bytes, segment_bytes_for, spare_count, usable_bytes
from flexkv_tiers.ssd.table import WAS_READ, RecordTable
from flexkv_tiers.ssd.victims import choose_rewrites, choose_victim
from tests.tiers.contract import block

SEGMENT_PAGES = 64
SHAPES = [(4096,), (8192, 4096), (4096,) * 7, (32768, 4096)]
MIB, GIB = 1 << 20, 1 << 30


class Driver:
    """Carries out what the log decides, as the store does, at once and without bytes; counts on its own."""

    def __init__(self, chance: random.Random, segment_counts: list[int], amplification_max: float) -> None:
        self.chance = chance
        layout = Layout(SEGMENT_PAGES * PAGE_BYTES)
        usable = usable_bytes(layout.segment_bytes, segment_counts)
        self.log = Log(len(segment_counts), usable, RewriteBudget(amplification_max, usable))
        self.log.fix(layout, segment_counts)
        self.usable_pages = usable // PAGE_BYTES
        self.records: dict[int, int] = {}  # location -> pages, of every record that must be there
        self.gone: list[int] = []
        self.writing: list[Placed] = []
        self.let_go = 0

    def write(self, number: int) -> None:
        """Begin a write; it ends later, well or not."""
        shape = self.chance.choice(SHAPES)
        pages = 1 + sum(shape) // PAGE_BYTES
        if not self.log.admit(pages):
            return
        disk = self.log.choose_disk(shape, pages, [False] * len(self.log.disks))
        placed = self.log.place(disk, block(number), shape, pages)
        if placed is None and self.open_next(disk, rewriting=False):
            placed = self.log.place(disk, block(number), shape, pages)
        if placed is None:
            self.log.release(pages)
            self.reclaim(disk, urgent=True)
        else:
            self.writing.append(placed)

    def end_write(self) -> None:
        placed = self.writing.pop(self.chance.randrange(len(self.writing)))
        self.log.release(placed.entry.pages)
        if self.chance.random() < 0.1:
            self.log.abandon(placed)
        else:
            location = self.log.commit(placed)
            assert location not in self.records
            assert location not in self.gone
            self.records[location] = placed.entry.pages
        self.seal(placed.segment)

    def drop(self) -> None:
        location = self.chance.choice(list(self.records))
        del self.records[location]
        self.gone.append(location)
        slot = self.log.table.slot(location)
        assert slot is not None
        self.log.remove(slot)

    def open_next(self, disk: int, *, rewriting: bool) -> bool:
        if not (rewriting or self.log.disks[disk].keeps_apart) and self.share(disk):
            return True
        if not self.log.may_open(disk, rewriting=rewriting):
            return False
        if (old := self.log.disks[disk].taking(rewriting=rewriting)) is not None:
            self.log.retire(old)
            self.seal(old)
        free = self.log.disks[disk].free()
        segment = free[0] if free else self.log.add_segment(disk, self.log.next_number(disk), SegmentState.FREE)
        segment.state = SegmentState.OPENING
        assert self.log.layout is not None
        segment.begin(self.log.layout, b"salt" * 2, self.log.next_sequence())
        self.log.activate(segment, rewriting=rewriting)
        return True

    def share(self, disk: int) -> bool:
        if not self.log.may_share(disk):
            return False
        if (active := self.log.disks[disk].active) is not None:
            self.log.retire(active)
            self.seal(active)
        self.log.share(disk)
        return True

    def seal(self, segment: Segment) -> None:
        if segment.state is SegmentState.SEALING and not segment.writes:
            self.log.keep_footer(segment)
            self.log.sealed(segment)

    def reclaim(self, disk: int, *, urgent: bool) -> None:
        chosen = choose_victim(self.log, disk, urgent=urgent, may_lose=urgent, spared=())
        if (chosen is None or chosen.may_lose) and urgent and self.share(disk):
            return
        if chosen is None:
            return
        victim = chosen.segment
        victim.state = SegmentState.RECLAIMING
        for slot in choose_rewrites(self.log, list(self.log.live_slots(victim)), may_lose=chosen.may_lose):
            self.rewrite(disk, slot)
        if not chosen.may_lose and list(self.log.live_slots(victim)):
            victim.state = SegmentState.SEALED
            return
        for slot in list(self.log.live_slots(victim)):
            location = self.log.table.location(slot)
            del self.records[location]
            self.gone.append(location)
            self.log.remove(slot)
            self.let_go += 1
        self.log.freed(victim)

    def rewrite(self, disk: int, slot: int) -> None:
        shape = (PAGE_BYTES * (self.log.table.pages(slot) - 1),)
        pages = self.log.table.pages(slot)
        kinds = (True,) if self.log.disks[disk].keeps_apart else (True, False)
        placed = next(
            filter(None, (self.log.place(disk, block(0), shape, pages, rewriting=kind) for kind in kinds)), None
        )
        if placed is None:
            opened = self.open_next(disk, rewriting=True)
            placed = self.log.place(disk, block(0), shape, pages, rewriting=opened)
        if placed is not None:
            self.log.commit_move(placed, slot)

    def read(self) -> None:
        slot = self.log.table.slot(self.chance.choice(list(self.records)))
        assert slot is not None
        self.log.table.mark(slot, WAS_READ)

    def check(self) -> None:
        """Recount everything from the driver's own books."""
        log, table = self.log, self.log.table
        assert len(table) == len(self.records)
        assert all(table.slot(location) is None for location in self.gone)
        taken: dict[int, list[tuple[int, int]]] = {segment.index: [] for segment in log.segments}
        for placed in self.writing:
            taken[placed.segment.index].append((placed.entry.page, placed.entry.pages))
        for location, pages in self.records.items():
            slot = table.slot(location)
            assert slot is not None
            assert table.pages(slot) == pages
            index, page = table.place(slot)
            taken[index].append((page, pages))
        for segment in log.segments:
            runs = sorted(taken[segment.index])
            assert segment.live_pages == sum(pages for _, pages in runs)
            for (page, pages), (following, _) in pairwise(runs):
                assert page + pages <= following
            assert not runs or runs[-1][0] + runs[-1][1] <= segment.next_page <= SEGMENT_PAGES - 1
            assert not (segment.state is SegmentState.FREE and runs)
        assert log.live_pages == sum(self.records.values()) <= self.usable_pages
        for disk in log.disks:
            assert len(disk.segments) <= disk.segments_planned


@pytest.mark.parametrize("seed", range(20))
def test_every_page_is_accounted_for(seed):
    """Writes, failures, drops, reads and reclaim in any order: books kept apart from the log always agree with it."""
    chance = random.Random(seed)
    driver = Driver(chance, chance.choice([[4], [5, 5], [3, 4, 5], [18]]), chance.choice([1.0, 1.5, 3.0]))
    for number in range(600):
        steps = [lambda: driver.write(number)] * 3  # noqa: B023 - called in this turn
        steps += [driver.end_write] * 3 if driver.writing else []
        steps += [driver.drop, driver.read] if driver.records else []
        steps += [lambda: driver.reclaim(chance.randrange(len(driver.log.disks)), urgent=False)]
        chance.choice(steps)()
        driver.check()
    assert driver.records


@pytest.mark.parametrize("amplification_max", [1.0, 1.2, 1.5, 2.0])
def test_rewriting_stays_within_its_limit(amplification_max):
    """Whatever is dropped and read, (new + rewritten) / new never exceeds the limit, over the life and the window."""
    driver = Driver(random.Random(1), [6], amplification_max)
    rewrites = 0
    for number in range(3000):
        driver.write(number)
        if driver.writing:
            driver.end_write()
        if driver.records and number % 3 == 0:
            driver.drop()
        if driver.records:
            driver.read()
        rewrites = driver.log.budget.rewritten_bytes
        assert driver.log.budget.life_amplification <= amplification_max
        assert driver.log.budget.window_amplification <= amplification_max + 0.05  # parts leave the window whole
    assert (rewrites > 0) == (amplification_max > 1.0)
    assert driver.let_go


def test_what_was_read_is_kept_and_the_rest_let_go():
    """When the budget runs low only records that somebody read since they were written are rewritten."""
    driver = Driver(random.Random(1), [4], 1.5)
    for number in range(30):
        driver.write(number)
        while driver.writing:
            driver.end_write()
    driver.log.budget.rewrote(driver.log.budget.left_bytes - 8 * PAGE_BYTES)
    slots = [slot for segment in driver.log.segments[:1] for slot in driver.log.live_slots(segment)]
    read = [slot for slot in slots if driver.log.table.pages(slot) == 2][:2]
    for slot in read:
        driver.log.table.mark(slot, WAS_READ)
    assert choose_rewrites(driver.log, slots, may_lose=True) == read


def test_a_segment_with_readers_is_not_opened():
    """A free segment is used again only when its last reader, and its last map write, have ended."""
    driver = Driver(random.Random(1), [3], 1.5)
    driver.open_next(0, rewriting=False)
    [segment] = driver.log.segments
    segment.readers = 1
    driver.open_next(0, rewriting=False)
    assert segment.state is SegmentState.FREE
    assert not driver.log.disks[0].free()
    segment.readers, segment.map_writes = 0, 1
    assert not driver.log.disks[0].free()
    segment.map_writes = 0
    assert driver.log.disks[0].free() == [segment]


def test_a_location_is_never_given_twice():
    """A slot that is used again has another location; the old one names nothing."""
    table, seen = RecordTable(), set()
    for _ in range(100):
        slot = table.add(0, 3, 2)
        location = table.location(slot)
        assert table.slot(location) == slot
        assert location not in seen
        seen.add(location)
        table.remove(slot)
        assert table.slot(location) is None
    assert all(table.slot(location) is None for location in seen)


@pytest.mark.parametrize("capacity", [64 * MIB, GIB, 4 * GIB, 100 * GIB, 10_000 * GIB])
@pytest.mark.parametrize("record", [8 << 10, 256 << 10, 2_500_000, 8 * MIB])
def test_what_is_usable_fits_and_little_is_lost(capacity, record):
    """Records of one size fill all that the planner is told it may use; from 1 GiB on that is 92 % of the capacity."""
    pages = 1 + -(-record // PAGE_BYTES)
    segment_bytes = segment_bytes_for(pages, capacity)
    layout, count = Layout(segment_bytes), capacity // segment_bytes
    fit = (count - spare_count(count)) * ((layout.trailer_page - layout.first_page) // pages)
    usable = planned_usable_bytes(capacity, 1, 0)
    if capacity >= GIB:
        assert usable >= 0.92 * capacity
        assert fit * pages * PAGE_BYTES >= 0.95 * capacity
        assert usable <= fit * pages * PAGE_BYTES
    assert count <= 4096
