"""What a tiered run is judged by: which rows were there, which came when asked for, and which ahead of need.

Pure counting, no I/O. Called by `rows_link` and `tiered`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from itertools import product

from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.replay import Part
from flexkv_tiers.hbm.requests import HotCount


@dataclass
class _Request:
    missing: set[Part]
    """Not in DRAM as far as the worker knows; of a request that hears its first version: not known yet."""
    ahead: set[Part] = field(default_factory=set)
    """Came without being asked for, and not selected from since."""
    listed: bool = False


class Arrivals:
    """Pages of the daemon, a page being one chunk of a block."""

    def __init__(self, chunk_count: int) -> None:
        self.absent = 0
        """Pages that a step needed and did not find; each was asked for."""
        self.on_demand = 0
        """Pages that came back after a step had failed for them."""
        self.ahead = 0
        """Pages that came back before any step failed for them."""
        self.ahead_used = 0
        """Of those, selected from while they were there."""
        self.revoked = 0
        self.hits = self.misses = 0
        self._chunk_count = chunk_count
        self._requests: dict[int, _Request] = {}

    def attach(self, request: int, blocks: int) -> None:
        self._requests[request] = _Request(set(product(range(blocks), range(self._chunk_count))))

    def detach(self, request: int) -> None:
        del self._requests[request]

    def changed(self, change: PagesChange, asked: Set[Part]) -> None:
        """A version arrived; `asked` is what the request's failed step waits for."""
        each = self._requests[change.request]
        self.revoked += len(change.revoked)
        each.missing.update(change.revoked)
        each.ahead.difference_update(change.revoked)
        for block, chunk, _ in change.granted:
            part = block, chunk
            if part in each.missing and each.listed:
                self.on_demand += part in asked
                self.ahead += part not in asked
                if part not in asked:
                    each.ahead.add(part)
            each.missing.discard(part)
        each.listed = True

    def selected(self, request: int, chunk: int, blocks: Iterable[int]) -> None:
        """A step selected rows of these blocks."""
        ahead = self._requests[request].ahead
        for block in blocks:
            if (block, chunk) in ahead:
                ahead.remove((block, chunk))
                self.ahead_used += 1

    def is_listed(self, request: int) -> bool:
        """Whether its first version has come."""
        return self._requests[request].listed

    def has_ahead(self, request: int) -> bool:
        return bool(self._requests[request].ahead)

    def count(self, counts: Iterable[HotCount]) -> None:
        """Hits and misses of the hot buffers since the last time."""
        for each in counts:
            self.hits += each.hits
            self.misses += each.misses
