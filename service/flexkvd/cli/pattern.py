"""Bytes that follow from a block's id: cheap to make, and any mix-up of blocks, chunks or rows shows.

A block is one fixed random block with a number that depends on the id added to each of its words: it
differs from every other block in every word, and from itself at every other position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WORD_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that multiplying by it maps no two ids to one number
_WORD_MASK = (1 << 64) - 1
_SEED = 20_260_101


class Pattern:
    """Blocks of `block_bytes` bytes (a multiple of 8)."""

    def __init__(self, block_bytes: int) -> None:
        assert block_bytes % WORD_BYTES == 0
        chance = np.random.default_rng(_SEED)
        self._base = chance.integers(0, _WORD_MASK, block_bytes // WORD_BYTES, dtype=np.uint64, endpoint=True)

    def block(self, block_id: int) -> npt.NDArray[np.uint8]:
        """The bytes of one block: uint8, shape [block_bytes]."""
        return (self._base + np.uint64(block_id * _GOLDEN & _WORD_MASK)).view(np.uint8)
