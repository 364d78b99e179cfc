"""Least recently used: the chunk that was granted, selected or missed longest ago leaves first. The yardstick."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import Place, RequestId, RowPolicy


class LeastRecentRows(RowPolicy):
    """Granted chunks of each request in order of use. Knows uses as reports tell them, and predicts nothing."""

    def __init__(self) -> None:
        self._orders: dict[RequestId, dict[Place, int]] = {}  # when each was used last; the one longest ago first
        self._uses = 0

    def granted(self, place: Place, now_ns: int) -> None:
        self._use(self._orders.setdefault(place.request, {}), place)

    def revoked(self, place: Place) -> None:
        self._orders.get(place.request, {}).pop(place, None)

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        order = self._orders.get(request, {})
        for _, block, chunk, _ in reversed(list(entries)):  # largest first in a report, and that is the latest use here
            place = Place(request, block, chunk)
            if place in order:
                self._use(order, place)

    def detached(self, request: RequestId) -> None:
        self._orders.pop(request, None)

    def coldest(self, now_ns: int) -> Iterable[Place]:
        return (place for _, place in merge(*map(_by_use, self._orders.values())))

    def _use(self, order: dict[Place, int], place: Place) -> None:
        order.pop(place, None)
        self._uses += 1
        order[place] = self._uses


def _by_use(order: dict[Place, int]) -> Iterator[tuple[int, Place]]:
    return ((used, place) for place, used in order.items())
