"""The floor of the socket rows: an echo over the same kind of socket, by the same event loop, and nothing else.

What it takes in the same run is the machine's own time: waking a sleeping core, and waiting for one that
something else is using.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

MESSAGE = bytes(12)  # as long as a ping
START_S_MAX = 10.0


class Echo:
    """A process that echoes, and a connection to it; `with` ends both."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="flexkv-bench-")
        path = str(Path(self._folder.name) / "echo.sock")
        self._process = subprocess.Popen([sys.executable, "-m", "scripts.bench_parts.echo", path])
        self._socket = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + START_S_MAX
        while self._socket.connect_ex(path):
            assert time.monotonic() < end, "the echo did not start"
            time.sleep(0.01)

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ping(self) -> None:
        self._socket.sendall(MESSAGE)
        self._socket.recv(len(MESSAGE))


class _Back(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, which is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Back, path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
