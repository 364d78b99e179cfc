"""What rows must be: every text has its own bytes at every id, layer and plane, computed, never stored."""

from __future__ import annotations

import numpy as np

from flexkv_tiers.hbm.shape import GroupShape

GARBAGE = 0xEE
"""What an engine computes from rows that were not there."""

FREED = 0xDD
"""What a frame or page holds once it is free: whoever reads it then sees that it did."""


def rows(text: int, ids: np.ndarray, layer: int, plane: int, slot_bytes: int) -> np.ndarray:
    """Bytes uint8 [n, slot_bytes] of these ids of a text."""
    words = np.arange(slot_bytes // 8, dtype=np.uint64)
    mixed = (ids.astype(np.uint64)[:, None] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64((text * 1_000_003 + layer * 101 + plane * 7 + 1) * 0xC2B2AE3D27D4EB4F % (1 << 64))
    mixed = (mixed + words) * np.uint64(0xD6E8FEB86659FD93)
    return np.ascontiguousarray(mixed ^ (mixed >> np.uint64(29))).view(np.uint8)


def block_ids(shape: GroupShape, block: int) -> np.ndarray:
    return np.arange(block * shape.ids_per_block, (block + 1) * shape.ids_per_block)
