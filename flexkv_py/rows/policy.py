"""What a row policy promises: it orders and scores chunks of running requests, and owns no counts.

The planner asks it which chunks may leave DRAM first, and tells it what it learns of them. Which chunks may leave at
all (granted, not pinned by a replay, whole below) the planner sees to.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

from flexkv_py.rows.messages import AbsentEntry, HeatEntry

RequestId = NewType("RequestId", int)
"""The planner's own number of a running request: engines may use the same numbers, and one engine them again."""


class Place(NamedTuple):
    """One chunk of the block at one position of a running request."""

    request: RequestId
    block: int
    chunk: int


class Reason(StrEnum):
    """Why a chunk is thought to be needed soon."""

    SIBLING = "sibling"
    """A step fails for another chunk of the same block, and layer groups resemble each other."""
    TURN = "turn"
    """The request was idle and takes steps again; the chunk was among its hottest."""
    NEIGHBOUR = "neighbour"
    """A step fails for the same chunk of a block beside it."""
    RISING = "rising"
    """Its rows are selected, and as yet found in the hot buffer."""

    @property
    def urgent(self) -> bool:
        """A step that fails now is likely to fail for it next: a prefetch with a deadline, not speculation."""
        return self in (Reason.SIBLING, Reason.TURN)


class Hunch(NamedTuple):
    """A chunk that is not granted and is thought to be needed soon."""

    place: Place
    reason: Reason


class RowPolicy(Protocol):
    """One per planner. Every method is O(what it is told), `coldest` O(what is taken from it)."""

    def granted(self, place: Place, now_ns: int) -> None:
        """This chunk may be read from now on."""
        ...

    def revoked(self, place: Place) -> None:
        """It may not be read any more; it is not to be offered again until it is granted again."""
        ...

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        """What the indexers of one rank selected."""
        ...

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        """Chunks for which a step failed. The planner brings them in by itself; several ranks may tell the same."""
        ...

    def resumed(self, request: RequestId, now_ns: int) -> None:
        """A request that takes no steps will soon: its next turn was attached."""
        ...

    def detached(self, request: RequestId) -> None:
        """The request is over: nothing of it is offered any more."""
        ...

    def coldest(self, now_ns: int) -> Iterable[Place]:
        """Granted chunks in the order in which they should leave DRAM; those that should stay are not among them.

        Taken from lazily, and given up whenever the planner has enough. While it is taken from nothing changes.
        """
        ...

    def ahead(self, now_ns: int) -> Iterable[Hunch]:
        """Chunks, not granted, that are worth bringing back ahead of need; the most urgent first.

        Each is offered once, so taking it is a promise to bring it or to drop it: a policy counts what it said.
        """
        ...
