"""Routes for those who watch over the daemon: alive, ready, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from flexkvd.api.errors import failures
from flexkvd.api.shapes import Alive, Readiness
from flexkvd.control import Operator

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METRICS_EXAMPLE = "# HELP flexkv_ready 1 when ready.\n# TYPE flexkv_ready gauge\nflexkv_ready 1.0\n"


def router(operator: Operator) -> APIRouter:
    """Open to all but /metrics, and free of the rate limit."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="Whether the process answers", openapi_extra={"security": []})
    async def healthz() -> Alive:
        """200 while the daemon's loop runs. Needs no token."""
        return Alive(alive=True)

    @routes.get(
        "/readyz",
        summary="Whether it is ready",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not ready; `reasons` says what is awaited."}},
        openapi_extra={"security": []},
    )
    async def readyz() -> JSONResponse:
        """200 when the arena is populated and every tier that can be reached is read in, else 503.

        `degraded` names what the daemon serves without for now, and why (a tier that is down or refuses us, or is read
        in late; `resets`, with what they wait for). It is 200 all the same: a tier down is a smaller cache. Needs no
        token.
        """
        report = operator.readiness()
        return JSONResponse(report, 200 if report["ready"] else 503)

    text: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "Prometheus text.",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": _METRICS_EXAMPLE}},
        }
    }

    @routes.get("/metrics", summary="Numbers for Prometheus", response_class=Response, responses={**failures(), **text})
    async def metrics() -> Response:
        """Prometheus text; docs/metrics.md explains every family."""
        return Response(operator.metrics_text(), media_type=METRICS_TYPE)

    return routes
