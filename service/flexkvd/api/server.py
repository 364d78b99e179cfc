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

__all__ = ["ApiServer", "make_app"]


class ApiServer(uvicorn.Server):
    """Signals stay the daemon's."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
            )
        )

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
