"""A row policy of whims: chunks leave in any order, and any chunk may be wanted ahead of need. No promise may depend
on what a policy says."""

from __future__ import annotations

import random
from collections.abc import Iterable

from flexkv_py.rows.lru import LeastRecentRows
from flexkv_py.rows.messages import HeatEntry
from flexkv_py.rows.policy import Hunch, Place, Reason, RequestId


class Whims(LeastRecentRows):
    """Knows what is granted, as every policy must, and makes up the rest; one hunch for each report."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._hunches: list[Hunch] = []

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        for entry in list(entries)[:1]:
            place = Place(request, entry.block + self._chance.choice((-1, 0, 1)), entry.chunk)
            if place.block >= 0:
                self._hunches.append(Hunch(place, Reason.RISING))

    def detached(self, request: RequestId) -> None:
        self._hunches = [hunch for hunch in self._hunches if hunch.place.request != request]
        super().detached(request)

    def coldest(self, now_ns: int) -> Iterable[Place]:
        places = list(super().coldest(now_ns))
        self._chance.shuffle(places)
        return places

    def ahead(self, now_ns: int) -> Iterable[Hunch]:
        hunches, self._hunches = self._hunches, []
        return hunches
