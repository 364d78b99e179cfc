"""Which tenant is most above its share of a tier: the one that gives room next.

Shares are by weight. In a tier that is full whoever uses most bytes per weight uses at least its share, so taking
from the fullest alone pushes nobody below his (weighted max-min fairness: Bertsekas and Gallager, "Data Networks",
6.5.2). Held as a heap with lazy updates: an entry is an upper bound of how full a shelf is, made exact when it comes
to the top. So a change costs next to nothing, and a question O(log tenants) amortised.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

HEADROOM = 1.125
"""An entry stands for so much growth: then a tenant that fills its room costs a few entries, not one per block."""
ENTRIES_PER_SHELF_MAX = 4


class Ranked(Protocol):
    """What is ranked. `ranked` and `ranked_at` are the ranking's own; who is `watched` says that it has grown."""

    ranked: bool
    ranked_at: float
    watched: bool

    @property
    def fullness(self) -> float: ...

    @property
    def count(self) -> int: ...


RankedT = TypeVar("RankedT", bound=Ranked)


class Ranking(Generic[RankedT]):
    """The shelves of one tier. One that has nothing to give leaves by itself, and must `enter` again."""

    def __init__(self) -> None:
        self.shelves: list[RankedT] = []
        self.several = False  # there was more than one: whoever grows must say so
        self._heap: list[tuple[float, int, RankedT]] = []
        self._entries = 0  # ever made: what breaks ties, so that the order is always the same

    def join(self, shelf: RankedT) -> None:
        """A new tenant's shelf, with nothing in it yet."""
        self.shelves.append(shelf)
        self.several = self.several or len(self.shelves) > 1
        shelf.watched = shelf.watched or self.several
        if len(self.shelves) == 2:
            self.shelves[0].watched = True
            self.grown(self.shelves[0])

    def leave(self, shelf: RankedT) -> None:
        """A tenant that has nothing here any more is forgotten."""
        assert not shelf.count
        self.shelves.remove(shelf)
        shelf.ranked = False

    def enter(self, shelf: RankedT) -> None:
        """The shelf has something to give from now on."""
        shelf.ranked = True
        self._push(shelf, shelf.fullness)

    def grown(self, shelf: RankedT) -> None:
        """A shelf may be fuller than its entry says."""
        fullness = shelf.fullness
        if shelf.ranked and fullness > shelf.ranked_at:
            self._push(shelf, fullness * HEADROOM)

    def fullest(self) -> RankedT | None:
        """The shelf that is most above its share and has copies that stand in some list."""
        if not self.several:
            return self.shelves[0] if self.shelves else None
        heap = self._heap
        while heap:
            bound, entry, shelf = heap[0]
            if not shelf.ranked or -bound != shelf.ranked_at:
                heapq.heappop(heap)  # superseded
            elif not shelf.count:
                heapq.heappop(heap)
                shelf.ranked = False
            elif shelf.fullness != shelf.ranked_at:
                shelf.ranked_at = shelf.fullness
                heapq.heapreplace(heap, (-shelf.ranked_at, entry, shelf))
            else:
                return shelf
        return None

    def _push(self, shelf: RankedT, bound: float) -> None:
        shelf.ranked_at = bound
        self._entries += 1
        heapq.heappush(self._heap, (-bound, self._entries, shelf))
        if len(self._heap) > ENTRIES_PER_SHELF_MAX * (len(self.shelves) + 1):
            self._heap = [at for at in self._heap if at[2].ranked and -at[0] == at[2].ranked_at]
            heapq.heapify(self._heap)
