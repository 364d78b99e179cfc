"""What a store finds out by itself, as events for the planner.

Owns nothing: every call becomes one event, in bounded batches, and readiness waits for no tier that is down.
Made by `parts`, called by the stores.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flexkv_py.core.messages import BlocksFound, LostRecord, RecordsLost, RoomRestored, Tier, TierChanged
from flexkv_tiers.base import FoundBatch
from flexkvd.engine import Engine
from flexkvd.faults import FaultLog
from flexkvd.readiness import Readiness

log = logging.getLogger(__name__)

RECORDS_PER_EVENT_MAX = 1024


class StoreEvents:
    """The `StoreListener` of one tier."""

    def __init__(self, engine: Engine, readiness: Readiness, faults: FaultLog, tier: Tier) -> None:
        self._tier = tier
        self._engine = engine
        self._readiness = readiness
        self._faults = faults

    def changed(self, up: bool, reason: str) -> None:
        word, state = self._tier.name.lower(), "up" if up else "down"
        log.warning("%s is %s: %s", word, state, reason)
        self._faults.note(f"tier {state}", word, reason)
        self._engine.post(TierChanged(self._tier, up, reason, self._engine.now_ns()))
        if not up:  # it may have been read in just now; nobody can say when that goes on
            self._readiness.go_on_without(self._tier.name.lower())

    def lost(self, records: Sequence[LostRecord], reason: str) -> None:
        log.info("%s let go of %d records: %s", self._tier.name.lower(), len(records), reason)
        self._faults.note("records let go", self._tier.name.lower(), f"{len(records)}: {reason}")
        for start in range(0, len(records), RECORDS_PER_EVENT_MAX):
            some = list(records[start : start + RECORDS_PER_EVENT_MAX])
            self._engine.post(RecordsLost(self._tier, some, reason, self._engine.now_ns()))

    def restored(self) -> None:
        log.info("%s: a disk that was full has room again", self._tier.name.lower())
        self._engine.post(RoomRestored(self._tier, self._engine.now_ns()))

    def appeared(self, batch: FoundBatch) -> None:
        self._engine.post(found_event(self._tier, batch, self._engine.now_ns()))


def found_event(tier: Tier, batch: FoundBatch, now_ns: int) -> BlocksFound:
    """A batch as the planner hears of it."""
    return BlocksFound(
        tier, batch.namespace, batch.shard, batch.record_bytes, batch.blocks, now_ns, chunk_bytes=batch.chunk_bytes
    )
