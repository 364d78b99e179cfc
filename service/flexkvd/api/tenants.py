"""Routes about tenants: what each uses, and what it may use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path

from flexkv_py.tenants.owner import Quota
from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.config import NAME_CHARS_MAX
from flexkvd.control import Operator
from flexkvd.tenants import TenantFacts

Name = Annotated[str, Path(max_length=NAME_CHARS_MAX, description="The tenant's name, as its sessions say it.")]


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["tenants"])

    @routes.get("/tenants", summary="All tenants", response_model=shapes.Tenants, responses=failures())
    async def tenants() -> dict[str, Any]:
        """Every tenant that has a quota, a session or a block here."""
        return {"tenants": [_shown(facts) for facts in operator.tenants.list()]}

    @routes.put(
        "/tenants/{tenant:path}/quota",
        summary="Set a quota",
        response_model=shapes.Tenant,
        responses=failures(409, 413),
    )
    async def put_quota(tenant: Name, body: shapes.QuotaBody) -> dict[str, Any]:
        """What a tenant may use, from now on and over restarts; it goes before what the configuration says.

        What is above it begins to leave, coldest first: below, where there is room, else for good; beside a load, and
        where the quota below is lowered too, that takes seconds. Nothing is added meanwhile.
        """
        return _shown(await operator.tenants.put(tenant, Quota(**body.model_dump())))

    @routes.delete(
        "/tenants/{tenant:path}/quota",
        summary="Take a quota away",
        response_model=shapes.Tenant,
        responses=failures(404, 409),
    )
    async def delete_quota(tenant: Name) -> dict[str, Any]:
        """Back to what the configuration says of the tenant; 404 when nothing is known of it."""
        return _shown(await operator.tenants.delete(tenant))

    @routes.get("/tenants/{tenant:path}", summary="One tenant", response_model=shapes.Tenant, responses=failures(404))
    async def one_tenant(tenant: Name) -> dict[str, Any]:
        """404 when it has no session, no block and no quota here."""
        return _shown(operator.tenants.get(tenant))

    return routes


def _shown(facts: TenantFacts) -> dict[str, Any]:
    asked = facts.hits + facts.misses
    return asdict(facts) | {"hit_ratio": facts.hits / asked if asked else None}
