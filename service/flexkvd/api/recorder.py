"""Routes of the flight recorder: what it holds, and a dump to be replayed elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.control import Operator

DUMP_TYPE = "application/octet-stream"


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1/recorder", tags=["recorder"])

    @routes.get("", summary="What the flight recorder holds", response_model=shapes.RecorderFacts, responses=failures())
    async def recorder() -> dict[str, Any]:
        """How many events, since when, and whether that is everything since the start."""
        return operator.recorder.facts()

    dumped: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "A file for `flexkv replay-record`.",
            "content": {DUMP_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    }

    @routes.post(
        "/dump",
        summary="Dump the flight recorder",
        response_class=Response,
        responses={**failures(501), **dumped},
    )
    async def dump_recorder() -> Response:
        """All that the ring holds, as a file. It names the blocks of every tenant, so an admin's token is asked for.

        With up to 50,000 blocks the daemon stands still for up to half a second, while the digest of its state is
        taken; with more there is none. 501 `unsupported` where `[recorder] bytes` is 0.
        """
        whole = operator.recorder.dump()
        named = {"Content-Disposition": 'attachment; filename="flexkvd.record"'}
        return Response(whole, media_type=DUMP_TYPE, headers=named)

    return routes
