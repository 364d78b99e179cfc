"""The link from SSD to DRAM, in ticks of one decode step: so many chunks a tick, and none before its latency is over.

Owns the queues and what is on its way; frames and chunks are the world's. Called by `world`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from flexkv_py.rows.policy import Place


class Urgency(IntEnum):
    """Who goes first."""

    DEMAND = 0
    URGENT = 1
    LIKELY = 2


STALE_TICKS = 16
"""A guess that waited for longer is not read any more."""


@dataclass(frozen=True)
class LinkSpeed:
    """`chunks_per_tick` of all requests together; a chunk is there `latency_ticks` after its read began."""

    chunks_per_tick: float
    latency_ticks: int


class Link:
    """Three queues, first in, first out, and the reads that run."""

    def __init__(self, speed: LinkSpeed) -> None:
        self._speed = speed
        self._queues: tuple[deque[tuple[Place, int]], ...] = (deque(), deque(), deque())
        self._waiting: set[Place] = set()
        self._running: deque[tuple[int, Place]] = deque()
        self._credit = 0.0

    def ask(self, place: Place, urgency: Urgency, tick: int) -> None:
        """Read this chunk when its turn comes. A guess that waits already is not asked twice."""
        if urgency is Urgency.DEMAND or place not in self._waiting:
            self._waiting.add(place)
            self._queues[urgency].append((place, tick))

    def refill(self) -> None:
        """A tick has begun. What an idle link did not use is not kept."""
        self._credit = min(self._credit, 0.0) + self._speed.chunks_per_tick

    def next(self, tick: int) -> tuple[Place, Urgency] | None:
        """Who is to be read next, if the link has time for it in this tick."""
        if self._credit <= 0:
            return None
        for urgency in Urgency:
            queue = self._queues[urgency]
            while queue:
                place, asked = queue.popleft()
                if place not in self._waiting:
                    continue  # it was read for another reason meanwhile
                self._waiting.discard(place)
                if urgency is Urgency.DEMAND or tick - asked <= STALE_TICKS:
                    return place, urgency
        return None

    def begin(self, place: Place, tick: int) -> None:
        """Read it."""
        self._credit -= 1
        self._running.append((tick + self._speed.latency_ticks, place))

    def landed(self, tick: int) -> list[Place]:
        """Reads that have ended by now."""
        out = []
        while self._running and self._running[0][0] <= tick:
            out.append(self._running.popleft()[1])
        return out
