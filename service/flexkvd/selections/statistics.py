"""How local selections are: overlap with earlier steps, hits of an exact LRU and of the hot buffer, pages touched.

Owns the counting, one account per request and layer; works on any selections, generated or recorded, in one
pass. Called by `flexkv selections stats` and benchmarks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.selections.workload import Selection

LAGS = (1, 8, 32)
WINDOWS = (1, 8, 32, 128)
WARM_UP_SHARE = 4
"""The first quarter of a stream's steps fills the slots, and its hits do not count."""

STREAMS_MAX = 4096
"""Requests times layers: each keeps its slots' order and 32 selections, about half a megabyte at K = 2,048."""

Positions = NDArray[np.int32]
Marks = NDArray[np.bool_]

NEVER = -max(WINDOWS)
"""A step before any window."""

EMPTY = -1
"""An empty slot, in place of the position it holds."""


class Newest(Enum):
    """Which of a step's rows an exact LRU of steps takes for the more recent: it leaves that open.

    LOADED: touch what is there, then load what is missing; the order of the published hit rates. HITS: as the engines'
    hot buffers do it (HiSparse in SGLang 0.5), and ours. Where a step's rows fill half the slots it decides .03.
    """

    LOADED = "loaded"
    HITS = "hits"


def lru_step(order: Positions, selected: Positions, marks: Marks, newest: Newest) -> tuple[Positions, int]:
    """One step of an exact LRU of hot slots: the new order, oldest first, and how many were hits.

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
    return np.concatenate([stale, *used]), hits.size


@dataclass(frozen=True)
class Summary:
    """Means over steps; None where no request ran long enough to say.

    `overlaps`: lag in steps of the request → share of a selection that was also in the one so many steps before.
    `hit_rates`: hot slots H → hits of an exact LRU per selected position after the first quarter; the newest token,
    which has a slot of its own, does not count. `buffer_hit_rates`: the same of the hot buffer's order of a step. `pages_touched`: window in steps → share of the sequence's pages selected
    from at least once within it. `group_overlap`: share of a selection that the group before it also made in the
    same step.
    """

    selections: int
    overlaps: dict[int, float | None]
    hit_rates: dict[int, float | None]
    buffer_hit_rates: dict[int, float | None]
    pages_touched: dict[int, float | None]
    group_overlap: float | None


class Statistics:
    """Accounts of all requests and layers of a stream of selections."""

    def __init__(self, hot_slots: Sequence[int], page_tokens: int = 64) -> None:
        self._hot_slots = tuple(hot_slots)
        self._page_tokens = page_tokens
        self._streams: dict[tuple[int | str, int], _Stream] = {}
        self._previous: Selection | None = None
        self._marks: Marks = np.zeros(1, np.bool_)
        """Scratch of all streams, all False between two calls; one longer than any position so far."""

    @property
    def layers(self) -> list[int]:
        """Layers seen so far."""
        return sorted({layer for _, layer in self._streams})

    def add(self, selection: Selection) -> None:
        """Count one selection; those of one request and layer come in the order of their steps.

        Raises FlexKVError: `bad_argument` where it holds more positions than there are hot slots,
        `limit_exceeded` for more than STREAMS_MAX requests times layers.
        """
        if self._hot_slots and selection.positions.size > min(self._hot_slots):
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"request {selection.request} selects {selection.positions.size} positions, and there are only "
                f"{min(self._hot_slots)} hot slots: a step needs a slot for each, choose at least as many",
            )
        if selection.token_count >= self._marks.size:
            self._marks = np.zeros(2 * selection.token_count, np.bool_)
        stream = self._stream(selection)
        stream.steps += 1
        self._marks[selection.positions] = True
        stream.count_overlaps(selection, self._marks)
        previous = self._previous
        if previous and (previous.request, previous.step) == (selection.request, selection.step):
            stream.group_overlaps.append(self._marks[previous.positions].sum() / selection.positions.size)
        self._marks[selection.positions] = False
        stream.count_hits(selection, self._marks)
        stream.count_pages(selection, self._page_tokens)
        self._previous = selection

    def add_all(self, selections: Iterable[Selection]) -> Statistics:
        """Count them all; returns itself."""
        for selection in selections:
            self.add(selection)
        return self

    def summary(self, layer: int | None = None) -> Summary:
        """Means over the requests of one layer, or of all layers."""
        streams = [stream for (_, of), stream in self._streams.items() if layer in (None, of)]
        return Summary(
            selections=sum(stream.steps for stream in streams),
            overlaps={lag: _mean(share for stream in streams for share in stream.overlaps[lag]) for lag in LAGS},
            hit_rates=self._hit_rates(streams, Newest.LOADED),
            buffer_hit_rates=self._hit_rates(streams, Newest.HITS),
            pages_touched={
                window: _mean(share for stream in streams for share in stream.pages[window]) for window in WINDOWS
            },
            group_overlap=_mean(share for stream in streams for share in stream.group_overlaps),
        )

    def _hit_rates(self, streams: list[_Stream], newest: Newest) -> dict[int, float | None]:
        return {
            slots: _mean(share for stream in streams for share in stream.buffers[slots, newest].counted_hit_rates())
            for slots in self._hot_slots
        }

    def _stream(self, selection: Selection) -> _Stream:
        key = selection.request, selection.layer
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) == STREAMS_MAX:
                raise FlexKVError(
                    ErrorCode.LIMIT_EXCEEDED,
                    f"statistics of more than {STREAMS_MAX} requests times layers: choose fewer, or split the file",
                )
            stream = self._streams[key] = _Stream(self._hot_slots)
        return stream


class _Buffer:
    """Hot slots of one request and layer, and the share of hits in each step."""

    def __init__(self, slots: int, newest: Newest) -> None:
        self._newest = newest
        self._order: Positions = np.full(slots, EMPTY, np.int32)
        self._hit_rates: list[float] = []

    def step(self, positions: Positions, token_count: int, marks: Marks) -> None:
        """Select `positions`. A sequence that fits is resident as a whole, each row in the slot of its position."""
        slots = self._order.size
        if token_count <= slots:
            self._order[:] = np.arange(slots)
            self._hit_rates.append(1.0)
            return
        self._order, hits = lru_step(self._order, positions, marks, self._newest)
        self._hit_rates.append(hits / positions.size if positions.size else 1.0)

    def counted_hit_rates(self) -> list[float]:
        """Those after the first quarter."""
        return self._hit_rates[len(self._hit_rates) // WARM_UP_SHARE :]


class _Stream:
    """The account of one request and layer: one number per step and measure."""

    def __init__(self, hot_slots: Sequence[int]) -> None:
        self.steps = 0
        self.overlaps: dict[int, list[float]] = {lag: [] for lag in LAGS}
        self.buffers = {(slots, newest): _Buffer(slots, newest) for slots in hot_slots for newest in Newest}
        self.pages: dict[int, list[float]] = {window: [] for window in WINDOWS}
        self.group_overlaps: list[float] = []
        self._recent: deque[Positions] = deque(maxlen=max(LAGS))
        self._touched: NDArray[np.int64] = np.zeros(0, np.int64)
        """Of each page: in which step of this stream, from 1, it was last selected from; NEVER if in none."""

    def count_overlaps(self, selection: Selection, marks: Marks) -> None:
        """`marks` is True at the positions of `selection` and nowhere else."""
        for lag in LAGS:
            if lag <= len(self._recent):
                self.overlaps[lag].append(marks[self._recent[-lag]].sum() / selection.positions.size)
        self._recent.append(selection.positions)

    def count_hits(self, selection: Selection, marks: Marks) -> None:
        """`marks` is all False."""
        older = selection.positions[selection.positions < selection.token_count - 1]
        for buffer in self.buffers.values():
            buffer.step(older, selection.token_count, marks)

    def count_pages(self, selection: Selection, page_tokens: int) -> None:
        """Windows are of this stream's own steps, the present one included."""
        pages = -(-selection.token_count // page_tokens)
        if pages > self._touched.size:
            self._touched = np.concatenate([self._touched, np.full(pages - self._touched.size, NEVER)])
        self._touched[selection.positions // page_tokens] = self.steps
        for window, shares in self.pages.items():
            if window <= self.steps:
                shares.append(np.count_nonzero(self._touched > self.steps - window) / pages)


def _mean(values: Iterable[float]) -> float | None:
    found = np.fromiter(values, np.float64)
    return float(found.mean()) if found.size else None
