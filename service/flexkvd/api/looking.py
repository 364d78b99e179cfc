"""Routes that look: status, tiers, sessions, policy, samples, events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.api.shapes import TierWord
from flexkvd.control import Operator
from flexkvd.control.samples import PERIOD_S, SAMPLES_MAX
from flexkvd.faults import RECENT_MAX

EVENTS_TYPE = "text/event-stream"
_EVENTS_EXAMPLE = 'event: job\ndata: {"id": 12, "kind": "flush", "state": "running"}\n\n'
_NO_STORE = {"Cache-Control": "no-store"}
Number = Annotated[int, Path(ge=1, le=(1 << 53) - 1, description="Its number.")]
LastSeconds = Annotated[
    float, Query(gt=0, le=SAMPLES_MAX * PERIOD_S, allow_inf_nan=False, description="How far back, in seconds.")
]
FaultLimit = Annotated[int, Query(ge=1, le=RECENT_MAX, description="At most so many.")]


def router(operator: Operator) -> APIRouter:
    """Every route reads counters; none scans the cache."""
    routes = APIRouter(prefix="/v1", tags=["looking"])
    _add_facts(routes, operator)
    _add_history(routes, operator)
    return routes


def _add_facts(routes: APIRouter, operator: Operator) -> None:
    @routes.get("/status", summary="The daemon at a glance", response_model=shapes.Status, responses=failures())
    async def status() -> dict[str, Any]:
        """Tiers, sessions, links and counters: what runs, and what is kept where.

        `resets`: how many are `outstanding` (the oldest for `oldest_s`), how many of them wait for `s3` and for
        `known blocks` to be gone, and how many `outlive_restart` because they are written down.
        """
        return operator.status()

    @routes.get("/tiers", summary="All tiers", response_model=shapes.Tiers, responses=failures())
    async def tiers() -> dict[str, Any]:
        """Occupancy, links, latencies, breaker and wear of every tier this daemon has."""
        return {"tiers": operator.tiers.all()}

    @routes.get("/tiers/{tier}", summary="One tier", response_model=shapes.Tier, responses=failures(404))
    async def tier(tier: TierWord) -> dict[str, Any]:
        """Occupancy, links, latencies, breaker and wear; 404 for a tier this daemon is configured without."""
        return operator.tiers.one(tier)

    @routes.get("/sessions", summary="Connected clients", response_model=shapes.Sessions, responses=failures())
    async def sessions() -> dict[str, Any]:
        """Everybody who said hello; also who is gone, while its last copies run or its process may read rows."""
        return {"sessions": operator.sessions.all()}

    @routes.get(
        "/sessions/{number}", summary="One client", response_model=shapes.SessionDetail, responses=failures(404)
    )
    async def session(number: Number) -> dict[str, Any]:
        """A client with its memories, leases, running tickets and requests of the row path."""
        return operator.sessions.one(number)

    @routes.get("/policy", summary="Policies at work", response_model=shapes.Policy, responses=failures())
    async def policy() -> dict[str, Any]:
        """Where copies stand in the eviction orders, what admits blocks below, what the row policy guessed rightly."""
        return operator.policy()


def _add_history(routes: APIRouter, operator: Operator) -> None:
    @routes.get("/samples", summary="The last minutes", response_model=shapes.Samples, responses=failures())
    async def samples(last_s: LastSeconds = SAMPLES_MAX * PERIOD_S) -> Response:
        """One sample a second, kept for a quarter of an hour: running totals, whose differences are rates."""
        whole = b'{"samples":%b}' % operator.sampler.since(last_s)
        return Response(whole, media_type="application/json", headers=_NO_STORE)

    @routes.get("/faults", summary="What went wrong lately", response_model=shapes.Faults, responses=failures())
    async def faults(limit: FaultLimit = 100) -> dict[str, Any]:
        """Failed transfers, tiers that went down, coded errors, sessions ended; newest first, of a kind together."""
        return {"faults": operator.faults.recent(limit)}

    stream: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "A stream that ends with the daemon, or when the client lets go.",
            "content": {EVENTS_TYPE: {"schema": {"type": "string"}, "example": _EVENTS_EXAMPLE}},
        }
    }

    @routes.get(
        "/events",
        summary="What happens, as it happens",
        response_class=StreamingResponse,
        responses={**failures(), **stream},
    )
    async def events() -> StreamingResponse:
        """Server-sent events: `sample` once a second, `job` when one changes, `fault` when something goes wrong.

        `data` is a Sample, a Job or a Fault. A comment comes every 15 seconds of silence. At most 16 listen at a time;
        who reads too slowly loses the oldest events.
        """
        return StreamingResponse(operator.feed.listen(), media_type=EVENTS_TYPE, headers=_NO_STORE)
