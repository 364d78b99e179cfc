"""The operator's desk: all answers of the REST API, composed from one module per noun.

Owns no state of the cache: it reads what the parts count, and what it changes it asks of the planner like anyone else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import flexkv_py
from flexkv_py.core.messages import FlushAsked, RequestRefused, TicketFinished, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkvd.api.limits import ApiLimits
from flexkvd.api.table import ApiTable
from flexkvd.control.feed import Feed
from flexkvd.control.measures import Measures, nested
from flexkvd.control.notable import faulted_blocks, hottest_blocks
from flexkvd.control.policies import policy_facts
from flexkvd.control.samples import Sampler
from flexkvd.control.sessions import SessionFacts
from flexkvd.control.tiers import Tiers
from flexkvd.facts import facts_of
from flexkvd.jobs import Job, Jobs, Progress
from flexkvd.metrics import Metrics
from flexkvd.parts import Parts

STORY_EVENTS_SCANNED_MAX = 262_144
"""Lines of all blocks' stories looked through for one block's: the newest."""
STORY_EVENTS_PER_TURN_MAX = 16_384


class Operator:
    """Answers the REST API."""

    def __init__(self, parts: Parts, table: ApiTable) -> None:
        self._parts = parts
        self._began_s = time.monotonic()
        self.measures = Measures(parts)
        self.metrics = Metrics(self.measures)
        self.feed = Feed()
        self.tiers = Tiers(parts)
        self.sessions = SessionFacts(parts)
        self.sampler = Sampler(parts, self.tiers, self.feed)
        self.limits = ApiLimits(table.requests_per_s_max, table.body_bytes_max)
        self.jobs = Jobs(asyncio.get_running_loop(), table.jobs_running_max)
        self.jobs.on_changed = lambda job: self.feed.tell("job", job.facts(self.jobs.now_s()))

    def readiness(self) -> dict[str, Any]:
        """See `Readiness.report`; degraded is also a tier that is down, for its reason, and what resets wait for."""
        report: dict[str, Any] = self._parts.readiness.report()
        for tier, level in self._parts.planner.state.levels.items():
            if not level.up:
                report["degraded"][tier.name.lower()] = f"down: {level.down_reason}"
        if waiting := self._parts.resets.sentence():
            report["degraded"]["resets"] = waiting
        return report

    def metrics_text(self) -> bytes:
        return self.metrics.text()

    def status(self) -> dict[str, Any]:
        """What runs and what is kept where."""
        parts = self._parts
        tiers = {tier.name.lower(): store.status() for tier, (store, _) in parts.stores.items()}
        return {
            "version": flexkv_py.__version__,
            "boot": parts.boot.hex(),
            "state": self.state(),
            "uptime_s": round(time.monotonic() - self._began_s, 3),
            "now": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self.readiness(),
            "resets": parts.resets.status(),
            "planner": facts_of(parts.planner.state),
            "counters": nested(parts.planner.counters),
            "link_bytes": dict(parts.executor.traffic.bytes),
            "sessions": self.sessions.all(),
            "tiers": {"dram": parts.arena.status(), **tiers},
            "lanes": parts.devices.lanes.status(),
            "devices": parts.devices.status(),
        }

    def state(self) -> str:
        """`starting`, `ready` or `draining`."""
        readiness = self._parts.readiness
        if readiness.draining or self._parts.planner.state.draining:
            return "draining"
        return "ready" if readiness.ready else "starting"

    def policy(self) -> dict[str, Any]:
        return policy_facts(self._parts.planner.state)

    def hottest(self, limit: int) -> list[dict[str, Any]]:
        return hottest_blocks(self._parts.planner.state, limit)

    def faulted(self, limit: int) -> list[dict[str, Any]]:
        return faulted_blocks(self._parts.planner.state, limit, self._parts.engine.now_ns())

    async def story(self, key: BlockKey) -> list[dict[str, Any]]:
        """What the planner remembers of one block, oldest first; looked for in bounded pieces."""
        state, now_ns = self._parts.planner.state, self._parts.engine.now_ns()
        newest = list(islice(reversed(state.story), STORY_EVENTS_SCANNED_MAX))
        found = []
        for start in range(0, len(newest), STORY_EVENTS_PER_TURN_MAX):
            piece = newest[start : start + STORY_EVENTS_PER_TURN_MAX]
            found += [event for event in piece if event[1] == key]
            await asyncio.sleep(0)
        return [
            {"age_s": round((now_ns - at_ns) / 1e9, 3), "what": what, "tier": tier.name.lower(), "detail": detail}
            for at_ns, _, what, tier, detail in reversed(found)
        ]

    def explain(self, key: BlockKey) -> str:
        """One sentence: in which tiers the block is now."""
        indexes = self._parts.planner.state.indexes.values()
        blocks = [block for index in indexes if (block := index.blocks.get(key)) is not None]
        if not blocks:
            return "in no tier: it was never saved here, or every copy is gone"
        tiers = sorted({copy.tier for block in blocks for copy in block.copies()})
        return "in " + ", ".join(tier.name.lower() for tier in tiers)

    # ------------------------------------------------------------------- jobs

    def start_flush(self, to_tier: str, deadline_s: float) -> Job:
        """Copy everything down to a tier. Raises FlexKVError when there is no such tier, or the daemon drains."""
        tier = self._below(to_tier)
        self._check_admits("begins no flush")

        async def work(_progress: Progress) -> dict[str, Any]:
            return await self.flush(tier.name.lower(), deadline_s)

        return self.jobs.start("flush", {"to_tier": to_tier, "deadline_s": deadline_s}, work)

    async def flush(self, to_tier: str, deadline_s: float) -> dict[str, Any]:
        """Copy everything down; returns how many blocks were copied. Raises FlexKVError."""
        parts, tier = self._parts, self._below(to_tier)
        self._check_admits("begins no flush")
        ended: asyncio.Future[TicketFinished | RequestRefused] = asyncio.get_running_loop().create_future()
        number = parts.sessions.own_ticket(lambda end: None if ended.done() else ended.set_result(end))
        now_ns = parts.engine.now_ns()
        parts.engine.post(FlushAsked(0, number, None, tier, now_ns + int(deadline_s * 1e9), now_ns))
        end = await ended
        if isinstance(end, RequestRefused):
            raise FlexKVError(end.code, end.message)
        return {"stored": end.stored, "detail": end.detail}

    async def close(self) -> None:
        """Let listeners go and end all jobs."""
        self.feed.close()
        await self.jobs.close()

    def _below(self, word: str) -> Tier:
        tier = Tier[word.upper()]
        if tier not in self._parts.stores:
            raise FlexKVError(
                ErrorCode.TIER_UNAVAILABLE, f"this daemon is configured without {word}: name a tier it has"
            )
        return tier

    def _check_admits(self, what: str) -> None:
        if self._parts.readiness.draining:
            raise FlexKVError(ErrorCode.DRAINING, f"the daemon is stopping and {what}: ask again when it is back")


def job_facts(jobs: Jobs, job: Job) -> Mapping[str, Any]:
    """A job as an answer, now."""
    return job.facts(jobs.now_s())
