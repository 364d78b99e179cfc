"""Selections for the daemon: what was selected most since the last report, copied out and never waited for.

Owns the way from the device's heat tables to bounded entries; what the daemon makes of them is its sparse
policy's. What does not fit stays in the tables and goes with a later report. Called by `worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ENTRIES_MAX = 4096
"""Entries of one report; the protocol's `report_pages_max`."""


@dataclass(frozen=True, slots=True)
class HeatEntry:
    """`count` selections of rows of one block by one layer group."""

    row: int
    group: int
    block: int
    count: int


class HeatReports:
    """Reports from `heat`, int32 [groups, requests_max, blocks_max]."""

    def __init__(self, heat: Tensor, groups: Sequence[int], fence: Callable[[], Callable[[], bool]]) -> None:
        self._heat = heat
        self._groups = list(groups)
        self._fence = fence
        self._size = min(ENTRIES_MAX, heat.numel())
        pinned = heat.device.type == "cuda"
        self._counts = torch.empty(self._size, dtype=heat.dtype, pin_memory=pinned)
        self._cells = torch.empty(self._size, dtype=torch.int64, pin_memory=pinned)
        self._landed: Callable[[], bool] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._landed is not None

    def start(self) -> None:
        """Take the largest counts out of the tables, towards the host. Between steps; one report at a time."""
        assert self._landed is None
        flat = self._heat.view(-1)
        counts, cells = torch.topk(flat, self._size)
        flat.index_fill_(0, cells, 0)
        self._counts.copy_(counts, non_blocking=True)
        self._cells.copy_(cells, non_blocking=True)
        self._landed = self._fence()

    def take(self) -> list[HeatEntry]:
        """The report that was started, largest count first; empty while it is on its way."""
        if self._landed is None or not self._landed():
            return []
        self._landed = None
        _, rows, blocks = self._heat.shape
        pairs = zip(self._cells.tolist(), self._counts.tolist(), strict=True)
        return [
            HeatEntry(cell // blocks % rows, self._groups[cell // (rows * blocks)], cell % blocks, count)
            for cell, count in pairs
            if count
        ]
