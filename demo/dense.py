"""All-resident decoding: every row of a running request lies in pages of the worker's paged KV.

What engines do without a row path, and the reference that the tiered run must equal: a request that finds no
pages waits until another has ended. Called by `decoding`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from demo.batch import SEATS, Member
from demo.decoding import Job
from demo.engine import KvCache, prefill_blocks
from demo.model import SparseTransformer
from demo.paged import PagedKV, RequestKV
from demo.shape import INDEX, KV


class DenseStore:
    """Rows in pages (`batch.RowStore`), a request's first blocks from a cache or computed (`decoding.Store`)."""

    def __init__(self, model: SparseTransformer, memory: PagedKV, cache: KvCache) -> None:
        self._model, self._memory, self._cache = model, memory, cache
        self._contexts: dict[int, RequestKV] = {}
        pages = memory.page_count * memory.page_tokens
        self._row_of = torch.zeros(SEATS, pages, dtype=torch.int64)  # memory row by seat and position

    def admit(self, job: Job, tokens: Sequence[int]) -> int | None:  # noqa: ARG002 - the seam's signature
        if not self._memory.has_room(len(job.prompt) + job.new_tokens):
            return None
        context = self._memory.open(len(job.prompt) + job.new_tokens)
        self._contexts[job.request] = context
        self._row_of[job.seat, : len(context.row_of)] = context.row_of
        prefix = job.prefix
        prefill_blocks(self._model, prefix, context, self._cache)
        return len(prefix)

    def begin(self, wanted: Sequence[int]) -> list[int]:
        return list(wanted)

    def end(self, batch: Sequence[int]) -> list[bool]:
        return [True] * len(batch)

    def take_handed_back(self) -> list[int]:
        return []

    def leave(self, job: Job) -> None:
        self._contexts.pop(job.request).close()

    def wait(self) -> None:
        raise AssertionError("an all-resident request never waits")

    def index_keys(self, group: int, member: Member, key: Tensor, count: int) -> Tensor:
        layer = self._model.shape.groups[group][0]
        context = self._contexts[member.request]
        context.write(INDEX, layer, member.position, key[None])
        return context.read_all(INDEX, layer, count)

    def places(self, group: int, members: Sequence[Member], selected: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        seats = torch.tensor([member.seat for member in members])
        own = torch.tensor([member.position for member in members])
        read = self._row_of[seats[:, None], selected.long().clamp(min=0)]
        return read, self._row_of[seats, own]

    def rows(self, layer: int) -> Tensor:
        return self._memory.rows(KV, layer)
