"""Which rows an exact LRU keeps from step to step, and which of a step's rows it lacks.

Owns the order of the slots of one request and layer; nothing moves here. Called by `statistics` and by the replay of
row policies.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int32]
Marks = NDArray[np.bool_]

EMPTY = -1
"""An empty slot, in place of the position it holds."""


class Newest(Enum):
    """Which of a step's rows an exact LRU of steps takes for the more recent: it leaves that open.

    LOADED: touch what is there, then load what is missing; the order of the published hit rates. HITS: as the engines'
    hot buffers do it (HiSparse in SGLang 0.5), and ours. Where a step's rows fill half the slots it decides up to .03.
    """

    LOADED = "loaded"
    HITS = "hits"


class HotSlots:
    """The H slots of one request and layer."""

    def __init__(self, slots: int, newest: Newest) -> None:
        self._slots = slots
        self._newest = newest
        self._order: Positions | None = None
        """Of a sequence that does not fit: the positions in the slots, oldest first, or EMPTY."""
        self._fitted = False

    def step(self, positions: Positions, token_count: int, marks: Marks) -> Positions:
        """Select `positions`, each once; what has to be loaded for it. `marks` as for `lru_step`.

        A sequence that fits is resident as a whole, each row in the slot of its position, and is found there when it
        has grown.
        """
        if token_count <= self._slots:
            self._order, self._fitted = None, True
            return positions[:0]
        if self._order is None:
            slots = np.arange(self._slots) if self._fitted else np.full(self._slots, EMPTY)
            self._order = slots.astype(np.int32)
        self._order, loaded = lru_step(self._order, positions, marks, self._newest)
        return loaded


def lru_step(order: Positions, selected: Positions, marks: Marks, newest: Newest) -> tuple[Positions, Positions]:
    """One step of an exact LRU of hot slots: the new order, oldest first, and what was loaded.

    `order` [H] positions or EMPTY, `selected` [K ≤ H] positions, each once. The m-th miss gets the m-th oldest slot
    not selected; hits keep their old order, what was loaded has that of `selected`. `marks` is scratch, all False,
    longer than any position by one: EMPTY marks its end.
    """
    marks[order] = True
    resident = marks[selected]
    marks[order] = False
    marks[selected] = True
    hit_slots = marks[order]
    marks[selected] = False
    loaded, hits = selected[~resident], order[hit_slots]
    stale = order[~hit_slots][loaded.size :]
    used = (loaded, hits) if newest is Newest.HITS else (hits, loaded)
    return np.concatenate([stale, *used]), loaded


def grown(marks: Marks, token_count: int) -> Marks:
    """Scratch for sequences of this length: `marks` itself if it is long enough, else a longer one, all False."""
    return marks if token_count < marks.size else np.zeros(2 * token_count, np.bool_)
