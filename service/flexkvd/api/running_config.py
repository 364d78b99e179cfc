"""Routes of the running configuration: what is in force and where it came from, and changes without a restart."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from flexkvd.api import shapes
from flexkvd.api.errors import failures
from flexkvd.api.shapes.configuration import ConfigurationBody
from flexkvd.control import Operator


def router(operator: Operator) -> APIRouter:
    """See the module's docstring."""
    routes = APIRouter(prefix="/v1", tags=["configuration"])

    @routes.get(
        "/config", summary="The running configuration", response_model=shapes.Configuration, responses=failures()
    )
    async def config() -> dict[str, Any]:
        """Every key with its value, its default, where the value came from, and whether it may change live.

        Paths of token and key files are shown, what is in them never.
        """
        return {"tables": operator.settings.describe()}

    @routes.patch(
        "/config",
        summary="Change it without a restart",
        response_model=shapes.ConfigurationChange,
        responses=failures(413),
    )
    async def change_config(body: ConfigurationBody) -> dict[str, Any]:
        """Sets keys, all of them or none; null gives a key back to the file. Lasts until the file says something new.

        400 `bad_config` for a key that there is not, that waits for a restart, or whose table is not configured.
        """
        changed = operator.settings.change(body.model_dump(exclude_unset=True))
        return {"changed": changed, "config": {"tables": operator.settings.describe()}}

    return routes
