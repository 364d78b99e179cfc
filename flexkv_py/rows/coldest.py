"""The plain row policy: what was granted or selected last leaves DRAM last. It predicts nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from flexkv_py.rows.messages import HeatEntry, MissEntry
from flexkv_py.rows.policy import Place, RequestId


class Coldest:
    """Least recently selected first."""

    def __init__(self) -> None:
        self._order: OrderedDict[Place, None] = OrderedDict()  # granted chunks, the coldest first

    def granted(self, place: Place, _now_ns: int) -> None:
        self._order[place] = None
        self._order.move_to_end(place)

    def revoked(self, place: Place) -> None:
        self._order.pop(place, None)

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], _now_ns: int) -> None:
        for entry in entries:
            place = Place(request, entry.block, entry.chunk)
            if place in self._order:
                self._order.move_to_end(place)

    def missed(self, _request: RequestId, _entries: Iterable[MissEntry], _now_ns: int) -> None:
        return

    def detached(self, _request: RequestId) -> None:
        return

    def coldest(self, _now_ns: int) -> Iterable[Place]:
        return iter(self._order)

    def rising(self, _now_ns: int) -> Iterable[Place]:
        return ()
