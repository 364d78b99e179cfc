"""The operator's desk: all answers of the REST API, composed from one module per noun.

Owns no state of the cache: it reads what the parts count, and what it changes it asks of the planner like anyone else.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import flexkv_py
from flexkvd.api.limits import ApiLimits
from flexkvd.api.table import ApiTable
from flexkvd.config import Config
from flexkvd.control.blocks import Blocks
from flexkvd.control.feed import Feed
from flexkvd.control.notable import Notable
from flexkvd.control.policies import policy_facts
from flexkvd.control.samples import Sampler
from flexkvd.control.sessions import SessionFacts
from flexkvd.control.tiers import Tiers
from flexkvd.control.work import Work
from flexkvd.facts import by_name, facts_of
from flexkvd.jobs import Jobs
from flexkvd.measures import Measures
from flexkvd.metrics import Metrics
from flexkvd.parts import Parts


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
        self.notable = Notable(parts)
        self.sampler = Sampler(parts, self.tiers, self.feed)
        self.limits = ApiLimits(table.requests_per_s_max, table.body_bytes_max)
        self.jobs = Jobs(asyncio.get_running_loop(), table.jobs_running_max)
        self.settings = parts.settings
        self.settings.listen(self._adopt)
        self.faults = parts.faults
        self.recorder = parts.recorder
        self.tenants = parts.tenants
        self.blocks = Blocks(parts)
        self.work = Work(parts, self.jobs)
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
            "counters": by_name(parts.planner.counters),
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

    def _adopt(self, config: Config) -> None:
        self.limits.requests_per_s_max = config.api.requests_per_s_max
        self.limits.body_bytes_max = config.api.body_bytes_max

    async def close(self) -> None:
        """Let listeners go and end all jobs."""
        self.feed.close()
        await self.jobs.close()
