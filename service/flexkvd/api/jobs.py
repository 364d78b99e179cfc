"""Routes for long work: what starts it, how far it is, how it is stopped."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from flexkvd.api import shapes
from flexkvd.api.blocks import key_of
from flexkvd.api.errors import failures
from flexkvd.api.looking import Number
from flexkvd.control import Operator
from flexkvd.jobs import Job
from flexkvd.operations import Selection

STARTS: dict[str, Any] = {"status_code": 202, "response_model": shapes.Job, "responses": failures(409, 413)}


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["jobs"])
    _add_moves(routes, operator)
    _add_daemon(routes, operator)
    _add_jobs(routes, operator)
    return routes


def _said(operator: Operator, job: Job) -> dict[str, Any]:
    return job.facts(operator.jobs.now_s())


def _selection(body: shapes.Selecting, bytes_max: int = 0) -> Selection:
    keys = tuple(dict.fromkeys(key_of(key) for key in body.keys))
    return Selection(keys, body.prefix, body.tenant, body.except_tenant, bytes_max)


def _add_moves(routes: APIRouter, operator: Operator) -> None:
    @routes.post("/flush", summary="Copy everything down to a tier", **STARTS)
    async def flush(body: shapes.FlushBody) -> dict[str, Any]:
        """A job that copies every block down, admission aside, until all is there or the deadline has passed.

        Its result: `stored` blocks, and `detail`, which is empty when all is there. 409 `draining` while the daemon
        drains, 409 `tier_unavailable` for a tier it has not.
        """
        return _said(operator, operator.work.flush(body.to_tier, body.deadline_s))

    @routes.post("/evict", summary="Drop copies from a tier", **STARTS)
    async def evict(body: shapes.EvictBody) -> dict[str, Any]:
        """A job that drops copies from a tier, the coldest first; what would be lost is demoted before.

        Pinned, leased and read copies stay. Its result: `blocks` dropped, of `bytes`, `kept`, and why (`detail`).
        Without `keys` copies that are being read or written stand in no order, and are not counted.
        """
        return _said(operator, operator.work.evict(body.tier, _selection(body, body.bytes), body.deadline_s))

    @routes.post("/demote", summary="Copy blocks down", **STARTS)
    async def demote(body: shapes.DemoteBody) -> dict[str, Any]:
        """A job that gives blocks a copy in a lower tier, admission aside; the one above stays, ready to go.

        Its result: `blocks` written, of `bytes`, `kept`, and why (`detail`).
        """
        return _said(operator, operator.work.demote(_selection(body), body.to_tier, body.deadline_s))

    @routes.post("/prefetch", summary="Bring blocks into DRAM", **STARTS)
    async def prefetch(body: shapes.PrefetchBody) -> dict[str, Any]:
        """A job that promotes blocks, in whatever namespace. 409 `draining` while the daemon drains.

        Its result: `blocks` that are in DRAM now, of `bytes`, `kept` where they were, and why (`detail`).
        """
        keys = list(dict.fromkeys(key_of(key) for key in body.keys))
        return _said(operator, operator.work.prefetch(keys, body.deadline_s))


def _add_daemon(routes: APIRouter, operator: Operator) -> None:
    @routes.post("/verify", summary="Check a tier", **STARTS)
    async def verify(body: shapes.VerifyBody) -> dict[str, Any]:
        """A job that reads every whole copy of a tier again and checks it, one at a time, after loads that wait.

        What is damaged is a miss from then on: the planner lets go of it and has its record dropped. Its result:
        `checked` copies of `bytes`, `damaged` (missing ones too), and `unreadable` ones that stay where they are.
        """
        return _said(operator, operator.work.verify(body.tier))

    @routes.post("/drain", summary="Admit nothing new", **STARTS)
    async def drain(body: shapes.DrainBody) -> dict[str, Any]:
        """From now on no load, save or prefetch is admitted; the job ends when all that run have ended, or in time.

        `/readyz` is 503 until `POST /v1/resume`. Its result: how many tickets still are `running`.
        """
        return _said(operator, operator.work.drain(body.deadline_s))

    @routes.post("/resume", summary="Undo a drain", response_model=shapes.State, responses=failures(409))
    async def resume() -> dict[str, Any]:
        """Everything is admitted again. 409 `draining` when the daemon is stopping, which cannot be undone."""
        await operator.work.resume()
        return {"state": operator.state()}


def _add_jobs(routes: APIRouter, operator: Operator) -> None:
    @routes.get("/jobs", summary="All jobs", response_model=shapes.Jobs, responses=failures())
    async def jobs() -> dict[str, Any]:
        """Jobs that wait or run, and the last 100 that ended; the newest first."""
        return {"jobs": [_said(operator, job) for job in operator.jobs.all()]}

    @routes.get("/jobs/{number}", summary="One job", response_model=shapes.Job, responses=failures(404))
    async def job(number: Number) -> dict[str, Any]:
        """How far a job is, and what came of it."""
        return _said(operator, operator.jobs.get(number))

    @routes.delete("/jobs/{number}", summary="Cancel a job", response_model=shapes.Job, responses=failures(404, 409))
    async def cancel_job(number: Number) -> dict[str, Any]:
        """Ends a job and answers when it has ended; what it did until then stays done. 409 when it has ended before."""
        return _said(operator, await operator.jobs.cancel(number))
