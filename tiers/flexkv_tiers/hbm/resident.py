"""Rows that lie in HBM pages, on the device: splits a selection into what is there and what `plan` must find.

Everything in HBM is pages: some hold a block, some are slots of a hot buffer, and attention reads both by one number:
slot `page · ids_per_block + i` is id `i` of the block in that page. Owns the table that says
which block of which request is in which page; who gets pages is decided in `pool`. Called by `worker`, in a
captured graph too: nothing here asks the device for a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flexkv_tiers.hbm.shape import GroupShape, TableLimits
from flexkv_tiers.hbm.tables import EMPTY, RequestTables


class ResidentPages:
    """`page` int32 [requests_max, blocks_max]: the HBM page that holds a block of a request, or EMPTY."""

    def __init__(self, limits: TableLimits, device: torch.device) -> None:
        self.page = torch.full((limits.requests_max, limits.blocks_max), EMPTY, dtype=torch.int32, device=device)
        self._batch_row = torch.arange(limits.batch_max, dtype=torch.int32, device=device)

    def place(self, row: int, blocks: Sequence[int], pages: Sequence[int]) -> None:
        """From the next step on these blocks of table row `row` are read from these pages."""
        self._write(row, blocks, torch.tensor(list(pages), dtype=torch.int32))

    def leave(self, row: int, blocks: Sequence[int]) -> None:
        """From the next step on these blocks are read through the hot buffer."""
        self._write(row, blocks, torch.full((len(blocks),), EMPTY, dtype=torch.int32))

    def clear(self, row: int) -> None:
        self.page[row] = EMPTY

    def split(self, requests: RequestTables, shape: GroupShape, topk: Tensor) -> tuple[Tensor, Tensor]:
        """Of int32 ids [batch_max, Q, K]: those that `plan` must find, and the slots of those in pages; same shape.

        Either is EMPTY where the other is not. An id the request has not goes to `plan`, which refuses it.
        """
        row = requests.request.long()
        known = (topk >= 0) & (topk < self.visible(requests, shape, row)[:, None, None])
        block = torch.where(known, topk, 0) // shape.ids_per_block
        page = self.page[row[:, None, None], block.long()]
        here = known & (page >= 0)
        slots = torch.where(here, _slot(shape, page, topk), EMPTY)
        return torch.where(here, EMPTY, topk), slots

    def merge(self, requests: RequestTables, planned: Tensor, resident: Tensor, out: Tensor) -> None:
        """Write the step's slots to `out`: what `plan` found beside what was in pages; EMPTY for what is not ok."""
        row = requests.request.long()
        real = (self._batch_row < requests.batch) & (requests.ok[row] != 0)
        out.copy_(torch.where(real[:, None, None], torch.maximum(planned, resident), EMPTY))

    def newest(self, requests: RequestTables, shape: GroupShape) -> Tensor:
        """Where the step's own tokens write their rows: int32 slots [batch_max, Q].

        EMPTY for padding, and for compressed rows whose last token is still to come.
        """
        row = requests.request.long()
        first = requests.length[row][:, None]
        ids = (
            first + torch.arange(shape.limits.queries, dtype=torch.int32, device=first.device)
        ) // shape.tokens_per_id
        known = ids < self.visible(requests, shape, row)[:, None]
        page = self.page[row[:, None], (torch.where(known, ids, 0) // shape.ids_per_block).long()]
        real = (self._batch_row < requests.batch)[:, None] & known & (page >= 0)
        return torch.where(real, _slot(shape, page, ids), EMPTY)

    @staticmethod
    def visible(requests: RequestTables, shape: GroupShape, row: Tensor | int) -> Tensor:
        """How many ids of these table rows a step may select: int32, of the shape of `row`."""
        tokens = requests.length[row] + shape.limits.queries
        return ((tokens + (shape.tokens_per_id - 1) * shape.partial_ids) // shape.tokens_per_id).clamp(
            max=shape.ids_max
        )

    def _write(self, row: int, blocks: Sequence[int], pages: Tensor) -> None:
        if blocks:
            at = torch.tensor(list(blocks), dtype=torch.int64).to(self.page.device)
            self.page[row].index_copy_(0, at, pages.to(self.page.device))


def _slot(shape: GroupShape, page: Tensor, ids: Tensor) -> Tensor:
    return page * shape.ids_per_block + ids % shape.ids_per_block
