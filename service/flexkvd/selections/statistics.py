"""How local selections are: overlap with earlier steps, hits of an exact LRU and of the hot buffer, pages touched.

Owns the counting, one account per request and layer; works on any selections, generated or recorded, in one
pass. The order of slots is `lru`'s. Called by `flexkv selections stats` and benchmarks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.selections.lru import HotSlots, Marks, Newest, Positions, grown
from flexkvd.selections.workload import TOKENS_MAX, Selection

LAGS = (1, 8, 32)
WINDOWS = (1, 8, 32, 128)

STREAMS_MAX = 4096
"""Requests times layers: each keeps its slots' orders and 32 selections, about half a megabyte at K = 2,048."""

KEPT_MAX = 1 << 28
"""Pages and hot slots of all streams together: a gigabyte."""

WARM_UP_SHARE = 4
"""The first quarter of a stream's steps fills the slots, and its hits do not count."""

NEVER = -max(WINDOWS)
"""A step before any window."""


@dataclass(frozen=True)
class Summary:
    """Means over steps; None where no request ran long enough to say.

    `overlaps`: lag in steps of the request → share of a selection that was also in the one so many steps before.
    `hit_rates`: hot slots H → hits of an exact LRU per selected position after the first quarter; the newest token,
    which has a slot of its own, does not count. `buffer_hit_rates`: the same, of the hot buffer's order of a step.
    `pages_touched`: window in steps → share of the sequence's pages selected from at least once within it.
    `group_overlap`: share of a selection that the group before it also made in the same step.
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
        largest = max(page_tokens, *hot_slots, 1)
        if largest > TOKENS_MAX:
            cause = f"{largest} hot slots or tokens of a page: no sequence is longer than {TOKENS_MAX}, choose fewer"
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, cause)
        self._hot_slots = tuple(hot_slots)
        self._page_tokens = page_tokens
        self._streams: dict[tuple[int | str, int], _Stream] = {}
        self._previous: Selection | None = None
        self._marks: Marks = np.zeros(1, np.bool_)
        """Scratch of all streams, all False between two calls; one longer than any position so far."""
        self._kept = 0
        """Pages and hot slots of all streams."""

    @property
    def layers(self) -> list[int]:
        """Layers seen so far."""
        return sorted({layer for _, layer in self._streams})

    def add(self, selection: Selection) -> None:
        """Count one selection; those of one request and layer come in the order of their steps.

        Raises FlexKVError: `bad_argument` where it holds more positions than there are hot slots,
        `limit_exceeded` for more than STREAMS_MAX requests times layers, or KEPT_MAX of what they keep.
        """
        if self._hot_slots and selection.positions.size > min(self._hot_slots):
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"request {selection.request} selects {selection.positions.size} positions, and there are only "
                f"{min(self._hot_slots)} hot slots: a step needs a slot for each, choose at least as many",
            )
        self._marks = grown(self._marks, selection.token_count)
        stream = self._stream(selection)
        self._keep(stream.grow(-(-selection.token_count // self._page_tokens)))
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
            slots: _mean(share for stream in streams for share in stream.counted_hit_rates(slots, newest))
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
            self._keep(2 * sum(self._hot_slots))
            stream = self._streams[key] = _Stream(self._hot_slots)
        return stream

    def _keep(self, count: int) -> None:
        self._kept += count
        if self._kept > KEPT_MAX:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"statistics of more than {KEPT_MAX} pages and hot slots together: choose fewer requests, larger pages "
                "or fewer hot slots, or split the file",
            )


class _Stream:
    """The account of one request and layer: one number per step and measure."""

    def __init__(self, hot_slots: Sequence[int]) -> None:
        self.steps = 0
        self.overlaps: dict[int, list[float]] = {lag: [] for lag in LAGS}
        self._buffers = {(slots, newest): HotSlots(slots, newest) for slots in hot_slots for newest in Newest}
        self._hit_rates: dict[tuple[int, Newest], list[float]] = {kind: [] for kind in self._buffers}
        self.pages: dict[int, list[float]] = {window: [] for window in WINDOWS}
        self.group_overlaps: list[float] = []
        self._recent: deque[Positions] = deque(maxlen=max(LAGS))
        self._touched: NDArray[np.int32] = np.zeros(0, np.int32)
        """Of each page: in which step of this stream, from 1, it was last selected from; NEVER if in none."""

    def grow(self, pages: int) -> int:
        """The sequence has so many pages; how many are new."""
        new = max(0, pages - self._touched.size)
        if new:
            self._touched = np.concatenate([self._touched, np.full(new, NEVER, np.int32)])
        return new

    def count_overlaps(self, selection: Selection, marks: Marks) -> None:
        """`marks` is True at the positions of `selection` and nowhere else."""
        for lag in LAGS:
            if lag <= len(self._recent):
                self.overlaps[lag].append(marks[self._recent[-lag]].sum() / selection.positions.size)
        self._recent.append(selection.positions)

    def count_hits(self, selection: Selection, marks: Marks) -> None:
        """`marks` is all False."""
        older = selection.positions[selection.positions < selection.token_count - 1]
        for kind, buffer in self._buffers.items():
            loaded = buffer.step(older, selection.token_count, marks)
            self._hit_rates[kind].append(1 - loaded.size / older.size if older.size else 1.0)

    def counted_hit_rates(self, slots: int, newest: Newest) -> list[float]:
        """Those after the warm-up."""
        return self._hit_rates[slots, newest][self.steps // WARM_UP_SHARE :]

    def count_pages(self, selection: Selection, page_tokens: int) -> None:
        """Windows are of this stream's own steps, the present one included."""
        pages = -(-selection.token_count // page_tokens)
        self._touched[selection.positions // page_tokens] = self.steps
        for window, shares in self.pages.items():
            if window <= self.steps:
                shares.append(np.count_nonzero(self._touched[:pages] > self.steps - window) / pages)


def _mean(values: Iterable[float]) -> float | None:
    found = np.fromiter(values, np.float64)
    return float(found.mean()) if found.size else None
