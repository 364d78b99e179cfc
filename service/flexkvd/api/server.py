"""uvicorn on the daemon's own loop, with its connections counted and its patience limited.

Owns connections; knows no route. Importing this takes half a second: `daemon` does so on a thread, once workers can
connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from flexkvd.api.app import make_app
from flexkvd.api.connection import ApiConnection
from flexkvd.api.table import ApiTable
from flexkvd.api.tls import tls_context

__all__ = ["ApiServer", "make_app"]


class ApiServer(uvicorn.Server):
    """Signals stay the daemon's."""

    def __init__(self, app: FastAPI, table: ApiTable) -> None:
        class Connection(ApiConnection):
            connections_max = table.connections_max

        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        config.load()
        if table.tls_certificate_file:
            config.ssl = tls_context(table)
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_on(self, listener: socket.socket, let_go: Callable[[], None]) -> None:
        """Serve until cancelled; then `let_go` of those who listen for ever, and end the answers under way."""
        serving = asyncio.ensure_future(self.serve([listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            let_go()
            self.should_exit = True
            await serving
            raise
