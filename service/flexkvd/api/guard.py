"""What every request passes before any route sees it: whose page, rate, role, size and speed of its body.

Owns the limits' state. A route cannot forget a role: whoever reads needs `read`, everything else needs `admin`, and
only what is named here is open to all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.api import errors
from flexkvd.api.foreign import check_own
from flexkvd.api.limits import ApiLimits
from flexkvd.api.tokens import Role, Tokens, may

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Open to all and free of the rate limit: those who watch over the daemon ask here."""
PAGE_PATHS = ("/dashboard/", "/favicon.ico")
"""Beginnings of paths of the dashboard's own files, which hold no data of the cache."""
READING = frozenset({"GET", "HEAD"})
BODY_S_MAX = 10.0
"""A body that has not arrived by then is not waited for any longer."""
BURST_S = 2.0


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        limits: ApiLimits,
        listens_on: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._listens_on = listens_on
        self._limits = limits
        self._clock = clock
        self._paid_s = clock()  # when everything asked for so far is paid for (virtual scheduling, ITU-T I.371)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            header = _header(scope, b"authorization")
            needed = needed_role(scope["method"], scope["path"])
            if needed is not None and not self._tokens.asked_for:
                check_own(_header(scope, b"host"), _header(scope, b"origin"), self._listens_on)
            if header or not self._tokens.asked_for or needed is None:  # a wrong token must not be tried at any rate
                self._check_rate(scope)
            if needed is not None:
                self._check_role(needed, header)
            receive = await self._whole_body(scope, receive)
        except FlexKVError as error:
            await errors.answer(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_rate(self, scope: Scope) -> None:
        if scope["path"] in HEALTH_PATHS:
            return
        now_s, most = self._clock(), self._limits.requests_per_s_max
        waits_s = self._paid_s - now_s - BURST_S
        if waits_s > 0:
            raise FlexKVError(
                ErrorCode.THROTTLED,
                f"more than {most:g} requests a second ([api] requests_per_s_max): ask less often",
                retry_after_s=waits_s,
            )
        self._paid_s = max(self._paid_s, now_s) + 1 / most

    def _check_role(self, needed: Role, header: bytes) -> None:
        role = self._tokens.role_of(header)
        if role is None:
            raise FlexKVError(
                ErrorCode.UNAUTHENTICATED,
                "this API asks for a token: send one of [api] token_file as 'Authorization: Bearer …'",
            )
        if not may(role, needed):
            raise FlexKVError(
                ErrorCode.FORBIDDEN, f"this token may {role.value} only: use one of the role {needed.value}"
            )

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """A `receive` that has the whole body at hand. Raises FlexKVError when it is too large or too slow."""
        most = self._limits.body_bytes_max
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > most:
            raise _too_large(most)
        if not announced and not _header(scope, b"transfer-encoding"):
            return receive
        try:
            async with asyncio.timeout(BODY_S_MAX):
                whole = await _read(receive, most)
        except TimeoutError:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT, f"the body did not arrive within {BODY_S_MAX:g} s: send it at once"
            ) from None
        return _replay(whole, receive)


def needed_role(method: str, path: str) -> Role | None:
    """The role asked for; None for what is open to all."""
    if path in HEALTH_PATHS or path == "/" or path.startswith(PAGE_PATHS):
        return None
    return Role.READ if method in READING else Role.ADMIN


async def _read(receive: Receive, most: int) -> Message:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message  # the client is gone: the application hears of it
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _replay(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _too_large(most: int) -> FlexKVError:
    return FlexKVError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the body has more than {most} bytes ([api] body_bytes_max): send fewer keys at a time",
    )
