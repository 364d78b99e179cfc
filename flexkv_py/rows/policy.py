"""What a row policy promises: it orders and scores chunks of running requests, and owns no counts.

The planner asks it which chunks may leave DRAM first, and tells it what it learns of them. Which chunks may leave at
all (granted, not pinned by a replay, whole below) the planner sees to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, NewType, Protocol

from flexkv_py.rows.messages import HeatEntry, MissEntry

RequestId = NewType("RequestId", int)
"""The planner's own number of a running request: engines may use the same numbers, and one engine them again."""


class Place(NamedTuple):
    """One chunk of the block at one position of a running request."""

    request: RequestId
    block: int
    chunk: int


class RowPolicy(Protocol):
    """One per planner. Every method is O(what it is told), `coldest` O(what is taken from it)."""

    def granted(self, place: Place, now_ns: int, /) -> None:
        """This chunk may be read from now on."""
        ...

    def revoked(self, place: Place, /) -> None:
        """It may not be read any more; it is not to be offered again until it is granted again."""
        ...

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int, /) -> None:
        """What the indexers of one rank selected."""
        ...

    def missed(self, request: RequestId, entries: Iterable[MissEntry], now_ns: int, /) -> None:
        """What the hot buffers of one rank found and did not find."""
        ...

    def detached(self, request: RequestId, /) -> None:
        """The request is over; of each chunk it still had `revoked` has told."""
        ...

    def coldest(self, now_ns: int, /) -> Iterable[Place]:
        """Granted chunks in the order in which they should leave DRAM; those that should stay are not among them.

        Taken from lazily, and given up whenever the planner has enough. While it is taken from nothing changes.
        """
        ...

    def rising(self, now_ns: int, /) -> Iterable[Place]:
        """Chunks, not granted, that are worth bringing back ahead of need; the most urgent first."""
        ...
