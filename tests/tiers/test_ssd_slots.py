"""Where records go: the slot table by itself."""

from __future__ import annotations

import random

import pytest

from flexkv_tiers.ssd.slots import SEGMENTS_MAX, SLOT_BITS, SlotState, SlotTable

KIB = 1024


def grow(table: SlotTable, slot_bytes: int) -> bool:
    """Do what the table plans, as the store does with files."""
    growth = table.plan_growth(slot_bytes)
    if growth is None:
        return False
    for number in growth.remove:
        table.remove(number)
    table.add(growth.number, growth.slot_bytes, growth.slot_count, SlotState.FREE)
    return True


def take(table: SlotTable, slot_bytes: int) -> int | None:
    location = table.take(slot_bytes)
    if location is None and grow(table, slot_bytes):
        location = table.take(slot_bytes)
        assert location is not None
    return location


def release(table: SlotTable, location: int) -> None:
    table.set_state(location, SlotState.LEAVING)
    table.set_state(location, SlotState.FREE)


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_twice_and_never_above_capacity(seed):
    """Random takes and releases of five sizes: locations are unique, files never exceed the capacity."""
    chance = random.Random(seed)
    table = SlotTable(4096 * KIB, 256 * KIB)
    held: dict[int, int] = {}
    for _ in range(3000):
        if held and chance.random() < 0.48:
            release(table, location := chance.choice(list(held)))
            del held[location]
            continue
        slot_bytes = chance.choice([8, 16, 60, 100, 300]) * KIB
        location = take(table, slot_bytes)
        if location is not None:
            assert location not in held
            segment, offset = table.place(location)
            assert segment.slot_bytes == slot_bytes
            assert 0 <= offset <= segment.file_bytes - slot_bytes
            held[location] = slot_bytes
        assert table.used_bytes == sum(segment.file_bytes for segment in table.segments.values()) <= 4096 * KIB
        assert table.count(SlotState.USED) == len(held)
        for segment in table.segments.values():
            assert sorted(segment.free) == [at for at, state in enumerate(segment.states) if state == SlotState.FREE]


def test_the_lowest_segment_is_taken_first():
    """Freed slots of low segments are used before the last segment's, so that the last ones run empty."""
    table = SlotTable(1024 * KIB, 64 * KIB)
    places = [take(table, 16 * KIB) for _ in range(12)]
    assert [place >> SLOT_BITS for place in places] == [1] * 4 + [2] * 4 + [3] * 4
    release(table, places[9])
    release(table, places[1])
    assert take(table, 16 * KIB) == places[1]
    assert take(table, 16 * KIB) == places[9]


def test_numbers_of_segments_are_not_used_twice():
    """A location of a removed segment never names a slot of a later one."""
    table = SlotTable(64 * KIB, 64 * KIB)
    old = take(table, 16 * KIB)
    release(table, old)
    new = take(table, 32 * KIB)
    assert table.used_bytes == 64 * KIB
    assert table.state(old) is SlotState.FREE
    assert new >> SLOT_BITS != old >> SLOT_BITS


@pytest.mark.parametrize("held", [SlotState.USED, SlotState.DAMAGED, SlotState.LEAVING, SlotState.UNREAD])
def test_only_wholly_free_segments_give_way(held):
    """A slot that is used, quarantined, leaving or not yet looked at keeps its segment."""
    table = SlotTable(64 * KIB, 64 * KIB)
    location = take(table, 16 * KIB)
    table.set_state(location, held)
    assert take(table, 64 * KIB) is None


def test_a_retired_segment_takes_nothing_new():
    """A segment whose file is gone serves what it has; new records go to another one."""
    table = SlotTable(128 * KIB, 64 * KIB)
    first = take(table, 16 * KIB)
    table.segments[first >> SLOT_BITS].retired = True
    assert take(table, 16 * KIB) >> SLOT_BITS != first >> SLOT_BITS


def test_the_count_of_segments_is_bounded():
    """Beyond the limit of open files the tier is full, whatever its capacity."""
    table = SlotTable(1 << 40, 8 * KIB)
    for _ in range(SEGMENTS_MAX):
        assert take(table, 8 * KIB) is not None
    assert take(table, 8 * KIB) is None


def test_a_record_larger_than_a_segment_gets_one_of_its_own():
    """The segment size is a wish: a larger record is stored all the same, within the capacity."""
    table = SlotTable(256 * KIB, 64 * KIB)
    assert take(table, 100 * KIB) is not None
    assert table.used_bytes == 100 * KIB


@pytest.mark.parametrize("location", [-1, 0, 5 << SLOT_BITS, (1 << SLOT_BITS) + 4])
def test_a_location_that_does_not_exist_is_free(location):
    """Nonsense locations name no record."""
    table = SlotTable(64 * KIB, 64 * KIB)
    take(table, 16 * KIB)
    assert table.state(location) is SlotState.FREE
