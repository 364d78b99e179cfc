"""Sizes of the demo's model and the geometry they give; no torch, so that the runner can size the daemon.

Called by `model`, which computes in these shapes, and by `run`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexkv_py.geometry import Geometry, Plane

CHUNK_TOKENS = 64
"""Rows of every forward; equal to tokens_per_block, so a loaded prefix ends where a chunk ends."""

KV, INDEX = 0, 1
"""The planes, by their number in the geometry."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model; `layers_per_group` layers share one selection."""

    vocabulary: int = 1024
    width: int = 128
    hidden_width: int = 384
    layers: int = 8
    layers_per_group: int = 2
    heads: int = 2
    latent_width: int = 96
    rotary_width: int = 32
    index_heads: int = 2
    index_width: int = 32
    top_k: int = 64

    @property
    def row_width(self) -> int:
        """Elements of one KV row: latent ‖ rotary key."""
        return self.latent_width + self.rotary_width

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        step = self.layers_per_group
        return tuple(tuple(range(first, first + step)) for first in range(0, self.layers, step))

    def geometry(self, revision: str) -> Geometry:
        """What the daemon is told of this model's KV: a block is cut into one chunk per layer group."""
        bytes_per_element = 2  # bfloat16
        leaders = tuple(group[0] for group in self.groups)
        return Geometry(
            planes=(
                Plane("kv", tuple(range(self.layers)), self.row_width * bytes_per_element),
                Plane("index", leaders, self.index_width * bytes_per_element),
            ),
            tokens_per_block=CHUNK_TOKENS,
            layer_groups=self.groups,
            dtype="bfloat16",
            model="demo-sparse",
            revision=revision,
            chunk_bytes_min=16 * 1024,
        )


SHAPES = {
    "rows": ModelShape(layers_per_group=4),
    "wide": ModelShape(layers_per_group=4, width=384, hidden_width=1536),
}
"""Models of the row path. Two groups, so that index keys, which stay in HBM, are 6 % of the KV; real ones have more
layers to a group or wider rows, and about as much. The wide one's weights are what most of a step is spent on, as in
real models: that is what decoding many requests at once shares."""
