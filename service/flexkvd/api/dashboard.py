"""The dashboard: its files, and the one question nobody else asks, which blocks are worth a look.

Owns how the files are served. They hold no data, so they need no token; what they show they ask of the other routes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.api.errors import failures
from flexkvd.api.shapes.notable import Notable
from flexkvd.control import Operator
from flexkvd.control.notable import NOTABLE_MAX

INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing from elsewhere, no code within the page, and nobody may frame it or send its forms away.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and answered 304: an upgrade shows at once
}
Limit = Annotated[int, Query(ge=1, le=NOTABLE_MAX, description="Blocks of each kind.")]


@dataclass(frozen=True)
class File:
    """One file of the dashboard, ready to be sent."""

    body: bytes
    media_type: str
    tag: str


def router(operator: Operator) -> APIRouter:
    """The page at `/`, its files below `/dashboard`, and `/v1/notable`."""
    routes = APIRouter(tags=["dashboard"])
    named = read_files()

    @routes.get("/", include_in_schema=False)
    async def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        """The dashboard. Needs no token."""
        return _answer(named[INDEX], if_none_match)

    @routes.get("/dashboard/{name}", include_in_schema=False)
    async def page_file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        """A file of the dashboard. Needs no token."""
        if name not in named:
            raise FlexKVError(ErrorCode.NOT_FOUND, f"the dashboard has no file {name[:40]!r}: begin at /")
        return _answer(named[name], if_none_match)

    @routes.get("/v1/notable", summary="Blocks worth a look", response_model=Notable, responses=failures())
    async def notable(limit: Limit = 10) -> dict[str, Any]:
        """The hottest blocks, and those that met a fault last.

        Hottest: the most often used of those used again most recently, a bounded number of each tier. Faults: as far
        back as stories reach.
        """
        return {"hottest": operator.notable.hottest(limit), "faulted": operator.notable.faulted(limit)}

    return routes


def read_files() -> dict[str, File]:
    """All files by name. Served from memory: what was not there at start cannot be asked for, whatever its path."""
    found = {}
    for each in (files("flexkvd") / "dashboard").iterdir():
        ending = each.name[each.name.rfind(".") :]
        if ending in MEDIA_TYPES:
            body = each.read_bytes()
            found[each.name] = File(body, MEDIA_TYPES[ending], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


def _answer(file: File, known_tags: str) -> Response:
    headers = {**HEADERS, "ETag": file.tag}
    if file.tag in known_tags:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
