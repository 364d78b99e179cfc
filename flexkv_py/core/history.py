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
        self._next = bytearray(BUCKETS_MIN)  # where in its bucket the next block goes: upon the oldest

    def remember(self, key: BlockKey, shard: int, uses: int, blocks_known: int) -> None:
        """A block left its last tier. The table doubles until it has two places per block that is known."""
        while self._buckets * BUCKET_BLOCKS < REMEMBERED_PER_BLOCK * blocks_known and self._buckets < BUCKETS_MAX:
            self._prints.extend(self._prints)  # each entry is then in both places it may belong to
            self._uses.extend(self._uses)
            self._next.extend(self._next)
            self._buckets *= 2
        bucket, fingerprint = self._place(key, shard)
        at = bucket * BUCKET_BLOCKS + self._next[bucket]
        self._prints[at] = fingerprint
        self._uses[at] = min(uses, USES_MAX)
        self._next[bucket] = (self._next[bucket] + 1) % BUCKET_BLOCKS

    def recall(self, key: BlockKey, shard: int) -> int:
        """Uses up to USES_MAX, 0 when none are remembered; they are forgotten here: the block is known again."""
        bucket, fingerprint = self._place(key, shard)
        first = bucket * BUCKET_BLOCKS
        prints = self._prints[first : first + BUCKET_BLOCKS]
        if fingerprint not in prints:
            return 0
        at = first + prints.index(fingerprint)
        uses, self._uses[at] = self._uses[at], 0
        self._prints[at] = 0
        return uses

    def _place(self, key: BlockKey, shard: int) -> tuple[int, int]:
        """The key's bucket and its fingerprint; keys are hashes already."""
        number = int.from_bytes(key[:8], "little")
        return (number + shard) & (self._buckets - 1), number >> 32
