"""One decode step of many requests in one forward of 64 rows.

Owns how a batch becomes a forward: every request has a *seat*, its row in each forward from its first step to its
last. Shapes never change and no operation mixes rows, so a request's bits depend on its seat and its own context
and not on who sits beside it, who is missing, or how often its step is run: that makes dense and tiered runs
comparable bit for bit. As on a GPU, a step costs nearly the same for one request as for many; what each adds
is the scoring of its own index keys. Knows no pages: rows go through a `RowStore`. Called by `decoding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from demo.model import IndexRows, SparseTransformer, best_positions, index_scores
from demo.shape import CHUNK_TOKENS, ModelShape

SEATS = CHUNK_TOKENS
"""Rows of a forward."""

Watch = Callable[[int, "Member", Tensor], None]
"""(group, member, selected positions): told of every selection."""


@dataclass(frozen=True, slots=True)
class Member:
    """A request in a step: the token it feeds, at which position."""

    request: int
    seat: int
    token: int
    position: int


class RowStore(Protocol):
    """Where the KV rows of running requests lie. All rows bfloat16."""

    def index_keys(self, group: int, member: Member, key: Tensor, count: int) -> Tensor:
        """Store the member's own index key [width]; returns those of positions 0 to `count`: [count, width]."""
        ...

    def places(self, group: int, members: Sequence[Member], selected: Tensor) -> tuple[Tensor, Tensor]:
        """Places of `selected` positions int32 [n, K], -1 = none, and of the members' own rows; int64, -1 = none.

        They count in `rows(layer)` of every layer of the group: [n, K] and [n].
        """
        ...

    def rows(self, layer: int) -> Tensor:
        """All rows of a layer [places, width]; those asked for last are there."""
        ...


class BatchDecoder:
    """Steps of a model over a store."""

    def __init__(self, model: SparseTransformer, store: RowStore, watch: Watch | None = None) -> None:
        self.model = model
        self._store = store
        self._watch = watch

    def step(self, members: Sequence[Member]) -> Tensor:
        """Feed each member's token; logits [64, vocabulary] by seat, meaningless at other seats."""
        tokens, positions = torch.zeros(2, SEATS, dtype=torch.int64)
        for member in members:
            tokens[member.seat], positions[member.seat] = member.token, member.position
        attention = _Batch(self.model.shape, members, self._store, self._watch)
        return self.model.logits(self.model.run(tokens, positions, attention))


class _Batch:
    """The attention of one step (`model.Attention`)."""

    def __init__(self, shape: ModelShape, members: Sequence[Member], store: RowStore, watch: Watch | None) -> None:
        self._shape, self._members, self._store, self._watch = shape, members, store, watch
        self._seats = torch.tensor([member.seat for member in members])
        assert len(set(self._seats.tolist())) == len(members), "two requests on one seat"
        self._read = torch.zeros(SEATS, shape.top_k, dtype=torch.int64)  # empty seats read whatever place 0 holds
        self._writing, self._own = self._seats, self._seats

    def select(self, group: int, index: IndexRows) -> Tensor:
        chosen, cells = zip(*(self._choose(group, member, index) for member in self._members), strict=True)
        real = torch.ones(SEATS, self._shape.top_k, dtype=torch.bool)
        real[self._seats] = torch.cat(cells)
        selected = torch.cat(chosen).masked_fill_(~real[self._seats], -1).int()
        read, own = self._store.places(group, self._members, selected)
        self._read[self._seats] = read.clamp_(min=0)
        written = own >= 0
        self._writing, self._own = self._seats[written], own[written]
        return real

    def exchange(self, layer: int, rows: Tensor) -> Tensor:
        memory = self._store.rows(layer)
        memory[self._own] = rows[self._writing]
        return memory[self._read]

    def _choose(self, group: int, member: Member, index: IndexRows) -> tuple[Tensor, Tensor]:
        """One member's selection, in shapes that follow from its position alone."""
        at = slice(member.seat, member.seat + 1)
        context = member.position // CHUNK_TOKENS * CHUNK_TOKENS + CHUNK_TOKENS
        keys = self._store.index_keys(group, member, index.key[member.seat], context)
        scores = index_scores(index.query[at], index.gate[at], keys)
        selected, real = best_positions(scores, torch.tensor([member.position]), self._shape.top_k)
        if self._watch is not None:
            self._watch(group, member, selected[real])
        return selected, real
