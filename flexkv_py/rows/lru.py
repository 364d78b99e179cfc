"""Least recently used: the chunk that was granted, selected or missed longest ago leaves first. The yardstick."""

from __future__ import annotations

from collections.abc import Iterable

from flexkv_py.rows.messages import AbsentEntry, HeatEntry
from flexkv_py.rows.policy import Hunch, Place, RequestId


class LeastRecentRows:
    """One dictionary in order of use. Knows uses as reports tell them, and predicts nothing."""

    def __init__(self) -> None:
        self._order: dict[Place, None] = {}  # granted chunks, the one used longest ago first

    def granted(self, place: Place, now_ns: int) -> None:
        self._order.pop(place, None)
        self._order[place] = None

    def revoked(self, place: Place) -> None:
        self._order.pop(place, None)

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        order = self._order
        for _, block, chunk, _ in reversed(list(entries)):  # largest first in a report, and that is the latest use here
            place = Place(request, block, chunk)
            if place in order:
                del order[place]
                order[place] = None

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        return

    def resumed(self, request: RequestId, now_ns: int) -> None:
        return

    def detached(self, request: RequestId) -> None:
        for place in [place for place in self._order if place.request == request]:
            del self._order[place]

    def coldest(self, now_ns: int) -> Iterable[Place]:
        return iter(self._order)

    def ahead(self, now_ns: int) -> Iterable[Hunch]:
        return ()
