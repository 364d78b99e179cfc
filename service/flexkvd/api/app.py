"""The application: every route of the REST API behind one guard."""

from __future__ import annotations

from functools import partial
from typing import cast

from fastapi import FastAPI
from fastapi.routing import APIRoute

import flexkv_py
from flexkvd.api import blocks, dashboard, errors, health, jobs, looking, recorder, running_config, tenants
from flexkvd.api.description import describe
from flexkvd.api.guard import Guard
from flexkvd.api.limits import ApiLimits
from flexkvd.api.tokens import Tokens
from flexkvd.control import Operator

ROUTERS = (
    health.router,
    looking.router,
    blocks.router,
    jobs.router,
    tenants.router,
    running_config.router,
    recorder.router,
    dashboard.router,
)
DESCRIPTION = """\
Looks into a running flexkvd and tells it what an operator wants. Errors are a status with `{"code", "message"}`;
docs/errors.md has cause and cure of each code. With tokens configured, `Authorization: Bearer …` is asked for: a token
of the role `read` may GET, one of the role `admin` may do everything.
"""


def make_app(
    operator: Operator | None, tokens: Tokens | None = None, limits: ApiLimits | None = None, listens_on: str = ""
) -> FastAPI:
    """Everything `operator` says and does, over HTTP at `[api] host`. Without an operator it can only be described.

    Takes a third of a second of CPU and touches nothing of the operator: a thread may do it.
    """
    app = FastAPI(
        title="flexkvd",
        version=flexkv_py.__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    routers = [router(cast(Operator, operator)) for router in ROUTERS]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    errors.add_handlers(app, routes)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    for router in routers:
        app.include_router(router)
    app.add_middleware(Guard, tokens=tokens or Tokens(), limits=limits or ApiLimits(), listens_on=listens_on)
    for route in app.routes:  # else FastAPI completes them at the first request, which holds up the daemon's loop
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})
    return app
