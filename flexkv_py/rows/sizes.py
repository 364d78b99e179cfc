"""How many hot slots each running request should have, by what its hot buffer was measured to miss.

Hits grow with the size of a buffer ever more slowly. Taking the misses m of H slots to fall as a power of H, the gain
of one more slot is proportional to m / H; so a slot is worth most where the misses per slot are highest, and sizes
are best where they are equal. Only that ratio is used, so the power need not be known. (Shifting memory along such
gradients: Cidon et al., "Cliffhanger", NSDI 2016.)

Decides only; the worker's pool moves slots. Called by `sparse`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexkv_py.rows.policy import RequestId

MEASURES_WEIGHT = 0.75
"""What earlier reports weigh against one more."""

GAIN_MIN = 1.25
"""Slots move only to where a slot is worth so much more: moved rows must be fetched again."""


@dataclass(slots=True)
class Measured:
    """Rows found and not found in one request's hot buffers, those of late weighing most."""

    hits: float = 0.0
    misses: float = 0.0


class HotSizes:
    """Measured misses by request."""

    def __init__(self) -> None:
        self._measured: dict[RequestId, Measured] = {}

    def measured(self, request: RequestId, hits: int, misses: int) -> None:
        """One report."""
        seen = self._measured.setdefault(request, Measured())
        seen.hits = seen.hits * MEASURES_WEIGHT + hits
        seen.misses = seen.misses * MEASURES_WEIGHT + misses

    def forget(self, request: RequestId) -> None:
        """The request is over."""
        self._measured.pop(request, None)

    def miss_share(self, request: RequestId) -> float:
        """Rows not found, of those asked for; 1 for a request that was never measured."""
        seen = self._measured.get(request)
        asked = seen.hits + seen.misses if seen else 0.0
        return seen.misses / asked if seen and asked else 1.0

    def move(self, slots: dict[RequestId, int], slots_min: int, quantum: int) -> dict[RequestId, int]:
        """The sizes after at most one quantum moved; their sum stays.

        `slots`: slots of each running request now. Nobody is left with fewer than `slots_min`, which is what one step
        selects. Called again after the next reports, it climbs to where nothing is gained any more.
        """
        if len(slots) < 2:
            return dict(slots)
        worth = {request: self.miss_share(request) / count for request, count in slots.items()}
        givers = [request for request in slots if slots[request] - quantum >= slots_min]
        if not givers:
            return dict(slots)
        giver = min(givers, key=worth.__getitem__)
        taker = max(slots, key=worth.__getitem__)
        if giver == taker or worth[taker] < GAIN_MIN * worth[giver]:
            return dict(slots)
        return slots | {giver: slots[giver] - quantum, taker: slots[taker] + quantum}
