"""Routes for long work: what starts it, how far it is, how it is stopped."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.api.looking import Number
from flexkvd.control import Operator
from flexkvd.jobs import Job


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["jobs"])
    starts: dict[str, Any] = {"status_code": 202, "response_model": shapes.Job, "responses": failures(403, 409, 413)}

    def said(job: Job) -> dict[str, Any]:
        return job.facts(operator.jobs.now_s())

    @routes.post("/flush", summary="Copy everything down to a tier", **starts)
    async def flush(body: shapes.FlushBody) -> dict[str, Any]:
        """A job that copies every block down, admission aside, until all is there or the deadline has passed.

        Its result: `stored` blocks, and `detail`, which is empty when all is there. 409 `draining` while the daemon
        stops, 409 `tier_unavailable` for a tier it has not.
        """
        return said(operator.start_flush(body.to_tier, body.deadline_s))

    @routes.get("/jobs", summary="All jobs", response_model=shapes.Jobs, responses=failures())
    async def jobs() -> dict[str, Any]:
        """Jobs that wait or run, and the last 100 that ended; the newest first."""
        return {"jobs": [said(job) for job in operator.jobs.all()]}

    @routes.get("/jobs/{number}", summary="One job", response_model=shapes.Job, responses=failures(404))
    async def job(number: Number) -> dict[str, Any]:
        """How far a job is, and what came of it."""
        return said(operator.jobs.get(number))

    @routes.delete(
        "/jobs/{number}", summary="Cancel a job", response_model=shapes.Job, responses=failures(403, 404, 409)
    )
    async def cancel_job(number: Number) -> dict[str, Any]:
        """Ends a job and answers when it has ended; what it did until then stays done. 409 when it has ended before."""
        return said(await operator.jobs.cancel(number))

    return routes
