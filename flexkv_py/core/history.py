"""How often blocks that are in no tier any more were used: an admission gate and an eviction order ask for it.

It is the ghost queue of S3-FIFO (Yang et al., SOSP 2023) for all policies, kept as the paper proposes: a
table of fingerprints in buckets, each bucket a short queue of its own. Forgetting must be in order of age:
one block lost at random from a chain would make all that follow it look new. A wrong answer (1 in 2^28 per
question) costs one block's place in an order, never bytes. Called by the flows that add and forget blocks.
"""

from __future__ import annotations

from array import array

from flexkv_py.keys import BlockKey

BUCKET_BLOCKS = 16
BUCKETS_MIN = 1 << 6
BUCKETS_MAX = 1 << 20
REMEMBERED_PER_BLOCK = 2
USES_MAX = 255


class History:
    """Uses of forgotten blocks, by key and shard: 5 bytes each."""

    def __init__(self) -> None:
        self._buckets = BUCKETS_MIN
        self._prints = array("I", bytes(4 * BUCKETS_MIN * BUCKET_BLOCKS))
        self._uses = bytearray(BUCKETS_MIN * BUCKET_BLOCKS)

    def remember(self, key: BlockKey, shard: int, uses: int, blocks_known: int) -> None:
        """A block left its last tier. The table doubles until it has two places per block that is known."""
        while self._buckets * BUCKET_BLOCKS < REMEMBERED_PER_BLOCK * blocks_known and self._buckets < BUCKETS_MAX:
            self._prints.extend(self._prints)  # each entry is then in both places it may belong to
            self._uses.extend(self._uses)
            self._buckets *= 2
        first, fingerprint = self._place(key, shard)
        end = first + BUCKET_BLOCKS
        self._prints[first:end] = self._prints[first + 1 : end] + array("I", (fingerprint,))
        self._uses[first:end] = self._uses[first + 1 : end] + bytes((min(uses, USES_MAX),))

    def uses(self, key: BlockKey, shard: int) -> int:
        """Uses up to USES_MAX, 0 when none are remembered."""
        first, fingerprint = self._place(key, shard)
        bucket = self._prints[first : first + BUCKET_BLOCKS]
        if fingerprint not in bucket:
            return 0
        newest = BUCKET_BLOCKS - 1 - bucket[::-1].index(fingerprint)
        return self._uses[first + newest]

    def _place(self, key: BlockKey, shard: int) -> tuple[int, int]:
        """Where the key's bucket begins, and its fingerprint; keys are hashes already."""
        bucket = (int.from_bytes(key[:4], "little") + shard) & (self._buckets - 1)
        return bucket * BUCKET_BLOCKS, int.from_bytes(key[4:8], "little")
