"""What a disk was told and did not do: places that nobody shall find a record at again, and may.

A place is owed from the moment its record is given up until a dead map on disk says so or its segment is cleared.
A restart before that may find the record. So a drop of a block concerns the owed places of it as well, a
segment that owes is not opened again, and `Mender` asks the disk until nothing is owed. Pure; the stripes of a
store share one.
"""

from __future__ import annotations

from collections.abc import Iterable

from flexkv_py.core.messages import BlockName
from flexkv_tiers.ssd.segment import Segment

WHOLE = 0
"""The page a segment owes when nothing in it is to be found: it has to be cleared. No record starts there."""


class Owed:
    """The owed places of one store. Each segment keeps its own pages, with whose record may lie there."""

    def __init__(self) -> None:
        self._segments: dict[Segment, None] = {}  # exactly those that owe
        self._places: dict[BlockName, list[tuple[Segment, int]]] = {}

    def __len__(self) -> int:
        """Places."""
        return sum(len(segment.owed) for segment in self._segments)

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments)

    def of(self, block: BlockName) -> list[tuple[Segment, int]]:
        """Where a record of this block may lie that nobody shall find."""
        return list(self._places.get(block, ()))

    def add(self, segment: Segment, pages: Iterable[int], block: BlockName | None) -> None:
        """From here on a record of `block`, or of nobody knows which, may lie at these pages."""
        for page in pages:
            self._forget(segment, page)
            segment.owed[page] = block
            if block is not None:
                self._places.setdefault(block, []).append((segment, page))
        self._segments[segment] = None

    def settle(self, segment: Segment, pages: Iterable[int]) -> None:
        """Nothing will be found at these pages any more."""
        for page in pages:
            self._forget(segment, page)
        if not segment.owed:
            self._segments.pop(segment, None)

    def _forget(self, segment: Segment, page: int) -> None:
        block = segment.owed.pop(page, None)
        if block is not None:
            places = self._places[block]
            places.remove((segment, page))
            if not places:
                del self._places[block]
