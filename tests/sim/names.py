"""Whose bytes are whose: namespaces, chains of keys, and the bytes every block must have.

A block's bytes follow from its name alone, so the oracle never needs to remember what was saved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from xxhash import xxh3_128_digest

from flexkv_py.core.messages import BlockName, NamespaceSpec
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest, key_of_hash, namespace_digest

CUTS = ((4096,), (4096, 4096), (8192, 4096, 4096), (12288, 8192), (4096, 4096, 4096, 4096))
"""How blocks may be cut: several chunk counts and frame sizes share one arena."""

CHAIN_KEYS_MAX = 10


@dataclass(frozen=True)
class Namespace:
    """One namespace: how its blocks are cut, and chains of keys that share prefixes."""

    spec: NamespaceSpec
    chains: tuple[tuple[BlockKey, ...], ...]

    @property
    def digest(self) -> NamespaceDigest:
        return self.spec.digest

    def parent(self, chain: tuple[BlockKey, ...], at: int) -> BlockKey:
        """The key before position `at` of a chain."""
        return chain[at - 1] if at else ROOT


def make_namespaces(chance: random.Random) -> list[Namespace]:
    """Two or three namespaces of different cuts."""
    made = []
    for number, cut in enumerate(chance.sample(CUTS, chance.choice((1, 2, 2, 3)))):
        digest = namespace_digest(b"simulated model", "tenant", number)
        made.append(Namespace(NamespaceSpec(digest, cut), _make_chains(chance, digest)))
    return made


def _make_chains(chance: random.Random, digest: NamespaceDigest) -> tuple[tuple[BlockKey, ...], ...]:
    """Some roots, and branches that leave an earlier chain somewhere."""
    chains: list[tuple[BlockKey, ...]] = []
    for number in range(chance.randint(4, 9)):
        keys: list[BlockKey] = []
        if chains and chance.random() < 0.6:
            trunk = chance.choice(chains)
            keys.extend(trunk[: chance.randint(1, min(len(trunk), CHAIN_KEYS_MAX - 1))])
        parent = keys[-1] if keys else ROOT
        for at in range(len(keys), chance.randint(len(keys) + 1, CHAIN_KEYS_MAX)):
            parent = key_of_hash(digest, parent, f"{number}/{at}".encode())
            keys.append(parent)
        chains.append(tuple(keys))
    return tuple(chains)


@lru_cache(maxsize=2048)
def block_bytes(namespace: NamespaceDigest, shard: int, key: BlockKey, chunk: int, length: int) -> bytes:
    """The one right content of a chunk, `length` bytes."""
    pattern = xxh3_128_digest(namespace + shard.to_bytes(4, "little") + key + chunk.to_bytes(4, "little"))
    return pattern * (length // len(pattern))


def chunks_of(block: BlockName, chunk_bytes: tuple[int, ...]) -> list[bytes]:
    """The right content of every chunk of a block."""
    return [
        block_bytes(block.namespace, block.shard, block.key, chunk, length) for chunk, length in enumerate(chunk_bytes)
    ]


def frame_pages(spec: NamespaceSpec) -> int:
    """4 KiB pages of one frame."""
    return spec.frame_bytes // ALIGN_BYTES
