"""A request's newest blocks on their way from HBM to the cache: written, committed, saved.

A block is saved when it is full and every token of it counts: rows that speculation rejected or a
replay will write again never leave. Owns what may be saved and what came of it; the copying itself is
the embedder's (a client's `save`), and which page a block lies in is `pool`'s. Pure; called by `worker`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

SAVES_RUNNING_MAX = 4
"""Saves of one request under way at once: its saves are spread over steps, and share the link with others."""


class SaveOutcome(Enum):
    """How the save of one block ended."""

    STORED = "stored"
    """In the cache now, by this save or an earlier one."""
    THROTTLED = "throttled"
    """Not now: it becomes due again."""
    REFUSED = "refused"
    """Never: the block stays in HBM as long as its request."""


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Save this block from this HBM page, then say `save_ended`."""

    request: int
    block: int
    page: int


class NewestBlocks:
    """One request. Blocks below `saved_blocks` at the start came from the cache."""

    def __init__(self, length: int, saved_blocks: int, tokens_per_block: int) -> None:
        assert saved_blocks * tokens_per_block <= length
        self.length = length
        """Tokens that count: computed, and accepted where they were speculative."""
        self._tokens_per_block = tokens_per_block
        self._next = saved_blocks  # every full block below is saved, running, refused, or due again
        self._again: list[int] = []
        self._running: set[int] = set()
        self._elsewhere: set[int] = set()

    @property
    def full_blocks(self) -> int:
        return self.length // self._tokens_per_block

    @property
    def running(self) -> frozenset[int]:
        """Blocks that a save is reading."""
        return frozenset(self._running)

    def commit(self, accepted: int) -> None:
        """`accepted` more tokens count."""
        assert accepted >= 0
        self.length += accepted

    def take_due(self) -> list[int]:
        """Blocks to save now, lowest first; they are under way from here on."""
        room = max(0, SAVES_RUNNING_MAX - len(self._running))
        while len(self._again) < room and self._next < self.full_blocks:
            self._next_is_due()
        due = sorted(self._again)[:room]
        self._again = sorted(self._again)[room:]
        self._running.update(due)
        return due

    def take_all(self) -> list[int]:
        """Every block still to be saved, at the end of a request; they are under way from here on."""
        while self._next < self.full_blocks:
            self._next_is_due()
        due, self._again = sorted(self._again), []
        self._running.update(due)
        return due

    def left(self, blocks: Iterable[int]) -> None:
        """Full blocks left their pages: somebody has saved them. A page they get again holds what is loaded into it."""
        self._elsewhere.update(blocks)
        self._again = [block for block in self._again if block not in self._elsewhere]

    def ended(self, block: int, outcome: SaveOutcome) -> None:
        """A save of `block` ended and reads the block's page no more."""
        self._running.remove(block)
        if outcome is SaveOutcome.THROTTLED and block not in self._elsewhere:
            self._again.append(block)

    def _next_is_due(self) -> None:
        if self._next not in self._elsewhere:
            self._again.append(self._next)
        self._next += 1
