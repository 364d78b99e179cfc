"""A small sparse-attention transformer whose bits do not depend on what was cached.

Owns shapes and the forward pass; the numbers are `weights`'. Knows nothing of pages, requests or the daemon: it
reads and writes KV rows through `KvContext`. Called by `engine`, and by `batch` for steps of many requests.

As in MLA, a token leaves one latent row per layer (compressed KV ‖ rotary key), shared by all heads. As
in DSA, an indexer scores every earlier token and attention reads only the `top_k` best; the layers of
one group share the selection made by the group's first layer, the only one with an indexer plane.

Bit-exactness. A token at position p is always computed as row `p % CHUNK_TOKENS` of a forward over one
whole aligned chunk, whether it arrives in a prompt or is decoded, and every tensor shape of that forward
follows from p alone. Other rows of the chunk may hold padding: no operation mixes rows except attention,
and attention reads only rows that are visible to p, always through the stored bfloat16 KV. So KV and
logits of p are the same bits whatever part of its context was computed here, elsewhere, or long ago.
The price: a decode step costs as much as a chunk of prefill. It needs one thread (`torch.set_num_threads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from demo.shape import CHUNK_TOKENS, INDEX, KV, ModelShape
from demo.weights import Weights, random_weights

MakeWeights = Callable[[ModelShape, int], Weights]
_POSITION_BITS = 20


class KvContext(Protocol):
    """One request's KV rows, by position. All tensors bfloat16."""

    def write(self, plane: int, layer: int, first: int, rows: Tensor) -> None:
        """Store `rows` [n, width] as positions `first` to `first + n`."""
        ...

    def read_all(self, plane: int, layer: int, count: int) -> Tensor:
        """Positions 0 to `count`: [count, width]. Rows never written may hold any bits."""
        ...

    def read(self, plane: int, layer: int, positions: Tensor) -> Tensor:
        """Rows at `positions` (int64, any shape): [*positions.shape, width]."""
        ...


@dataclass(frozen=True)
class _Span:
    """Which rows of a chunk are real: positions `first` to `last`, all within chunk `first // 64`."""

    first: int
    last: int

    @property
    def start(self) -> int:
        return self.first // CHUNK_TOKENS * CHUNK_TOKENS

    @property
    def rows(self) -> slice:
        return slice(self.first - self.start, self.last + 1 - self.start)


class IndexRows(NamedTuple):
    """What a group's indexer makes of a forward's rows."""

    query: Tensor
    """[64, heads, width], rotated."""
    gate: Tensor
    """[64, heads]"""
    key: Tensor
    """[64, width], rotated, bfloat16."""


class Attention(Protocol):
    """Where a forward's rows go, and which rows its attention reads: a prefilled chunk's, or a decode batch's."""

    def select(self, group: int, index: IndexRows) -> Tensor:
        """Store the group's index keys and decide what its layers read; returns which cells are real [64, K]."""
        ...

    def exchange(self, layer: int, rows: Tensor) -> Tensor:
        """Store the forward's KV rows [64, width]; returns those selected [64, K, width]. All bfloat16."""
        ...


class SparseTransformer:
    """Fixed, seeded weights; `forward` over one chunk of a request, `run` over any 64 rows."""

    def __init__(self, shape: ModelShape, seed: int, positions_max: int, make: MakeWeights = random_weights) -> None:
        assert shape.layers % shape.layers_per_group == 0
        assert positions_max < 1 << _POSITION_BITS
        self.shape = shape
        self._weights = make(shape, seed)
        self._rotary = {
            width: _rotary_tables(width, positions_max) for width in (shape.rotary_width, shape.index_width)
        }

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int], first: int, kv: KvContext, before_group: Callable[[int], None] = lambda _: None
    ) -> Tensor:
        """Compute `tokens` at positions `first`.. (within one chunk), store their KV, return logits [vocabulary].

        The logits are those of the last token. `before_group(g)` is called before group g reads or
        writes any KV: an engine waits there for the part of a load that this group needs.
        """
        span = _Span(first, first + len(tokens) - 1)
        assert tokens
        assert span.last < span.start + CHUNK_TOKENS
        padded = torch.zeros(CHUNK_TOKENS, dtype=torch.int64)
        padded[span.rows] = torch.tensor(tokens)
        positions = torch.arange(span.start, span.start + CHUNK_TOKENS)
        x = self.run(padded, positions, _Chunk(self.shape, span, kv, before_group))
        return self.logits(x[span.rows][-1:])[0]

    @torch.inference_mode()
    def run(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The residual stream [64, width] after all layers, of 64 rows: `tokens` and `positions` int64 [64].

        No operation here mixes rows; a row's bits depend on its number, on its own token and position, and on
        what `attention` gives it to read.
        """
        x = self._weights["embedding"][tokens]
        for number, group in enumerate(self.shape.groups):
            real = attention.select(number, self._index(group[0], x, positions))
            for layer in group:
                x = x + self._attend(layer, x, positions, real, attention)
                x = x + self._feed_forward(layer, x)
        return x

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """Of rows of the residual stream [n, width]: [n, vocabulary]."""
        return _normalise(x) @ self._weights["head"]

    def _index(self, layer: int, x: Tensor, positions: Tensor) -> IndexRows:
        shape, weights = self.shape, self._weights
        normal = _normalise(x)
        key = self._rotate(normal @ weights[f"{layer}.index_key"], positions)
        query = (normal @ weights[f"{layer}.index_query"]).view(CHUNK_TOKENS, shape.index_heads, -1)
        gate = torch.sigmoid(normal @ weights[f"{layer}.index_gate"])
        return IndexRows(self._rotate(query, positions), gate, key.bfloat16())

    def _attend(self, layer: int, x: Tensor, positions: Tensor, real: Tensor, attention: Attention) -> Tensor:
        """Attention over the selected rows, in the absorbed form of MLA: [64, width]."""
        shape, weights = self.shape, self._weights
        normal = _normalise(x)
        latent = _normalise(normal @ weights[f"{layer}.latent"])
        rotary_key = self._rotate(normal @ weights[f"{layer}.rotary_key"], positions)
        rows = attention.exchange(layer, torch.cat([latent, rotary_key], dim=1).bfloat16()).float()
        query = torch.einsum("tw,whl->thl", normal, weights[f"{layer}.query"])
        rotary_query = (normal @ weights[f"{layer}.rotary_query"]).view(CHUNK_TOKENS, shape.heads, -1)
        rotary_query = self._rotate(rotary_query, positions)
        scores = torch.cat([query, rotary_query], dim=2) @ rows.transpose(1, 2) / math.sqrt(shape.row_width)
        scores = scores.masked_fill(~real[:, None, :], -math.inf)
        mixed = torch.softmax(scores, dim=2) @ rows[:, :, : shape.latent_width]
        return mixed.reshape(CHUNK_TOKENS, -1) @ weights[f"{layer}.output"]

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        weights, normal = self._weights, _normalise(x)
        gate = torch.nn.functional.silu(normal @ weights[f"{layer}.gate"])
        return (gate * (normal @ weights[f"{layer}.up"])) @ weights[f"{layer}.down"]

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of rows [64, width] or [64, heads, width] at `positions` [64]."""
        cosine, sine = (table[positions] for table in self._rotary[x.shape[-1]])
        if x.dim() == 3:
            cosine, sine = cosine[:, None], sine[:, None]
        even, odd = x.chunk(2, dim=-1)
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)


class _Chunk:
    """The attention of one aligned chunk of one request (`Attention`)."""

    def __init__(self, shape: ModelShape, span: _Span, kv: KvContext, before_group: Callable[[int], None]) -> None:
        self._shape, self._span, self._kv, self._before_group = shape, span, kv, before_group
        self._selected = torch.empty(0)

    def select(self, group: int, index: IndexRows) -> Tensor:
        self._before_group(group)
        span, layer = self._span, self._shape.groups[group][0]
        self._kv.write(INDEX, layer, span.first, index.key[span.rows])
        context = span.start + CHUNK_TOKENS
        scores = index_scores(index.query, index.gate, self._kv.read_all(INDEX, layer, context))
        # Padding after the last token must not read unwritten rows.
        visible_last = torch.arange(span.start, context).clamp(max=span.last)
        self._selected, real = best_positions(scores, visible_last, self._shape.top_k)
        return real

    def exchange(self, layer: int, rows: Tensor) -> Tensor:
        self._kv.write(KV, layer, self._span.first, rows[self._span.rows])
        return self._kv.read(KV, layer, self._selected)


def index_scores(query: Tensor, gate: Tensor, keys: Tensor) -> Tensor:
    """Scores >= 0 of all `keys` [context, width] for each of n queries [n, heads, width]: [n, context]."""
    transposed = keys.float().T
    scores = torch.zeros(len(query), len(keys))
    for head in range(query.shape[1]):
        scores.addcmul_(gate[:, head : head + 1], (query[:, head] @ transposed).relu_())
    return scores


def best_positions(scores: Tensor, visible_last: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Of `scores` [n, context] the K best positions up to `visible_last` [n], ascending; which cells are real."""
    context = scores.shape[1]
    position = torch.arange(context)
    hidden = position[None, :] > visible_last[:, None]
    order = _order_of(scores, position).masked_fill_(hidden, -1)
    chosen = torch.topk(order, min(top_k, context), dim=1, sorted=False).values
    real = chosen >= 0
    selected = torch.where(real, chosen & ((1 << _POSITION_BITS) - 1), 0)
    selected, by_position = torch.sort(selected + (~real).long() * context, dim=1, stable=True)
    real = real.gather(1, by_position)
    return torch.where(real, selected, 0), real


def sample(logits: Tensor, seed: int, position: int, temperature: float = 0.7) -> int:
    """One token by seeded Gumbel sampling: the same logits, seed and position give the same token.

    Sampling rather than the arg-max, because small differences in logits then show in the tokens.
    """
    generator = torch.Generator().manual_seed(seed * (1 << _POSITION_BITS) + position)
    noise = torch.empty_like(logits).exponential_(generator=generator).log()
    return int(torch.argmax(logits / temperature - noise))


def _order_of(scores: Tensor, position: Tensor) -> Tensor:
    """int64 that sort like (score, position), for scores >= 0: a tie never leaves the choice to an algorithm."""
    bits = scores.view(torch.int32).long()  # the bits of non-negative floats sort like the floats
    return bits.bitwise_left_shift_(_POSITION_BITS).bitwise_or_(position)


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)


def _rotary_tables(width: int, positions_max: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, width / 2], float32."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions_max, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()
