"""How often blocks that are in no tier any more were used: an admission gate and an eviction order ask for it.

It is the ghost queue of S3-FIFO (Yang et al., SOSP 2023) for all policies, kept as the paper proposes: a
table of fingerprints in buckets, each bucket a short queue of its own. Forgetting must be in order of age:
one block lost at random from a chain would make all that follow it look new. A wrong answer (1 in 2^28 per
question) costs one block's place in an order, never bytes. Called by the flows that add and forget blocks.
"""

from __future__ import annotations

from flexkv_py.keys import BlockKey

BUCKET_BLOCKS = 16
BUCKETS_MIN = 1 << 6
BUCKETS_MAX = 1 << 20
REMEMBERED_PER_BLOCK = 2
USES_MAX = 255
PRINT_BYTES = 4
FINGERPRINT = slice(PRINT_BYTES, 2 * PRINT_BYTES)
"""Of a key, which is a hash already. Its bucket comes of the bytes before."""


class History:
    """Uses of forgotten blocks, by key and shard: 5 bytes each."""

    def __init__(self) -> None:
        self._buckets = BUCKETS_MIN
        self._prints = bytearray(PRINT_BYTES * BUCKETS_MIN * BUCKET_BLOCKS)
        self._uses = bytearray(BUCKETS_MIN * BUCKET_BLOCKS)
        self._next = bytearray(BUCKETS_MIN)  # where in its bucket the next block goes: upon the oldest

    def remember(self, key: BlockKey, shard: int, uses: int, blocks_known: int) -> None:
        """A block left its last tier. The table doubles until it has two places per block that is known."""
        while REMEMBERED_PER_BLOCK * blocks_known > len(self._uses) and self._buckets < BUCKETS_MAX:
            self._prints.extend(self._prints)  # each entry is then in both places it may belong to
            self._uses.extend(self._uses)
            self._next.extend(self._next)
            self._buckets *= 2
        bucket = self._bucket(key, shard)
        within = self._next[bucket]
        at = bucket * BUCKET_BLOCKS + within
        self._prints[at * PRINT_BYTES : (at + 1) * PRINT_BYTES] = key[FINGERPRINT]
        self._uses[at] = uses if uses < USES_MAX else USES_MAX
        self._next[bucket] = (within + 1) % BUCKET_BLOCKS

    def recall(self, key: BlockKey, shard: int) -> int:
        """Uses up to USES_MAX, 0 when none are remembered; they are forgotten here: the block is known again."""
        first = self._bucket(key, shard) * BUCKET_BLOCKS * PRINT_BYTES
        end = first + BUCKET_BLOCKS * PRINT_BYTES
        found = self._prints.find(key[FINGERPRINT], first, end)
        while found >= 0 and found % PRINT_BYTES:  # those bytes, but of two fingerprints
            found = self._prints.find(key[FINGERPRINT], found + 1, end)
        if found < 0:
            return 0
        at = found // PRINT_BYTES
        uses, self._uses[at] = self._uses[at], 0
        self._prints[found : found + PRINT_BYTES] = bytes(PRINT_BYTES)
        return uses

    def _bucket(self, key: BlockKey, shard: int) -> int:
        return (int.from_bytes(key[:PRINT_BYTES], "little") + shard) & (self._buckets - 1)
