"""The worker's paged KV: one memfd that the daemon copies from and into, and the pages of one request.

Owns the memory, its layout and which pages are free. Knows nothing of the model's arithmetic or of the
daemon: `cache` registers `descriptor` and `layout` with it. Called by `engine`.

Layer first, as engines keep it: every layer of every plane is one tensor [pages, page_tokens, width].
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from flexkv_py.client import PagedLayout, create_memory
from flexkv_py.geometry import Geometry
from flexkv_py.wire.messages import LayerLayout

_POISON = float("nan")


class PagedKV:
    """All pages of one worker.

    Free pages are poisoned with NaN: a row that is read before it was written or loaded spoils every
    logit after it, so it cannot go unnoticed.
    """

    def __init__(self, geometry: Geometry, page_tokens: int, page_count: int) -> None:
        assert geometry.tokens_per_block % page_tokens == 0
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.page_count = page_count
        self.layout = PagedLayout(geometry, page_count, page_tokens)
        self.descriptor = create_memory(self.layout.bytes, "demo-paged-kv")
        self._map = mmap.mmap(self.descriptor, self.layout.bytes)
        self._planes = {
            (layer.plane, layer.layer): _rows_of(self._map, layer, page_tokens, page_count)
            for layer in self.layout.layers
        }
        self._free = list(reversed(range(page_count)))
        self.poison(range(page_count))

    @property
    def pages_per_block(self) -> int:
        return self.geometry.tokens_per_block // self.page_tokens

    @property
    def free_count(self) -> int:
        return len(self._free)

    def has_room(self, tokens: int) -> bool:
        """Whether a request of `tokens` tokens finds its pages."""
        return self._pages_of(tokens) <= len(self._free)

    def open(self, tokens: int) -> RequestKV:
        """Pages for a request of `tokens` tokens, whole blocks."""
        count = self._pages_of(tokens)
        assert count <= len(self._free), f"{count} pages wanted, {len(self._free)} free: make page_count larger"
        return RequestKV(self, [self._free.pop() for _ in range(count)])

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.geometry.tokens_per_block) * self.pages_per_block

    def give_back(self, pages: Sequence[int]) -> None:
        """Make pages free. No copy of the daemon may still touch them."""
        assert not set(pages) & set(self._free)
        self.poison(pages)
        self._free.extend(reversed(pages))

    def poison(self, pages: Sequence[int]) -> None:
        index = torch.tensor(list(pages), dtype=torch.int64)
        for rows in self._planes.values():
            rows.view(self.page_count, -1).index_fill_(0, index, _POISON)

    def rows(self, plane: int, layer: int) -> Tensor:
        """One layer of one plane: [page_count * page_tokens, width], bfloat16, sharing the memory."""
        return self._planes[plane, layer]

    def close(self) -> None:
        """Give up the memory; the daemon keeps its own mapping until this session ends."""
        self._planes.clear()
        self._map.close()
        os.close(self.descriptor)


class RequestKV:
    """One request's rows by position, wherever its pages lie (`model.KvContext`)."""

    def __init__(self, memory: PagedKV, pages: list[int]) -> None:
        self.memory = memory
        self.pages = pages
        first_row = torch.tensor(pages, dtype=torch.int64) * memory.page_tokens
        self.row_of: Tensor = (first_row[:, None] + torch.arange(memory.page_tokens)).reshape(-1)

    def write(self, plane: int, layer: int, first: int, rows: Tensor) -> None:
        self.memory.rows(plane, layer).index_copy_(0, self.row_of[first : first + len(rows)], rows)

    def read_all(self, plane: int, layer: int, count: int) -> Tensor:
        return self.memory.rows(plane, layer)[self.row_of[:count]]

    def read(self, plane: int, layer: int, positions: Tensor) -> Tensor:
        return self.memory.rows(plane, layer)[self.row_of[positions]]

    def block_pages(self, first: int, last: int) -> list[int]:
        """Pages of blocks `first` to `last` (exclusive), in order."""
        per_block = self.memory.pages_per_block
        return self.pages[first * per_block : last * per_block]

    def close(self) -> None:
        self.memory.give_back(self.pages)
        self.pages = []


def _rows_of(memory: mmap.mmap, layer: LayerLayout, page_tokens: int, page_count: int) -> Tensor:
    elements = page_count * layer.page_bytes // torch.bfloat16.itemsize
    flat = torch.frombuffer(memory, dtype=torch.bfloat16, count=elements, offset=layer.offset)
    return flat.view(page_count * page_tokens, -1)
