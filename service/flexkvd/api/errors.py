"""Failures as answers: which status a code has, and what each route says it may answer.

5xx means that something is broken. What the daemon cannot do in its present state (a tier it has not, a drain) is 409:
asking again does not help before that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.api.shapes import Failure

STATUS_OF_CODE = {
    ErrorCode.BAD_ARGUMENT: 400,
    ErrorCode.BAD_KEY: 400,
    ErrorCode.DUPLICATE_KEY: 400,
    ErrorCode.BAD_CONFIG: 400,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.DRAINING: 409,
    ErrorCode.NOT_READY: 409,
    ErrorCode.TIER_UNAVAILABLE: 409,
    ErrorCode.LIMIT_EXCEEDED: 409,
    ErrorCode.CANCELLED: 409,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.THROTTLED: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.DEADLINE_EXCEEDED: 504,
}
_CODE_OF_STATUS = {404: ErrorCode.NOT_FOUND, 413: ErrorCode.MESSAGE_TOO_LARGE}
_MEANINGS = {
    400: ("The request is not as described here.", "bad_argument", "deadline_s: Input should be greater than 0"),
    401: ("No token, or one that is not known.", "unauthenticated", "send a token of the token file"),
    403: (
        "The token's role may not do this, or another site's page asks.",
        "forbidden",
        "this token may read only: use one of the role admin",
    ),
    404: ("There is none of that name.", "not_found", "there is no job 7, or it ended long ago"),
    409: ("The daemon's present state does not allow it.", "tier_unavailable", "this daemon is configured without s3"),
    413: ("The body is too large.", "message_too_large", "the body has more than 1048576 bytes: send fewer keys"),
    429: ("Too much at once; see Retry-After.", "throttled", "more than 200 requests a second: ask less often"),
    501: ("This daemon is configured without it.", "unsupported", "the flight recorder is off: set [recorder] bytes"),
    503: ("Not ready.", "not_ready", "wait until /readyz answers 200"),
}
ALWAYS = (400, 401, 403, 429)
"""What every route but those open to all may answer."""


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failing answers of a route, for its description: those of every route, and these."""
    return {status: described(status) for status in sorted({*ALWAYS, *statuses})}


def described(status: int) -> dict[str, Any]:
    """One failing answer of a route, with an example."""
    meaning, code, message = _MEANINGS[status]
    example = {"code": code, "message": message}
    headers: dict[str, Any] = {}
    if status == 429:
        headers["Retry-After"] = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
    if status == 401:
        headers["WWW-Authenticate"] = {"description": "How to send a token.", "schema": {"type": "string"}}
    return {
        "model": Failure,
        "description": meaning,
        "content": {"application/json": {"example": example}},
        **({"headers": headers} if headers else {}),
    }


def answer(error: FlexKVError, status: int | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    """A coded error as an answer."""
    said = dict(headers or {})
    status = status or STATUS_OF_CODE.get(error.code, 500)
    if status == 429:
        said["Retry-After"] = str(max(1, ceil(error.retry_after_s or 1.0)))
    if status == 401:
        said["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"code": error.code.value, "message": error.message}, status, said)


def add_handlers(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Every failure, expected or not, is answered in one form; of a wrong method, with all that the path knows."""
    handlers: dict[type[Exception], Callable[[Any, Any], Any]] = {
        FlexKVError: _coded,
        RequestValidationError: _invalid,
        HTTPException: partial(_http, routes),
        Exception: _bug,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


async def _coded(_request: Request, error: FlexKVError) -> JSONResponse:
    return answer(error)


async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    why = f"the request is not as /openapi.json says ({wrong[:300]}): correct what is named"
    return answer(FlexKVError(ErrorCode.BAD_ARGUMENT, why))


async def _http(routes: Sequence[APIRoute], request: Request, error: HTTPException) -> JSONResponse:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        first = next(route for route in routes if route.path_regex.match(request.scope["path"]))
        known = {method for each in routes if each.path == first.path for method in each.methods or ()}
        headers["Allow"] = ", ".join(sorted(known))
    code = _CODE_OF_STATUS.get(error.status_code, ErrorCode.BAD_ARGUMENT)
    why = FlexKVError(code, f"{error.detail}: see /openapi.json for what there is")
    return answer(why, error.status_code, headers)


async def _bug(_request: Request, _error: Exception) -> JSONResponse:
    why = "the daemon met a bug: report it with its log, which has the traceback"
    return answer(FlexKVError(ErrorCode.INTERNAL, why))
