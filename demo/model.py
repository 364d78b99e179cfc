"""A small sparse-attention transformer whose bits do not depend on what was cached.

Owns weights, shapes and the forward pass. Knows nothing of pages, requests or the daemon: it reads and
writes KV rows through `KvContext`. Called by `engine`.

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
from typing import Protocol

import torch
from torch import Tensor

from demo.shape import CHUNK_TOKENS, INDEX, KV, ModelShape

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


class SparseTransformer:
    """Fixed, seeded weights and one entry: `forward` over one chunk."""

    def __init__(self, shape: ModelShape, seed: int, positions_max: int) -> None:
        assert shape.layers % shape.layers_per_group == 0
        assert positions_max < 1 << _POSITION_BITS
        self.shape = shape
        self._weights = _make_weights(shape, seed)
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
        x = self._weights["embedding"][padded]
        for number, group in enumerate(self.shape.groups):
            before_group(number)
            selection = self._select(group[0], x, span, kv)
            for layer in group:
                x = x + self._attend(layer, x, span, kv, selection)
                x = x + self._feed_forward(layer, x)
        last_row = x[span.rows][-1:]
        return (_normalise(last_row) @ self._weights["head"])[0]

    def _select(self, layer: int, x: Tensor, span: _Span, kv: KvContext) -> tuple[Tensor, Tensor]:
        """Positions [64, K] the group's attention reads, ascending, and which of them are real [64, K]."""
        shape, weights = self.shape, self._weights
        normal = _normalise(x)
        key = self._rotate(normal @ weights[f"{layer}.index_key"], span)
        kv.write(INDEX, layer, span.first, key[span.rows].bfloat16())
        context = span.start + CHUNK_TOKENS
        keys = kv.read_all(INDEX, layer, context).float()
        query = (normal @ weights[f"{layer}.index_query"]).view(CHUNK_TOKENS, shape.index_heads, -1)
        gate = torch.sigmoid(normal @ weights[f"{layer}.index_gate"])
        scores = torch.zeros(CHUNK_TOKENS, context)
        for head in range(shape.index_heads):
            match = self._rotate(query[:, head], span) @ keys.T
            scores.addcmul_(gate[:, head : head + 1], match.relu_())
        own = torch.arange(span.start, context)
        visible_last = own.clamp(max=span.last)  # padding after the last token must not read unwritten rows
        position = torch.arange(context)
        hidden = position[None, :] > visible_last[:, None]
        order = _order_of(scores, position).masked_fill_(hidden, -1)
        chosen = torch.topk(order, min(shape.top_k, context), dim=1, sorted=False).values
        real = chosen >= 0
        selected = torch.where(real, chosen & ((1 << _POSITION_BITS) - 1), 0)
        selected, by_position = torch.sort(selected + (~real).long() * context, dim=1, stable=True)
        real = real.gather(1, by_position)
        return torch.where(real, selected, 0), real

    def _attend(self, layer: int, x: Tensor, span: _Span, kv: KvContext, selection: tuple[Tensor, Tensor]) -> Tensor:
        """Attention over the selected rows, in the absorbed form of MLA: [64, width]."""
        shape, weights = self.shape, self._weights
        normal = _normalise(x)
        latent = _normalise(normal @ weights[f"{layer}.latent"])
        rotary_key = self._rotate(normal @ weights[f"{layer}.rotary_key"], span)
        row = torch.cat([latent, rotary_key], dim=1).bfloat16()
        kv.write(KV, layer, span.first, row[span.rows])
        query = torch.einsum("tw,whl->thl", normal, weights[f"{layer}.query"])
        rotary_query = (normal @ weights[f"{layer}.rotary_query"]).view(CHUNK_TOKENS, shape.heads, -1)
        rotary_query = self._rotate(rotary_query, span)
        positions, real = selection
        rows = kv.read(KV, layer, positions).float()  # [64, K, row]
        scores = torch.cat([query, rotary_query], dim=2) @ rows.transpose(1, 2) / math.sqrt(shape.row_width)
        scores = scores.masked_fill(~real[:, None, :], -math.inf)
        mixed = torch.softmax(scores, dim=2) @ rows[:, :, : shape.latent_width]
        return mixed.reshape(CHUNK_TOKENS, -1) @ weights[f"{layer}.output"]

    def _feed_forward(self, layer: int, x: Tensor) -> Tensor:
        weights, normal = self._weights, _normalise(x)
        gate = torch.nn.functional.silu(normal @ weights[f"{layer}.gate"])
        return (gate * (normal @ weights[f"{layer}.up"])) @ weights[f"{layer}.down"]

    def _rotate(self, x: Tensor, span: _Span) -> Tensor:
        """Rotary embedding of rows [64, width] or [64, heads, width] at the chunk's positions."""
        cosine, sine = (table[span.start : span.start + CHUNK_TOKENS] for table in self._rotary[x.shape[-1]])
        if x.dim() == 3:
            cosine, sine = cosine[:, None], sine[:, None]
        even, odd = x.chunk(2, dim=-1)
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)


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


def _make_weights(shape: ModelShape, seed: int) -> dict[str, Tensor]:
    """All weights, float32, drawn in one fixed order; each scaled by the square root of its inputs."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def draw(name: str, *size: int, inputs: int) -> None:
        weights[name] = torch.randn(*size, generator=generator) / math.sqrt(inputs)

    width, hidden, heads, latent = shape.width, shape.hidden_width, shape.heads, shape.latent_width
    draw("embedding", shape.vocabulary, width, inputs=1)
    draw("head", width, shape.vocabulary, inputs=width // 4)
    for layer in range(shape.layers):
        if layer % shape.layers_per_group == 0:
            draw(f"{layer}.index_key", width, shape.index_width, inputs=width)
            draw(f"{layer}.index_query", width, shape.index_heads * shape.index_width, inputs=width)
            draw(f"{layer}.index_gate", width, shape.index_heads, inputs=width)
        draw(f"{layer}.latent", width, latent, inputs=width)
        draw(f"{layer}.rotary_key", width, shape.rotary_width, inputs=width)
        draw(f"{layer}.query", width, heads, latent, inputs=width)
        draw(f"{layer}.rotary_query", width, heads * shape.rotary_width, inputs=width)
        draw(f"{layer}.output", heads * latent, width, inputs=heads * latent)
        draw(f"{layer}.gate", width, hidden, inputs=width)
        draw(f"{layer}.up", width, hidden, inputs=width)
        draw(f"{layer}.down", hidden, width, inputs=hidden)
    return weights
