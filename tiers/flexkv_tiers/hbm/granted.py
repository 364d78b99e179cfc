"""The daemon's frames a request may read, version by version, and what is to be acknowledged.

Owns the host's copy of the page tables: what the daemon granted and revoked, in order, checked before it
is believed. The device's tables are `worker`'s, which asks here what changes when a version takes
effect. Ranks that decode together hold versions back until all of them have received them. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.replay import Part

VERSIONS_HELD_MAX = 1024
"""Versions of one request received and not in effect. The daemon ends a session long before, for lack of acks."""

Grant = tuple[int, int, int]
"""(block, chunk, frame)"""


@dataclass(frozen=True, slots=True)
class PagesChange:
    """One version of a request's pages, as the daemon sent it."""

    request: int
    version: int
    granted: tuple[Grant, ...]
    revoked: tuple[Part, ...]


@dataclass(slots=True)
class GrantedPages:
    """One request. `frames` holds exactly what is granted at `version`, the version in effect."""

    request: int
    blocks_max: int
    chunk_count: int
    version: int = 0
    frames: dict[Part, int] = field(default_factory=dict)
    _held: deque[PagesChange] = field(default_factory=deque)
    _chunks: dict[int, int] = field(default_factory=dict)  # block → how many of its chunks are granted

    @property
    def received(self) -> int:
        """Newest version received, in effect or not."""
        return self._held[-1].version if self._held else self.version

    def receive(self, change: PagesChange, frame_count: int) -> None:
        """Hold a version back until `switch`; the arena has `frame_count` frame numbers.

        Raises FlexKVError(BAD_MESSAGE) for a version that cannot follow, or names what request or arena have not.
        """
        if change.version != self.received + 1:  # with one lost, a row might be read that was revoked
            raise self._refuse(f"version {change.version} of its pages came after {self.received}")
        if len(self._held) == VERSIONS_HELD_MAX:
            raise self._refuse(f"{VERSIONS_HELD_MAX} versions of its pages wait to take effect: step, or detach it")
        for block, chunk, frame in change.granted:
            self._check(block, chunk)
            if not 0 <= frame < frame_count:
                raise self._refuse(f"frame {frame} was granted for block {block}, the arena has 0 to {frame_count - 1}")
        for block, chunk in change.revoked:
            self._check(block, chunk)
        self._held.append(change)

    def switch(self, version: int) -> list[PagesChange]:
        """Put every held version up to `version` into effect; returns them in order."""
        changes = []
        while self._held and self._held[0].version <= version:
            change = self._held.popleft()
            for part in change.revoked:
                if self.frames.pop(part, None) is not None:
                    self._chunks[part[0]] -= 1
            for block, chunk, frame in change.granted:
                if (block, chunk) not in self.frames:
                    self._chunks[block] = self._chunks.get(block, 0) + 1
                self.frames[block, chunk] = frame
            self.version = change.version
            changes.append(change)
        return changes

    def disown(self) -> list[Part]:
        """Nothing is granted or held any more, and versions begin anew. Returns what was granted."""
        parts = list(self.frames)
        self.frames.clear()
        self._chunks.clear()
        self._held.clear()
        self.version = 0
        return parts

    def is_covered(self, block: int) -> bool:
        """Every chunk of the block lies in a granted frame."""
        return self._chunks.get(block, 0) == self.chunk_count

    def missing(self, blocks: Sequence[int]) -> list[Part]:
        """Parts of these blocks that are not granted."""
        return [
            (block, chunk) for block in blocks for chunk in range(self.chunk_count) if (block, chunk) not in self.frames
        ]

    def _check(self, block: int, chunk: int) -> None:
        if not (0 <= block < self.blocks_max and 0 <= chunk < self.chunk_count):
            raise self._refuse(
                f"pages name chunk {chunk} of block {block}, it has at most {self.blocks_max} blocks of "
                f"{self.chunk_count} chunks"
            )

    def _refuse(self, why: str) -> FlexKVError:
        return FlexKVError(
            ErrorCode.BAD_MESSAGE,
            f"request {self.request}: {why}; the daemon and this worker disagree, attach it again",
        )
