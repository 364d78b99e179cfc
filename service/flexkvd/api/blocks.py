"""Routes about single blocks: why one is where it is, and wishes about some of them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from flexkv_py.keys import BlockKey
from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.api.shapes import Key
from flexkvd.control import Operator


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["blocks"])

    @routes.get(
        "/blocks/{key}/story", summary="Why a block is where it is", response_model=shapes.Story, responses=failures()
    )
    async def story(key: Key) -> dict[str, Any]:
        """What happened to a block, oldest first, and one sentence: why it is or is not a hit now.

        Saved, promoted, demoted, evicted, faults, each with its tier and reason, as far back as `[limits]
        story_events_max` lines of all blocks reach. Never 404: that a block was never seen is an explanation.
        """
        known = BlockKey(bytes.fromhex(key))
        return {"key": key.lower(), "explanation": operator.explain(known), "events": await operator.story(known)}

    return routes
