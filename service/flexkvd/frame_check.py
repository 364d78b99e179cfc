"""Checksums of frames, verified once more before a block leaves DRAM: where workers map the arena writable.

A frame's checksum is that of the bytes that were saved. With a read-only arena nobody but the daemon can change
them since; in a `shared` trust group any worker can, by accident too. Called by `executor`, off the loop.
"""

from __future__ import annotations

from flexkv_py.core.messages import Fault, StartMove
from flexkv_tiers.base import TierFault
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.memory import Arena


def check_frames(arena: Arena, move: StartMove) -> None:
    """Raises TierFault(CORRUPT) unless every chunk of the block is as it was saved. Keeps a core busy meanwhile."""
    for chunk, (frame, length) in enumerate(zip(move.frames, move.chunk_bytes, strict=True)):
        if chunk_checksum(move.block.key, chunk, arena.view(frame, length)) != arena.checksum(frame):
            raise TierFault(
                Fault.CORRUPT, f"chunk {chunk} was changed in DRAM: a worker of the shared arena wrote there"
            )
