"""Small models, a worker's memory and a dictionary as cache, shared by the tests of the demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from demo.engine import Engine, LoadFellShortError
from demo.model import SparseTransformer
from demo.paged import PagedKV, RequestKV
from demo.shape import CHUNK_TOKENS, ModelShape

SMALL = ModelShape(
    vocabulary=97, width=64, hidden_width=96, layers=4, heads=2, latent_width=24, rotary_width=8, top_k=24
)
"""Small enough for many runs; top_k far below the context, so selection matters."""


@pytest.fixture(scope="session")
def model() -> SparseTransformer:
    torch.set_num_threads(1)
    return SparseTransformer(SMALL, seed=11, positions_max=1024)


@pytest.fixture
def memory() -> Iterator[PagedKV]:
    memory = PagedKV(SMALL.geometry("test"), page_tokens=32, page_count=48)
    yield memory
    assert memory.free_count == memory.page_count, "a request kept its pages"
    memory.close()


@pytest.fixture
def engine(model: SparseTransformer, memory: PagedKV) -> Engine:
    return Engine(model, memory)


class DictLoad:
    """A load of a dictionary that may end early, as a daemon's does when it dies."""

    def __init__(self, blocks: int, whole: int, fails_at_group: int) -> None:
        self.blocks, self._whole, self._fails_at_group = blocks, whole, fails_at_group

    def wait_group(self, group: int) -> None:
        if self._whole < self.blocks and group >= self._fails_at_group:
            raise LoadFellShortError(self._whole)

    def wait_end(self) -> None:
        self.wait_group(self._fails_at_group)


class DictSave:
    def wait_end(self) -> None:
        """Saved at once."""


class DictCache:
    """Block bytes by prefix: what the daemon is to the engine, at the engine's seam.

    `limit` caps the blocks offered; with `whole` set, a load fails at group `fails_at_group` and only
    the first `whole` blocks were right: the others are left as NaN.
    """

    def __init__(self, limit: int = 1 << 30, whole: int = 1 << 30, fails_at_group: int = 0) -> None:
        self.blocks: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self.limit, self.whole, self.fails_at_group = limit, whole, fails_at_group

    def load(self, tokens: Sequence[int], context: RequestKV) -> DictLoad:
        count = 0
        while count < min(len(tokens) // CHUNK_TOKENS, self.limit):
            stored = self.blocks.get(tuple(tokens[: (count + 1) * CHUNK_TOKENS]))
            if stored is None:
                break
            if count < self.whole:
                for layer, rows in zip(context.memory.layout.layers, stored, strict=True):
                    context.write(layer.plane, layer.layer, count * CHUNK_TOKENS, rows)
            count += 1
        return DictLoad(count, min(count, self.whole), self.fails_at_group)

    def save(self, tokens: Sequence[int], first_block: int, context: RequestKV) -> DictSave:
        for block in range(first_block, len(tokens) // CHUNK_TOKENS):
            end = (block + 1) * CHUNK_TOKENS
            self.blocks[tuple(tokens[:end])] = [
                context.read_all(layer.plane, layer.layer, end)[block * CHUNK_TOKENS :].clone()
                for layer in context.memory.layout.layers
            ]
        return DictSave()
