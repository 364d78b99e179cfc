"""The REST admin API: health, readiness, status, stories of blocks, flush, metrics.

Owns routes and the bearer token; everything it says comes from a `Control`. Imported when the worker
socket listens already, because FastAPI takes half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal, Protocol

import uvicorn
from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KEY_BYTES, BlockKey

FLUSH_S_DEFAULT = 60.0
FLUSH_S_MAX = 3600.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATUS_OF_CODE = {
    ErrorCode.BAD_ARGUMENT: 400,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.THROTTLED: 429,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.INTERNAL: 500,
}


class Control(Protocol):
    """What the API asks of the daemon."""

    def readiness(self) -> dict[str, object]: ...

    def status(self) -> dict[str, object]: ...

    def metrics_text(self) -> bytes: ...

    def story(self, key: BlockKey) -> list[dict[str, object]]: ...

    async def flush(self, to_tier: str, deadline_s: float) -> dict[str, object]: ...


class FlushBody(BaseModel):
    """Body of POST /v1/flush."""

    to_tier: Literal["ssd", "s3"] = "ssd"
    deadline_s: Annotated[float, Field(gt=0, le=FLUSH_S_MAX)] = FLUSH_S_DEFAULT


def make_app(control: Control, token: str) -> FastAPI:
    """The application. With a token, every route but /healthz asks for it as a bearer token."""
    app = FastAPI(title="flexkvd", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    _add_errors(app)
    if token:
        _add_token(app, token)

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """The process answers."""
        return {"alive": True}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """200 when every tier that can be reached is read in and the arena populated, else 503 and how far it is."""
        report = control.readiness()
        return JSONResponse(report, 200 if report["ready"] else 503)

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        """Tiers, sessions, links, counters: what runs and what is kept where."""
        return control.status()

    @app.get("/v1/blocks/{key}/story")
    async def story(key: Annotated[str, Path(pattern=f"^[0-9a-fA-F]{{{2 * KEY_BYTES}}}$")]) -> dict[str, Any]:
        """What happened to a block, oldest first, as far back as the ring of stories reaches."""
        return {"key": key.lower(), "events": control.story(BlockKey(bytes.fromhex(key)))}

    @app.post("/v1/flush")
    async def flush(body: FlushBody) -> dict[str, Any]:
        """Copy every block down to a tier; answers when that is done or the deadline has passed."""
        return await control.flush(body.to_tier, body.deadline_s)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(control.metrics_text(), media_type=METRICS_TYPE)

    return app


class ApiServer(uvicorn.Server):
    """uvicorn on the daemon's own loop; signals stay the daemon's."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_on(self, listener: socket.socket) -> None:
        """Serve until cancelled, and end the answers under way."""
        serving = asyncio.ensure_future(self.serve([listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.should_exit = True
            await serving
            raise


def _error(status: int, code: ErrorCode, message: str) -> JSONResponse:
    return JSONResponse({"code": code.value, "message": message}, status)


def _add_errors(app: FastAPI) -> None:
    async def coded(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, FlexKVError)
        return _error(_STATUS_OF_CODE.get(error.code, 503), error.code, error.message)

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return _error(400, ErrorCode.BAD_ARGUMENT, f"the request is not as /openapi.json says ({wrong[:300]})")

    async def http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return _error(error.status_code, ErrorCode.BAD_ARGUMENT, f"{error.detail}: see /openapi.json for what there is")

    app.add_exception_handler(FlexKVError, coded)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _add_token(app: FastAPI, token: str) -> None:
    expected = f"Bearer {token}".encode()

    @app.middleware("http")
    async def check(request: Request, forward: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("authorization", "").encode()
        if request.url.path != "/healthz" and not hmac.compare_digest(given, expected):
            return _error(401, ErrorCode.UNAUTHENTICATED, "send the API's token as 'Authorization: Bearer …'")
        return await forward(request)
