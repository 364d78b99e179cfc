"""Long work an operator asked for: started, watched, cancelled, remembered for a while.

Owns how many run at a time and what is kept of those that ended; knows nothing of what a job does. Started by
`control`, which gives it a coroutine; every change is told to whoever listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault

log = logging.getLogger(__name__)

JOBS_WAITING_MAX = 64
JOBS_KEPT_MAX = 100
"""Ended jobs that can still be asked about."""
TELL_S_MIN = 0.25
"""Progress of one job is told no more often than this."""
CANCEL_S_MAX = 5.0
"""How long a cancellation waits for the job's end before it answers all the same."""


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


@dataclass(slots=True, eq=False)
class Job:
    """One piece of long work. Times are of the loop's clock, in seconds."""

    number: int
    kind: str
    arguments: Mapping[str, Any]
    asked_s: float
    state: JobState = JobState.QUEUED
    done: int = 0
    total: int = 0
    unit: str = "blocks"
    began_s: float | None = None
    ended_s: float | None = None
    result: dict[str, Any] | None = None
    error: FlexKVError | None = None
    told_s: float = 0.0
    task: asyncio.Task[dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.state in ENDED

    def facts(self, now_s: float) -> dict[str, Any]:
        """The job as an answer."""
        took_s = None if self.ended_s is None or self.began_s is None else round(self.ended_s - self.began_s, 3)
        error = self.error
        return {
            "id": self.number,
            "kind": self.kind,
            "state": self.state.value,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "age_s": round(now_s - self.asked_s, 3),
            "took_s": took_s,
            "result": self.result,
            "error": None if error is None else {"code": error.code.value, "message": error.message},
            "arguments": dict(self.arguments),
        }


class Progress:
    """How a job says how far it is."""

    def __init__(self, update: Callable[[int, int, str], None]) -> None:
        self.update = update

    def blocks(self, done: int, total: int) -> None:
        """So many of so many blocks; `total` may grow."""
        self.update(done, total, "blocks")


Work = Callable[[Progress], Awaitable[dict[str, Any]]]
"""Does the job and returns its result; raises FlexKVError or TierFault. Cancelled, it cleans up and lets it pass."""


class Jobs:
    """All jobs of this life of the daemon, by number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, running_max: int) -> None:
        self.on_changed: Callable[[Job], None] = lambda _job: None
        self._loop = loop
        self._running_max = running_max
        self._by_number: dict[int, Job] = {}  # in order of their numbers
        self._waiting: deque[tuple[Job, Work]] = deque()
        self._running = 0
        self._ended: deque[int] = deque()
        self._made = 0
        self._closed = False

    def start(self, kind: str, arguments: Mapping[str, Any], work: Work) -> Job:
        """Begin, or wait for a turn. Raises FlexKVError(LIMIT_EXCEEDED) when too many wait."""
        if len(self._waiting) >= JOBS_WAITING_MAX or self._closed:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{len(self._waiting)} jobs wait for {self._running} that run already: cancel some (DELETE "
                "/v1/jobs/…), or ask again when some have ended",
            )
        self._made += 1
        job = self._by_number[self._made] = Job(self._made, kind, arguments, self._loop.time())
        self._waiting.append((job, work))
        self._start_next()
        return job

    def all(self) -> list[Job]:
        """The newest first."""
        return list(reversed(self._by_number.values()))

    def get(self, number: int) -> Job:
        """Raises FlexKVError(NOT_FOUND)."""
        job = self._by_number.get(number)
        if job is None:
            raise FlexKVError(
                ErrorCode.NOT_FOUND, f"there is no job {number}, or it ended long ago: /v1/jobs lists those kept"
            )
        return job

    async def cancel(self, number: int) -> Job:
        """Ask for its end and wait for it, `CANCEL_S_MAX` at most. Raises FlexKVError(CONFLICT) when it has ended."""
        job = self.get(number)
        if job.over:
            raise FlexKVError(
                ErrorCode.CONFLICT, f"job {number} is {job.state.value} already: nothing is left to cancel"
            )
        if job.task is None:
            self._waiting = deque((each, work) for each, work in self._waiting if each is not job)
            self._end(job, JobState.CANCELLED)
            return job
        job.task.cancel()
        await asyncio.wait([job.task], timeout=CANCEL_S_MAX)
        return job

    async def close(self) -> None:
        """Cancel all, and wait for the ends of those that run."""
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for job, _ in waiting:
            self._end(job, JobState.CANCELLED)
        running = [job.task for job in self._by_number.values() if job.task is not None and not job.over]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def now_s(self) -> float:
        return self._loop.time()

    def _start_next(self) -> None:
        while self._waiting and self._running < self._running_max:
            job, work = self._waiting.popleft()
            self._running += 1
            job.state, job.began_s = JobState.RUNNING, self._loop.time()
            self._tell(job)
            progress = Progress(partial(self._advance, job))
            job.task = self._loop.create_task(_run(work, progress))
            job.task.add_done_callback(partial(self._task_ended, job))

    def _advance(self, job: Job, done: int, total: int, unit: str) -> None:
        job.done, job.total, job.unit = done, total, unit
        if self._loop.time() - job.told_s >= TELL_S_MIN:
            self._tell(job)

    def _task_ended(self, job: Job, task: asyncio.Task[dict[str, Any]]) -> None:
        self._running -= 1
        if task.cancelled():
            self._end(job, JobState.CANCELLED)
        elif (error := task.exception()) is None:
            job.result = task.result()
            self._end(job, JobState.DONE)
        else:
            job.error = _coded(job, error)
            self._end(job, JobState.FAILED)
        if not self._closed:
            self._start_next()

    def _end(self, job: Job, state: JobState) -> None:
        job.state, job.ended_s = state, self._loop.time()
        self._ended.append(job.number)
        while len(self._ended) > JOBS_KEPT_MAX:
            del self._by_number[self._ended.popleft()]
        self._tell(job)

    def _tell(self, job: Job) -> None:
        job.told_s = self._loop.time()
        self.on_changed(job)


async def _run(work: Work, progress: Progress) -> dict[str, Any]:
    return await work(progress)


def _coded(job: Job, error: BaseException) -> FlexKVError:
    """What ended a job, as an error a person can read; a bug is in the log with its traceback."""
    if isinstance(error, FlexKVError):
        return error
    if isinstance(error, TierFault):
        return FlexKVError(
            ErrorCode.TIER_UNAVAILABLE, f"the tier failed ({error.fault.value}: {error.detail}): see /v1/tiers"
        )
    log.error("a bug in job %d (%s)", job.number, job.kind, exc_info=error)
    return FlexKVError(ErrorCode.INTERNAL, "the job met a bug: the daemon's log has the traceback")
