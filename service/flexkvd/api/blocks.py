"""Routes about single blocks: which there are, why one is where it is, and what shall stay."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from flexkv_py.keys import KEY_BYTES, BlockKey
from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.api.shapes import Key
from flexkvd.api.shapes.base import PREFIX_PATTERN
from flexkvd.control import Operator

LIMIT_MAX = 500
Prefix = Annotated[str, Query(pattern=PREFIX_PATTERN, description="First digits of the keys, hex.")]
After = Annotated[
    str, Query(pattern=f"^([0-9a-fA-F]{{{2 * KEY_BYTES}}})?$", description="`next` of the page before; empty: begin.")
]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Keys in one page.")]


def key_of(text: str) -> BlockKey:
    """A key out of its digits, which were checked."""
    return BlockKey(bytes.fromhex(text))


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["blocks"])
    _add_looking(routes, operator)
    _add_pins(routes, operator)
    return routes


def _add_looking(routes: APIRouter, operator: Operator) -> None:
    @routes.get("/blocks", summary="Blocks by their keys", response_model=shapes.BlockPage, responses=failures())
    async def blocks(prefix: Prefix = "", after: After = "", limit: Limit = 100) -> dict[str, Any]:
        """The blocks whose keys begin with `prefix`, in order of their keys, page by page.

        A page is put together in slices, so a block that comes or goes meanwhile may be there or not.
        """
        return await operator.blocks.page(prefix, key_of(after) if after else None, limit)

    @routes.get("/blocks/{key}", summary="One block", response_model=shapes.BlockDetail, responses=failures(404))
    async def block(key: Key) -> dict[str, Any]:
        """A block in every namespace and shard that has it; 404 when none has."""
        return operator.blocks.one(key_of(key))

    @routes.get(
        "/blocks/{key}/story", summary="Why a block is where it is", response_model=shapes.Story, responses=failures()
    )
    async def story(key: Key) -> dict[str, Any]:
        """What happened to a block, oldest first, and one sentence: why it is or is not a hit now.

        Saved, promoted, demoted, evicted, faults, each with its tier and reason, as far back as `[limits]
        story_events_max` lines of all blocks reach. Never 404: that a block was never seen is an explanation.
        """
        return await operator.blocks.story(key_of(key))


def _add_pins(routes: APIRouter, operator: Operator) -> None:
    @routes.get("/pins", summary="What is pinned", response_model=shapes.Pins, responses=failures())
    async def pins() -> dict[str, Any]:
        """Blocks the operator pinned, where, and until when."""
        return operator.blocks.pins()

    @routes.post("/pins", summary="Pin blocks", response_model=shapes.PinReport, responses=failures(409, 413))
    async def pin(body: shapes.PinBody) -> dict[str, Any]:
        """Forbid eviction of every copy these blocks have now, until `ttl_s` is over; pinned again, it counts anew.

        All or none: 409 `limit_exceeded` beyond `[limits] pins_max` or `pinned_share_max` of DRAM. A key no tier has
        is `missing`, and no failure.
        """
        return await operator.blocks.pin([key_of(key) for key in body.keys], body.ttl_s)

    @routes.post("/unpin", summary="Let pinned blocks go", response_model=shapes.UnpinReport, responses=failures(413))
    async def unpin(body: shapes.UnpinBody) -> dict[str, Any]:
        """End pins before their time; a key that is not pinned is no failure."""
        return {"unpinned": await operator.blocks.unpin([key_of(key) for key in body.keys])}
