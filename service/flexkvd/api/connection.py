"""One HTTP connection: counted, with limited patience, and with every refusal in the API's own form.

Owns what uvicorn leaves open: how many there are, how long a request may take to arrive, and what is answered before
there is a request. Made by `server`.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from flexkv_py.errors import ErrorCode

REQUEST_S_MAX = 10.0
"""A request line with its headers that has not arrived by then closes its connection."""


class ApiConnection(H11Protocol):
    """See the module's docstring."""

    connections_max: ClassVar[int] = 64

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse(
                429,
                ErrorCode.THROTTLED,
                f"{self.connections_max} connections are open ([api] connections_max): close some, or ask again",
            )
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():  # else it was refused, and what it still sends is nobody's
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def send_400_response(self, why: str) -> None:
        self._refuse(400, ErrorCode.BAD_ARGUMENT, f"{why} Send HTTP/1.1 as RFC 9112 says.")

    def _look(self) -> None:
        """Between requests the keep-alive timer runs; while one arrives, ours does."""
        arriving = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if arriving and self._patience is None:
            self._wait_for_request()
        elif not arriving:
            self._stop_waiting()

    def _wait_for_request(self) -> None:
        self._patience = self.loop.call_later(REQUEST_S_MAX, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, status: int, code: ErrorCode, message: str) -> None:
        """Answer without a request of ours, and close."""
        body = json.dumps({"code": code.value, "message": message}).encode()
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(["retry-after: 1"] if status == HTTPStatus.TOO_MANY_REQUESTS else []),
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
