"""Least frequently used since its request began leaves first. A yardstick: it forgets nothing (docs/policies.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flexkv_py.rows.heat import ColdOrder, Heat, Mark
from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import Place, RequestId, RowPolicy


class LeastFrequentRows(RowPolicy):
    """Heat without decay: the clock stands still."""

    def __init__(self) -> None:
        self._heats: dict[RequestId, Heat] = {}
        self._order = ColdOrder()

    def granted(self, place: Place, now_ns: int) -> None:
        heat = self._heat(place.request)
        heat.touch(place.block, place.chunk, 0.0, 1.0)
        heat.marks[place.chunk][place.block] = Mark.KNOWN
        self._order.add(heat, place.block, place.chunk)

    def revoked(self, place: Place) -> None:
        self._heat(place.request).marks[place.chunk][place.block] = Mark.BELOW

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        heat = self._heat(request)
        for _, block, chunk, selected in entries:
            heat.touch(block, chunk, 0.0, selected)

    def detached(self, request: RequestId) -> None:
        heat = self._heats.pop(request, None)
        if heat is not None:
            heat.end()

    def coldest(self, now_ns: int) -> Iterator[Place]:
        for heat, block, chunk in self._order.coldest():
            yield Place(heat.request, block, chunk)

    def _heat(self, request: RequestId) -> Heat:
        heat = self._heats.get(request)
        if heat is None:
            heat = self._heats[request] = Heat(len(self._heats), request)
        return heat
