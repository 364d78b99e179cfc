"""A daemon's side of the row path in memory: frames that are granted, revoked and poisoned, and blocks below them.

Bytes really move: a save reads the worker's pages when it ends, a grant copies a block's chunk into a frame,
a frame is overwritten as soon as the worker may no longer read it. Which pages come and go when is the test's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.newest import SaveOrder
from flexkv_tiers.hbm.replay import Part
from flexkv_tiers.hbm.worker import RowPath
from tests.hbm import contents


@dataclass
class Grants:
    """What one attached request was told."""

    text: int
    version: int = 0
    frames: dict[Part, int] = field(default_factory=dict)
    leaving: dict[int, list[int]] = field(default_factory=dict)  # version → frames free when it is acknowledged


class Store:
    """Frames for one worker, and every block saved so far."""

    def __init__(self, path: RowPath, chunk_count: int, frames: int, frame_bytes: int) -> None:
        self.path = path
        self.chunk_count = chunk_count
        self.units = frame_bytes // ALIGN_BYTES
        self.arena = np.full(frames * frame_bytes, contents.FREED, dtype=np.uint8)
        self.arena_bytes, self.frame_bytes = len(self.arena), frame_bytes
        path.tables.requests.segments.map([self.arena], self.arena_bytes)
        self.free = list(range(frames))
        self.blocks: dict[tuple[int, int], dict[int, np.ndarray]] = {}  # (text, block) → chunk → bytes
        self.grants: dict[int, Grants] = {}

    def cached_blocks(self, text: int) -> int:
        """Length of the prefix of a text that can be granted or loaded."""
        return next(block for block in range(1 << 20) if (text, block) not in self.blocks)

    def attach(self, request: int, text: int) -> None:
        self.grants[request] = Grants(text)

    def detach(self, request: int) -> None:
        grants = self.grants.pop(request)
        for frames in (grants.frames.values(), *grants.leaving.values()):
            for frame in frames:
                self._give_back(frame)

    def save(self, order: SaveOrder, text: int) -> None:
        """The copy of a save, at its end: what is in the page now is what the block will be."""
        chunks = {}
        for chunk, places in self._places(text, order.block):
            chunks[chunk] = np.zeros(self.frame_bytes, dtype=np.uint8)
            for shape, layer, plane, at in places:
                slots = self.path.tables.page_slots(shape.group, order.page)
                rows = self.path.tables.rows_of(layer, plane)[slots].numpy().reshape(-1)
                chunks[chunk][at : at + len(rows)] = rows
        self.blocks[text, order.block] = chunks

    def load(self, text: int, block: int, page: int) -> None:
        """The copy of a load into an HBM page, at its end."""
        for chunk, places in self._places(text, block):
            for shape, layer, plane, at in places:
                slots = self.path.tables.page_slots(shape.group, page)
                rows = self.path.tables.rows_of(layer, plane)[slots].numpy()
                rows[:] = self.blocks[text, block][chunk][at : at + rows.size].reshape(rows.shape)

    def grant(self, request: int, parts: list[Part], revoked: list[Part] | None = None) -> PagesChange:
        """One version: grants what is saved and finds a frame, revokes what is granted."""
        grants = self.grants[request]
        grants.version += 1
        leaving = [part for part in dict.fromkeys(revoked or []) if part in grants.frames]
        grants.leaving[grants.version] = [grants.frames.pop(part) for part in leaving]
        granted = []
        for block, chunk in dict.fromkeys(parts):
            if (block, chunk) in grants.frames or (grants.text, block) not in self.blocks or not self.free:
                continue
            frame = self.free.pop()
            self.frame(frame)[:] = self.blocks[grants.text, block][chunk]
            grants.frames[block, chunk] = frame
            granted.append((block, chunk, frame * self.units))
        return PagesChange(request, grants.version, tuple(granted), tuple(leaving))

    def acknowledged(self, request: int, version: int) -> None:
        if request in self.grants:  # an acknowledgement may be on its way when its request is detached
            for known in [known for known in self.grants[request].leaving if known <= version]:
                for frame in self.grants[request].leaving.pop(known):
                    self._give_back(frame)

    def frame(self, number: int) -> np.ndarray:
        return self.arena[number * self.frame_bytes : (number + 1) * self.frame_bytes]

    def check(self) -> None:
        """Every frame is free, granted, or waits for an acknowledgement, exactly once."""
        held = [frame for grants in self.grants.values() for frame in grants.frames.values()]
        leaving = [frame for grants in self.grants.values() for frames in grants.leaving.values() for frame in frames]
        assert sorted([*self.free, *held, *leaving]) == list(range(self.arena_bytes // self.frame_bytes))

    def _places(self, text: int, block: int):
        """Per chunk: (shape, layer, plane, offset in the frame) of every layer and plane that moves."""
        shapes = [group.shape for group in self.path.tables.groups.values()]
        for chunk in range(self.chunk_count):
            yield (
                chunk,
                [
                    (shape, layer, plane, moving.offsets[at])
                    for shape in shapes
                    if shape.chunk == chunk
                    for plane, moving in enumerate(shape.planes)
                    for at, layer in enumerate(shape.layers)
                ],
            )

    def _give_back(self, frame: int) -> None:
        self.frame(frame)[:] = contents.FREED
        self.free.append(frame)
