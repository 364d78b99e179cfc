"""Which record a location names, and where it lies now.

A location is one integer that names one record for the life of the store: it stays valid when the
record is rewritten elsewhere, and is never given to another. Slots of the table are used again under a
new generation, so a stale location names nothing. 17 bytes a record. `log` is the only caller.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

SLOT_BITS = 32
_SLOT_MASK = (1 << SLOT_BITS) - 1
_PAGE_BITS = 32
_PAGE_MASK = (1 << _PAGE_BITS) - 1

Pages = NDArray[np.uint32]
"""Of many records: their first pages, or their lengths in pages."""
GONE, LIVE, WAS_READ, DAMAGED, LEAVING = 0, 1, 2, 4, 8
"""Bits of a record's state: it is there; read since it was written last; found damaged; its drop is under way."""


class RecordTable:
    """Records by slot. Everything here is O(1), but for `add_many`, which is one pass."""

    def __init__(self) -> None:
        self._places = array("Q")  # segment << 32 | page
        self._pages = array("I")
        self._generations = array("I")
        self._states = bytearray()
        self._free = array("I")  # exactly the slots whose state is GONE

    def __len__(self) -> int:
        return len(self._states) - len(self._free)

    def add(self, segment: int, page: int, pages: int) -> int:
        """A new record; returns its slot."""
        place = segment << _PAGE_BITS | page
        if self._free:
            slot = self._free.pop()
            assert self._states[slot] == GONE
            self._places[slot], self._pages[slot], self._states[slot] = place, pages, LIVE
            return slot
        slot = len(self._states)
        self._places.append(place)
        self._pages.append(pages)
        self._generations.append(1)
        self._states.append(LIVE)
        return slot

    def add_many(self, segment: int, pages: Pages, lengths: Pages) -> range:
        """New records that start at `pages` of one segment, in new slots; returns those."""
        first, count = len(self._states), len(pages)
        self._places.frombytes((pages.astype(np.uint64) | np.uint64(segment << _PAGE_BITS)).tobytes())
        self._pages.frombytes(lengths.astype(np.uint32).tobytes())
        self._generations.extend(array("I", [1]) * count)
        self._states.extend(bytes([LIVE]) * count)
        return range(first, first + count)

    def remove(self, slot: int) -> None:
        """The record is gone: its location names nothing from here on."""
        assert self._states[slot] & LIVE
        self._states[slot] = GONE
        self._generations[slot] += 1
        self._free.append(slot)

    def move(self, slot: int, segment: int, page: int) -> None:
        """The record lies elsewhere now; nobody has read it there yet."""
        assert self._states[slot] & LIVE
        self._places[slot] = segment << _PAGE_BITS | page
        self._states[slot] &= ~WAS_READ

    def slot(self, location: int) -> int | None:
        """The slot of a record; None when there is none of that location any more."""
        slot, generation = location & _SLOT_MASK, location >> SLOT_BITS
        if slot >= len(self._states) or self._generations[slot] != generation or not self._states[slot] & LIVE:
            return None
        return slot

    def location(self, slot: int) -> int:
        return self._generations[slot] << SLOT_BITS | slot

    def locations(self, slots: range) -> range:
        """Locations of slots that `add_many` gave."""
        return range(1 << SLOT_BITS | slots.start, 1 << SLOT_BITS | slots.stop)

    def place(self, slot: int) -> tuple[int, int]:
        """Segment and first page."""
        place = self._places[slot]
        return place >> _PAGE_BITS, place & _PAGE_MASK

    def lies_at(self, slot: int, segment: int, page: int) -> bool:
        """Whether the slot holds a record and that is its place."""
        return bool(self._states[slot] & LIVE) and self._places[slot] == segment << _PAGE_BITS | page

    def pages(self, slot: int) -> int:
        """Length in pages of 4 KiB."""
        return self._pages[slot]

    def mark(self, slot: int, bit: int) -> None:
        self._states[slot] |= bit

    def unmark(self, slot: int, bit: int) -> None:
        self._states[slot] &= ~bit

    def has(self, slot: int, bit: int) -> bool:
        return bool(self._states[slot] & bit)

    def count_damaged(self) -> int:
        """Records found damaged and not dropped yet; one pass, for status."""
        return sum(self._states.count(state) for state in range(16) if state & LIVE and state & DAMAGED)
