"""A whole tier read again and checked, while it serves: what is damaged is a miss from then on, before anyone asks.

Owns the walk and its manners: one block at a time, and none while a load waits for the tier. Whether a record holds is
told by its store, and what becomes of a damaged copy is decided by the planner (`flexkv_py.damage`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from flexkv_py.core.blocks import Block, Copy, CopyState, DramCopy
from flexkv_py.core.messages import Fault, MoveKind, Tier
from flexkv_py.damage import DamageFound
from flexkv_tiers.base import TierFault, VerifiableStore
from flexkv_tiers.codec import chunk_checksum
from flexkv_tiers.memory import Arena
from flexkvd.jobs import Progress
from flexkvd.parts import Parts

BLOCKS_PER_TURN_MAX = 64
"""Blocks looked at for a copy before others get a turn."""
GIVE_WAY_S = 0.01
GIVE_WAY_S_MAX = 1.0
"""A tier that is never idle is checked all the same: a block each so many seconds."""
DAMAGE = (Fault.CORRUPT, Fault.MISSING)
OF_ONE_RECORD = (*DAMAGE, Fault.IO, Fault.LATE)
"""Faults after which the next record may be read; others are the tier's, and end the check."""


class Verification:
    """One check of one tier."""

    def __init__(self, parts: Parts, tier: Tier, progress: Progress) -> None:
        self._parts = parts
        self._tier = tier
        self._progress = progress
        self._counts: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """Check every whole copy the tier has now. Raises TierFault when the tier is down."""
        indexes = list(self._parts.planner.state.indexes.values())
        total, done = sum(len(index.blocks) for index in indexes), 0
        for index in indexes:
            for number, block in enumerate(list(index.blocks.values())):
                copy = block.copy_in(self._tier)
                if copy is not None and self._is_whole(block, copy):
                    await self._give_way()
                    if self._is_whole(block, copy):
                        await self._check(block, copy)
                elif number % BLOCKS_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
                done += 1
                self._progress.blocks(done, total)
        return {name: self._counts[name] for name in ("checked", "damaged", "unreadable", "bytes")}

    async def _check(self, block: Block, copy: Copy) -> None:
        try:
            if isinstance(copy, DramCopy):
                await self._check_frames(block, copy)
            else:
                await self._check_record(block, copy)
        except TierFault as fault:
            if fault.fault not in OF_ONE_RECORD:
                raise
            if fault.fault in DAMAGE:
                self._found_damage(block, copy, fault)
            else:
                self._counts["unreadable"] += 1

    async def _check_record(self, block: Block, copy: Copy) -> None:
        store, spec = self._parts.stores[self._tier][0], block.index.spec
        assert isinstance(store, VerifiableStore)
        assert spec is not None
        await store.verify(block.name, copy.location, spec.chunk_bytes)
        self._counts["checked"] += 1
        self._counts["bytes"] += block.index.record_bytes

    async def _check_frames(self, block: Block, copy: DramCopy) -> None:
        """Off the loop, and unpinned: a mismatch counts only where the frames were this copy's before and after."""
        spec, place, present = block.index.spec, copy.place, copy.present
        assert spec is not None
        frames = {
            chunk: (frame, length)
            for chunk, (frame, length) in enumerate(zip(copy.frames, spec.chunk_bytes, strict=True))
            if present >> chunk & 1
        }
        wrong = await asyncio.to_thread(_mismatch, self._parts.arena, block.key, frames)
        if not self._is_whole(block, copy) or (copy.place, copy.present) != (place, present):
            return  # it went, or changed, while it was looked at
        if wrong is not None:
            raise TierFault(Fault.CORRUPT, f"chunk {wrong} was changed in DRAM")
        self._counts["checked"] += 1
        self._counts["bytes"] += sum(length for _, length in frames.values())

    def _found_damage(self, block: Block, copy: Copy, fault: TierFault) -> None:
        """The planner lets go of it, unless it is gone already: then nothing was wrong."""
        if not self._is_whole(block, copy):
            return
        self._counts["checked"] += 1
        self._counts["damaged"] += 1
        engine, detail = self._parts.engine, f"found by verify: {fault.detail}"
        self._parts.faults.note(fault.fault.value, self._tier.name.lower(), f"block {block.key.hex()}: {detail}")
        engine.post(DamageFound(self._tier, block.name, copy.place, detail, engine.now_ns()))

    def _is_whole(self, block: Block, copy: Copy) -> bool:
        """Whether the copy is still the block's, and no other fills its place."""
        return block.copy_in(self._tier) is copy and copy.state is CopyState.READY

    async def _give_way(self) -> None:
        """Let loads from this tier go first."""
        await asyncio.sleep(0)
        link = self._parts.executor.links.get((self._tier, MoveKind.PROMOTE))
        waited_s = 0.0
        while link is not None and (link.waiting or link.running) and waited_s < GIVE_WAY_S_MAX:
            await asyncio.sleep(GIVE_WAY_S)
            waited_s += GIVE_WAY_S


def _mismatch(arena: Arena, key: bytes, frames: dict[int, tuple[int, int]]) -> int | None:
    """The first chunk whose bytes do not match the checksum kept with its frame; None when all do."""
    for chunk, (frame, length) in frames.items():
        if chunk_checksum(key, chunk, arena.view(frame, length)) != arena.checksum(frame):
            return chunk
    return None
