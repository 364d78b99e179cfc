"""Weights of the demo's model: random ones, and ones whose selections cluster.

Owns what the numbers are; `model` owns what is computed with them. A real indexer learns to look where the
present topic was written about. Here that is built in: every token belongs to a topic, the first dimensions of an
embedding say which, no layer writes there, and the indexer reads there and little else. Tokens that match equally
well differ by the rotary phase, which favours recent ones. The head reads the topic too, so that what is generated
stays with it for a while and then goes over to another. Called by `model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from demo.shape import ModelShape

TOPICS = 16
_CODE_WIDTH = TOPICS // 2
"""Codes are the rows of a Hadamard matrix and their opposites: two topics are orthogonal or opposite."""

_TOPIC_STRENGTH = 3.0
"""Of an embedding's topic part beside the rest, which has unit variance."""

_INDEX_NOISE = 0.35
"""How much of what is not the topic an indexer sees: without it a topic's selections would never change."""

_HEAD_TOPIC = 0.5
"""How far the head follows the topic of the last token."""

Weights = dict[str, Tensor]


def topic_tokens(shape: ModelShape, topic: int) -> range:
    """The tokens of a topic."""
    count = shape.vocabulary // TOPICS
    return range(topic * count, (topic + 1) * count)


def random_weights(shape: ModelShape, seed: int) -> Weights:
    """All weights, float32, drawn in one fixed order; each scaled by the square root of its inputs."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}

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


def clustered_weights(shape: ModelShape, seed: int) -> Weights:
    """Random weights, but for the topic: written by embeddings alone, read by indexers and the head."""
    weights = random_weights(shape, seed)
    codes = _codes()
    topic_of = torch.arange(shape.vocabulary) // (shape.vocabulary // TOPICS)
    weights["embedding"][:, :_CODE_WIDTH] = _TOPIC_STRENGTH * codes[topic_of.clamp(max=TOPICS - 1)]
    weights["head"][:_CODE_WIDTH] = _HEAD_TOPIC * codes[topic_of.clamp(max=TOPICS - 1)].T
    for layer in range(shape.layers):
        weights[f"{layer}.output"][:, :_CODE_WIDTH] = 0
        weights[f"{layer}.down"][:, :_CODE_WIDTH] = 0
        if layer % shape.layers_per_group == 0:
            for name in ("index_key", "index_query"):
                weights[f"{layer}.{name}"] *= _INDEX_NOISE
            weights[f"{layer}.index_key"] += _topic_reader(shape)
            weights[f"{layer}.index_query"] += _topic_reader(shape).repeat(1, shape.index_heads)
    return weights


WEIGHTS: dict[str, Callable[[ModelShape, int], Weights]] = {"clustered": clustered_weights, "random": random_weights}


def _codes() -> Tensor:
    """One code per topic, +1 and -1: [TOPICS, _CODE_WIDTH]."""
    hadamard = torch.ones(1, 1)
    while len(hadamard) < _CODE_WIDTH:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], dim=1), torch.cat([hadamard, -hadamard], dim=1)])
    return torch.cat([hadamard, -hadamard])


def _topic_reader(shape: ModelShape) -> Tensor:
    """Copies the topic's code into the slowest rotary pairs of an index row: [width, index_width].

    They turn by about a radian over the longest context, so a match fades with distance and is not lost.
    """
    reader = torch.zeros(shape.width, shape.index_width)
    pairs, half = _CODE_WIDTH // 2, shape.index_width // 2
    for at in range(pairs):
        reader[at, half - pairs + at] = 1.0
        reader[pairs + at, shape.index_width - pairs + at] = 1.0
    return reader
