"""A decode worker's stand-in for HBM: one budget, spent on pages, index keys and tables.

Owns the memory and its arithmetic: one memfd with the row tensors of `flexkv_tiers.hbm`, all of it pages that the
daemon can copy from and into, and beside it the index keys of every running request, because the indexer scores
all of them. A block's page has room for its index rows too: they pass through there on their way from and to the
daemon. Called by `tiered`.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from demo.shape import CHUNK_TOKENS, INDEX, KV, ModelShape
from flexkv_py.client import create_memory
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, align_up
from flexkv_py.wire.messages import LayerLayout
from flexkv_tiers.hbm.budget import page_count_min, table_bytes
from flexkv_tiers.hbm.shape import GroupShape, TableLimits, group_shape
from flexkv_tiers.hbm.steps import StepTables

STAGING_PAGES = 4
"""Pages beside the pool's: the way of index keys into a request whose rows stay in DRAM."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class HbmBudget:
    """How the bytes are spent: everything is reserved before the first request comes."""

    total: int
    index_keys: int
    tables: int
    page_count: int
    page_bytes: int
    """Of one page, index rows included; there are `STAGING_PAGES` more than `page_count`."""

    def describe(self) -> str:
        mib = [
            f"{bytes_ / 2**20:.2f} {name}"
            for bytes_, name in (
                (self.index_keys, "index keys"),
                (self.tables, "tables"),
                ((self.page_count + STAGING_PAGES) * self.page_bytes, f"{self.page_count} pages and staging"),
            )
        ]
        return f"{self.total / 2**20:.2f} MiB of HBM: {', '.join(mib)}"


def spend(total: int, shapes: list[GroupShape], geometry: Geometry, index_keys: int) -> HbmBudget:
    """Pages are what is left. Raises FlexKVError(BAD_ARGUMENT) where that is less than every request needs."""
    tables, least = table_bytes(shapes), page_count_min(shapes)
    requests = shapes[0].limits.requests_max
    count = (total - tables - index_keys) // geometry.block_bytes - STAGING_PAGES
    if count < least:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"{total} bytes of HBM leave {max(count, 0)} pages for {requests} requests, each needs "
            f"{least // requests}: give more, or decode fewer or longer requests",
        )
    return HbmBudget(total, index_keys, tables, count, geometry.block_bytes)


class HotMemory:
    """Tables of a worker's row path in memory that a daemon can open, and the index keys of its requests."""

    def __init__(
        self, shape: ModelShape, geometry: Geometry, hbm_bytes: int, requests_max: int, blocks_max: int, slots: int
    ) -> None:
        """`slots` is H, the most rows that a request's hot buffer may have in each layer."""
        limits = TableLimits(requests_max, requests_max, blocks_max)
        names = [geometry.planes[KV].name]
        shapes = [
            group_shape(geometry, group, names, limits, slots=slots, selected=shape.top_k)
            for group in range(len(shape.groups))
        ]
        self.shape, self.geometry = shape, geometry
        key_bytes = geometry.planes[INDEX].row_bytes * len(shape.groups)
        self.budget = spend(hbm_bytes, shapes, geometry, requests_max * blocks_max * CHUNK_TOKENS * key_bytes)
        self.page_count = self.budget.page_count + STAGING_PAGES
        self.staging = range(self.budget.page_count, self.page_count)
        self.layout, self.bytes = self._lay_out()
        self.descriptor = create_memory(self.bytes, "demo-hbm")
        self._map = mmap.mmap(self.descriptor, self.bytes)
        self._unused = iter(self.layout)
        self.tables = StepTables(shapes, self.page_count, _CPU, self._allocate)
        self.index_keys = torch.zeros(
            len(shape.groups), requests_max, blocks_max * CHUNK_TOKENS, shape.index_width, dtype=torch.bfloat16
        )
        """[groups, table rows, positions, width]"""

    def rows(self, layer: int) -> Tensor:
        """KV rows of a layer, in all pages: [slots, row_width] bfloat16."""
        return self.tables.rows_of(layer, 0).view(torch.bfloat16)

    def keep_index(self, row: int, blocks: dict[int, int]) -> None:
        """Take the index keys of blocks from their pages (block → page) into those of table row `row`."""
        for group, layer in enumerate(self._leaders):
            for block, page in blocks.items():
                self._keys_of(group, row, block).copy_(self._index_page(layer, page))

    def stage_index(self, row: int, block: int, page: int) -> None:
        """Put a block's index keys into its page: the daemon saves whole blocks."""
        for group, layer in enumerate(self._leaders):
            self._index_page(layer, page).copy_(self._keys_of(group, row, block))

    def close(self) -> None:
        """Give up the descriptor; the mapping goes with the last tensor."""
        os.close(self.descriptor)

    @property
    def _leaders(self) -> list[int]:
        return [group[0] for group in self.shape.groups]

    def _keys_of(self, group: int, row: int, block: int) -> Tensor:
        return self.index_keys[group, row, block * CHUNK_TOKENS : (block + 1) * CHUNK_TOKENS]

    def _index_page(self, layer: int, page: int) -> Tensor:
        place = next(each for each in self.layout if (each.plane, each.layer) == (INDEX, layer))
        offset = place.offset + page * place.page_stride
        elements = place.page_bytes // torch.bfloat16.itemsize
        return torch.frombuffer(self._map, dtype=torch.bfloat16, count=elements, offset=offset).view(CHUNK_TOKENS, -1)

    def _lay_out(self) -> tuple[list[LayerLayout], int]:
        """Layers of the KV plane, then of the index plane; and the end of all."""
        layout, offset = [], 0
        for number, plane in enumerate(self.geometry.planes):
            page_bytes = CHUNK_TOKENS * plane.row_bytes
            for layer in plane.layers:
                layout.append(LayerLayout(number, layer, offset, page_bytes, page_bytes))
                offset = align_up(offset + self.page_count * page_bytes)
        return layout, offset

    def _allocate(self, size: tuple[int, int]) -> Tensor:
        """The next layer's rows: tables are made layer by layer, in the order of the plane."""
        place, (slots, slot_bytes) = next(self._unused), size
        assert place.plane == KV
        assert slots == self.page_count * CHUNK_TOKENS
        return torch.frombuffer(self._map, dtype=torch.uint8, count=slots * slot_bytes, offset=place.offset).view(size)
