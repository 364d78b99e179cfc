"""The least a server can be: greets and answers pings, as a uvloop protocol like the daemon's.

Run as `python ping_server.py PATH` for measurements of the client.
"""

import asyncio
import sys
from typing import cast

import uvloop

from flexkv_py.keys import namespace_digest
from flexkv_py.wire import codec, messages
from flexkv_py.wire.framing import FrameDecoder


class PingServer(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.frames = cast(asyncio.Transport, transport), FrameDecoder()

    def data_received(self, data: bytes) -> None:
        for body in self.frames.feed(data):
            message = codec.decode_client(body)
            if isinstance(message, messages.Hello):
                namespace = namespace_digest(message.geometry.fingerprint, message.tenant, message.epoch)
                count, version = message.geometry.chunk_count, messages.PROTOCOL_VERSION
                self.transport.write(
                    codec.encode(messages.Welcome(message.id, version, 1, b"boot", namespace, count, 9, 9, 9))
                )
            else:
                self.transport.write(codec.encode(messages.Done(message.id)))


async def serve(path: str) -> None:
    """Accept for ever; says `ready` on standard output when it does."""
    server = await asyncio.get_running_loop().create_unix_server(PingServer, path)
    print("ready", flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
