"""The reference that knows the future: Belady's MIN over chunks, and reads a few steps ahead.

What leaves is what its request needs latest (L. A. Belady, IBM Systems Journal 1966), by each request's own steps to
come. It asks for what the next `LOOKAHEAD_STEPS` steps need as long as what has to leave for it is needed later (the
"aggressive" rule of Cao et al., SIGMETRICS 1995). So its absents are what the link is too slow for, and its reads are
near the fewest possible: reading on demand only would save some, and make every one of them an absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from flexkv_py.rows.messages import AbsentEntry, HeatEntry
from flexkv_py.rows.policy import Hunch, Place, Reason, RequestId
from flexkvd.rowreplay.needs import NEVER, RequestNeeds

LOOKAHEAD_STEPS = 8
Numbers = NDArray[np.int64]


class _Known:
    """One request's future: `soonest` [group, block] is the step that needs a chunk next."""

    def __init__(self, needs: RequestNeeds) -> None:
        self.needs = needs
        self.soonest = np.array(needs.first_needs, np.int64)
        self.dues = np.array([step.due for step in needs.steps] + [NEVER], np.int64)
        self.present = np.zeros(self.soonest.shape, np.bool_)
        self.seen = 0

    def advance(self, done: int) -> None:
        """The steps before `done` are over."""
        for number in range(self.seen, done):
            for soonest, group in zip(self.soonest, self.needs.steps[number].groups, strict=True):
                soonest[group.needed] = group.next_needs
        self.seen = done

    def waits(self) -> Numbers:
        """Engine steps until each chunk is needed, as if nobody waited; [group, block]."""
        due: Numbers = self.dues[np.minimum(self.soonest, len(self.dues) - 1)]
        now: np.int64 = self.dues[min(self.seen, len(self.dues) - 2)]
        return np.subtract(due, now)


class Future:
    """`progress`: how many steps each request has done, kept up to date by whoever runs it."""

    def __init__(self, needs: list[RequestNeeds], progress: list[int]) -> None:
        self._known = [_Known(each) for each in needs]
        self._progress = progress

    def granted(self, place: Place, now_ns: int) -> None:
        self._known[place.request].present[place.chunk, place.block] = True

    def revoked(self, place: Place) -> None:
        self._known[place.request].present[place.chunk, place.block] = False

    def reported(self, request: RequestId, entries: Iterable[HeatEntry], now_ns: int) -> None:
        return

    def absent(self, request: RequestId, entries: Iterable[AbsentEntry], now_ns: int) -> None:
        return

    def resumed(self, request: RequestId, now_ns: int) -> None:
        return

    def detached(self, request: RequestId) -> None:
        return

    def coldest(self, now_ns: int) -> Iterator[Place]:
        spots, waits = self._spots(present=True)
        for at in np.argsort(-waits, kind="stable").tolist():
            yield self._place(spots[at])

    def ahead(self, now_ns: int) -> Iterator[Hunch]:
        """What is needed within the lookahead, the soonest first, each against the one that would leave for it."""
        missing, soon = self._spots(present=False)
        near = np.flatnonzero(soon <= LOOKAHEAD_STEPS)
        near = near[np.argsort(soon[near], kind="stable")]
        _, kept = self._spots(present=True)
        count = min(near.size, kept.size)
        latest = -np.sort(-kept)[:count]
        for at, leaves in zip(near[:count].tolist(), latest.tolist(), strict=True):
            if soon[at] >= leaves:
                return
            yield Hunch(self._place(missing[at]), Reason.TURN)

    def _spots(self, *, present: bool) -> tuple[Numbers, Numbers]:
        """Chunks in DRAM, or those that are not and will be needed: (request, group, block) [N, 3], and their waits."""
        spots, waits = [], []
        for number, (known, done) in enumerate(zip(self._known, self._progress, strict=True)):
            known.advance(done)
            chosen = np.argwhere(known.present if present else ~known.present & (known.soonest != NEVER))
            spots.append(np.column_stack([np.full(len(chosen), number), chosen]))
            waits.append(known.waits()[chosen[:, 0], chosen[:, 1]])
        return np.concatenate(spots), np.concatenate(waits)

    @staticmethod
    def _place(spot: Numbers) -> Place:
        request, group, block = spot.tolist()
        return Place(RequestId(request), block, group)
