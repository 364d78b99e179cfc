"""What a row policy promises: it orders and scores chunks of running requests, and owns no counts.

The planner asks it which chunks may leave DRAM first, and tells it what it learns of them. Which chunks may leave at
all (granted, not pinned by a replay, whole below) the planner sees to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flexkv_py.rows.messages import AbsentEntry, HeatEntry, Hunch, Place, Reason, RequestId

__all__ = ["Hunch", "Place", "Reason", "RequestId", "RowPolicy"]


class RowPolicy(Protocol):
    """One per planner. Every method is O(what it is told), `coldest` O(what is taken from it, and requests)."""

    def granted(self, place: Place, now_ns: int) -> None:
        """This chunk may be read from now on. Told again of one that must stay: others are to be offered first."""
        ...

    def revoked(self, place: Place) -> None:
        """It may not be read any more; it is not to be offered again until it is granted again."""
        ...

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        """What the indexers of one rank selected."""
        ...

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        """Chunks for which a step failed. The planner brings them in by itself; several ranks may tell the same."""
        return

    def resumed(self, request: RequestId, now_ns: int) -> None:
        """A request that takes no steps will soon: its next turn was attached."""
        return

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
        return ()
