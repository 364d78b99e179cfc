"""Long work as jobs: flush, evict, demote, prefetch, drain. What does it is `operations`; what counts it is `jobs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flexkv_py.core.messages import Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkvd.control.verify import Verification
from flexkvd.jobs import Job, Jobs, Progress
from flexkvd.operations import OPERATOR_DRAINS, OperationReport, Selection
from flexkvd.parts import Parts

Act = Callable[[Progress], Awaitable[OperationReport]]


class Work:
    """Starts jobs; each method returns at once. Raises FlexKVError where the daemon cannot do it now."""

    def __init__(self, parts: Parts, jobs: Jobs) -> None:
        self._parts = parts
        self._jobs = jobs
        self._operations = parts.operations

    def flush(self, to_tier: str, deadline_s: float) -> Job:
        """Copy everything down."""
        tier = self.below(to_tier)
        self._check_admits()

        async def work(progress: Progress) -> dict[str, Any]:
            report = await self._operations.flush(tier, deadline_s, progress.blocks)
            return {"stored": report.blocks, "detail": report.detail}

        return self._jobs.start("flush", {"to_tier": to_tier, "deadline_s": deadline_s}, work)

    def evict(self, tier_word: str, selection: Selection, deadline_s: float) -> Job:
        """Drop copies of a tier; what would be lost is demoted first."""
        tier = self._held(tier_word)

        async def act(progress: Progress) -> OperationReport:
            return await self._operations.evict(selection, tier, progress.blocks, deadline_s)

        return self._start("evict", {"tier": tier_word, **_said(selection), "deadline_s": deadline_s}, act)

    def demote(self, selection: Selection, to_tier: str, deadline_s: float) -> Job:
        """Give blocks a copy in a lower tier."""
        tier = self.below(to_tier)

        async def act(progress: Progress) -> OperationReport:
            return await self._operations.demote(selection, tier, deadline_s, progress.blocks)

        return self._start("demote", {"to_tier": to_tier, **_said(selection), "deadline_s": deadline_s}, act)

    def prefetch(self, keys: list[BlockKey], deadline_s: float) -> Job:
        """Give blocks a copy in DRAM."""
        self._check_admits()

        async def act(progress: Progress) -> OperationReport:
            return await self._operations.prefetch(keys, deadline_s, progress.blocks)

        return self._start("prefetch", {"keys": len(keys), "deadline_s": deadline_s}, act)

    def verify(self, tier_word: str) -> Job:
        """Read a whole tier again and check it."""
        tier = self._held(tier_word)

        async def work(progress: Progress) -> dict[str, Any]:
            return await Verification(self._parts, tier, progress).run()

        return self._jobs.start("verify", {"tier": tier_word}, work)

    def drain(self, deadline_s: float) -> Job:
        """Admit nothing new and wait for what runs."""

        async def work(progress: Progress) -> dict[str, Any]:
            began = self._parts.sessions.running
            progress.update(0, began, "tickets")
            left = await self._operations.drain(deadline_s)
            progress.update(max(0, began - left), began, "tickets")
            return {"running": left}

        return self._jobs.start("drain", {"deadline_s": deadline_s}, work)

    async def resume(self) -> None:
        """Undo a drain; jobs that wait for its end are over with it."""
        await self._operations.resume()
        for job in self._jobs.all():
            if job.kind == "drain" and not job.over:
                await self._jobs.cancel(job.number)

    def below(self, word: str) -> Tier:
        """A tier below DRAM. Raises FlexKVError(TIER_UNAVAILABLE) for one this daemon is configured without."""
        tier = Tier[word.upper()]
        if tier not in self._parts.stores:
            why = f"this daemon is configured without {word}: name a tier that /v1/tiers lists"
            raise FlexKVError(ErrorCode.TIER_UNAVAILABLE, why)
        return tier

    def _held(self, word: str) -> Tier:
        return Tier.DRAM if word == "dram" else self.below(word)

    def _start(self, kind: str, arguments: Mapping[str, Any], act: Act) -> Job:
        async def work(progress: Progress) -> dict[str, Any]:
            report = await act(progress)
            return {"blocks": report.blocks, "bytes": report.bytes, "kept": report.kept, "detail": report.detail}

        return self._jobs.start(kind, arguments, work)

    def _check_admits(self) -> None:
        readiness = self._parts.readiness
        if readiness.draining:
            cure = "resume it first" if readiness.drain_reason == OPERATOR_DRAINS else "ask again when it is back"
            raise FlexKVError(ErrorCode.DRAINING, f"nothing new is admitted ({readiness.drain_reason}): {cure}")


def _said(selection: Selection) -> dict[str, Any]:
    """A selection for people: how many keys, and what else was said."""
    words = {name: getattr(selection, name) for name in ("prefix", "tenant", "except_tenant", "bytes_max")}
    return {**({"keys": len(selection.keys)} if selection.keys else {}), **{k: v for k, v in words.items() if v}}
