"""One worker's engine: match, load, prefill the rest, decode, save.

Owns the order of these steps and the rule that ties them: only whole blocks are loaded or saved, and no
token leaves before every load it rests on has ended well. Talks to the cache through `KvCache` alone,
so tests run it over a dictionary and the worker over the daemon. Called by `worker`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from demo.model import SparseTransformer, sample
from demo.paged import PagedKV, RequestKV
from demo.shape import CHUNK_TOKENS


class LoadFellShortError(Exception):
    """A running load ended early: only the first `blocks` blocks are whole."""

    def __init__(self, blocks: int) -> None:
        super().__init__(f"only {blocks} blocks were loaded")
        self.blocks = blocks


class Load(Protocol):
    """A load under way into a request's first pages."""

    blocks: int
    """How many leading blocks are on their way; 0 when nothing was found."""

    def wait_group(self, group: int) -> None:
        """Return once layer group `group` of every block is in. Raises LoadFellShortError."""
        ...

    def wait_end(self) -> None:
        """Return once the whole load ended well and nothing writes to the pages. Raises LoadFellShortError."""
        ...


class Save(Protocol):
    """A save under way; its pages must stay as they are until `wait_end` returns."""

    def wait_end(self) -> None: ...


class KvCache(Protocol):
    """The engine's whole view of a cache. It never raises for a failing cache: that is a miss."""

    def load(self, tokens: Sequence[int], context: RequestKV) -> Load:
        """Start loading the longest cached prefix of `tokens` (whole blocks) into the context's pages."""
        ...

    def save(self, tokens: Sequence[int], first_block: int, context: RequestKV) -> Save:
        """Start saving the full blocks of `tokens` from number `first_block` on."""
        ...


@dataclass
class Generation:
    """What came out of one request, and what it cost."""

    tokens: list[int] = field(default_factory=list)
    logits_digest: str = ""
    """SHA-256 over the bits of every step's logits: equal only if every bit was."""
    ttft_s: float = 0.0
    total_s: float = 0.0
    blocks: int = 0
    """Full blocks of the prompt that could be loaded."""
    loaded_blocks: int = 0
    recomputed: bool = False
    """A load fell short, and its rest was computed instead."""


class Engine:
    """Serves one request at a time, always in the shapes of `model`."""

    def __init__(self, model: SparseTransformer, memory: PagedKV) -> None:
        self.model = model
        self.memory = memory

    def generate(self, prompt: Sequence[int], new_tokens: int, seed: int, cache: KvCache) -> Generation:
        """Generate `new_tokens` tokens after `prompt`; the result is the same whatever `cache` holds."""
        started = time.perf_counter()
        context = self.memory.open(len(prompt) + new_tokens)
        saves: list[Save] = []
        try:
            result = Generation(blocks=(len(prompt) - 1) // CHUNK_TOKENS)
            logits = self._prefill(prompt, context, cache, result)
            digest = hashlib.sha256(logits.numpy().tobytes())
            tokens = [*prompt, sample(logits, seed, len(prompt))]
            result.ttft_s = time.perf_counter() - started
            saves.append(cache.save(prompt, result.loaded_blocks, context))  # runs beside the decoding
            while len(tokens) < len(prompt) + new_tokens:
                logits = self.model.forward(tokens[-1:], len(tokens) - 1, context)
                digest.update(logits.numpy().tobytes())
                tokens.append(sample(logits, seed, len(tokens)))
            # The last token was sampled but not computed: its KV row does not exist.
            saves.append(cache.save(tokens[:-1], len(prompt) // CHUNK_TOKENS, context))
            result.tokens, result.logits_digest = tokens[len(prompt) :], digest.hexdigest()
        finally:
            for save in saves:
                save.wait_end()
            context.close()
        result.total_s = time.perf_counter() - started
        return result

    def _prefill(self, prompt: Sequence[int], context: RequestKV, cache: KvCache, result: Generation) -> Tensor:
        """Logits after the prompt; at least its last token is computed here, because they are its logits."""
        load = cache.load(prompt[: result.blocks * CHUNK_TOKENS], context)
        try:
            logits = self._forward_from(load.blocks, prompt, context, load)
            load.wait_end()
            result.loaded_blocks = load.blocks
        except LoadFellShortError as short:
            result.loaded_blocks, result.recomputed = short.blocks, True
            return self._forward_from(short.blocks, prompt, context, None)
        return logits

    def _forward_from(self, block: int, prompt: Sequence[int], context: RequestKV, load: Load | None) -> Tensor:
        """Prefill from `block` on. The first chunk starts while later groups of the load are on their way."""
        for first in range(block * CHUNK_TOKENS, len(prompt), CHUNK_TOKENS):
            tokens = prompt[first : first + CHUNK_TOKENS]
            if load is not None:
                logits = self.model.forward(tokens, first, context, load.wait_group)
            else:
                logits = self.model.forward(tokens, first, context)
            load = None
        return logits


def prefill_blocks(model: SparseTransformer, tokens: Sequence[int], context: RequestKV, cache: KvCache) -> int:
    """Bring the rows of whole blocks in, from the cache as far as it goes; returns how many blocks were loaded.

    What was computed is saved, and nothing reads the pages any more when this returns.
    """
    assert len(tokens) % CHUNK_TOKENS == 0
    load = cache.load(tokens, context)
    try:
        load.wait_end()
        loaded = load.blocks
    except LoadFellShortError as short:
        loaded = short.blocks
    for first in range(loaded * CHUNK_TOKENS, len(tokens), CHUNK_TOKENS):
        model.forward(tokens[first : first + CHUNK_TOKENS], first, context)
    cache.save(tokens, loaded, context).wait_end()
    return loaded
