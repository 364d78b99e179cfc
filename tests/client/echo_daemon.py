"""A small stand-in for the daemon: it speaks the protocol over a real socket and keeps no bytes.

Tests run it as a child process that they can kill (`python echo_daemon.py PATH`). What it does by request:
`match` finds every key, and answers after `hold`; a ticket ends when its deadline has passed; `flush`
sends as many GoingAway as its deadline has milliseconds; `reset` misbehaves as its epoch says. It never opens a gate.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import sys

import uvloop

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KEY_BYTES, namespace_digest
from flexkv_py.wire import codec, messages
from flexkv_py.wire.framing import FrameDecoder

BOOT = os.urandom(16)
HANG_UP, TALK_NONSENSE, STOP_READING, SAY_FAREWELL = 1, 2, 3, 4  # epochs that make `reset` misbehave


class Peer:
    """One connection: answers as a daemon would."""

    def __init__(self, connection: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = connection
        self.frames = FrameDecoder()
        self.descriptors: list[int] = []
        self.memories: set[int] = set()
        self.ends_s: dict[int, float] = {}  # by ticket
        self.leases: set[int] = set()
        self.names = 0
        self.chunk_count = 1
        self.loop.add_reader(connection, self.readable)

    def readable(self) -> None:
        try:
            data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(64))
        except ConnectionError:
            data, ancillary = b"", []
        for _, _, packed in ancillary:
            self.descriptors += array.array("i", packed)
        if not data:
            self.close()
        for body in self.frames.feed(data):
            message = codec.decode_client(body)
            try:
                getattr(self, f"on_{type(message).__name__.lower()}")(message)
            except FlexKVError as error:
                self.say(messages.Failed(message.id, error.code.value, error.message))

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self.loop.remove_reader(self.socket)
            self.socket.close()

    def say(self, message: messages.DaemonMessage) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(codec.encode(message))

    def name(self) -> int:
        self.names += 1
        return self.names

    def done(self, message: messages.ClientMessage) -> None:
        self.say(messages.Done(message.id))

    on_ping = on_fence = done

    def on_hello(self, hello: messages.Hello) -> None:
        if hello.token == "wrong":
            raise FlexKVError(ErrorCode.UNAUTHENTICATED, "this token is unknown: ask for another")
        self.chunk_count = hello.geometry.chunk_count
        namespace = namespace_digest(hello.geometry.fingerprint, hello.tenant, hello.epoch)
        version = messages.PROTOCOL_VERSION
        limits, young = (self.chunk_count, 4096, 64, 64), hello.token != "old"
        self.say(messages.Welcome(hello.id, version, 1, BOOT, namespace, *limits, ordered_copies=young))

    def on_registermemory(self, request: messages.RegisterMemory) -> None:
        descriptor = self.descriptors.pop(0)
        length = os.fstat(descriptor).st_size
        os.close(descriptor)
        if length < request.bytes:
            raise FlexKVError(ErrorCode.BAD_MEMORY, f"the memory has {length} bytes: share all of it")
        self.memories.add(memory := 1000 + self.name() + os.getpid() % 1000)
        self.say(messages.Registered(request.id, memory))

    def on_unregistermemory(self, request: messages.UnregisterMemory) -> None:
        self.memories.remove(request.memory)
        self.done(request)

    def on_match(self, request: messages.Match) -> None:
        length = len(request.keys) // KEY_BYTES
        lease = self.name() if request.hold_ms else 0
        self.leases.add(lease)
        reply = messages.Matched(request.id, length, [messages.Run("dram", length)], lease)
        self.loop.call_later(request.hold_ms / 1000, self.say, reply)

    def on_release(self, request: messages.Release) -> None:
        if request.lease not in self.leases:
            raise FlexKVError(ErrorCode.UNKNOWN_LEASE, "no such lease: it was released before")
        self.leases.remove(request.lease)
        self.done(request)

    def open_ticket(self, request: messages.Load | messages.Save | messages.Prefetch) -> None:
        if not isinstance(request, messages.Prefetch) and request.memory not in self.memories:
            raise FlexKVError(ErrorCode.UNKNOWN_MEMORY, "no such memory: register it")
        ticket = self.name()
        self.ends_s[ticket] = self.loop.time() + request.deadline_ms / 1000
        self.say(messages.Opened(request.id, ticket))

    on_load = on_save = on_prefetch = open_ticket

    def on_wait(self, request: messages.Wait) -> None:
        left_s = self.ends_s[request.ticket] - self.loop.time()
        chunk_wait = request.chunk >= 0  # the chunks of a stand-in are always there
        hold_s = 0.0 if chunk_wait else max(0.0, min(left_s, request.timeout_ms / 1000))
        self.loop.call_later(hold_s, self.report, request, hold_s >= left_s)

    def report(self, request: messages.Wait, done: bool) -> None:
        outcomes = ["loaded"] if done else []
        if done:
            self.ends_s[request.ticket] = 0.0  # a timer may come a millisecond early, and an end is an end
        self.say(messages.Progress(request.id, request.ticket, done, self.chunk_count, len(outcomes), outcomes))

    def on_cancel(self, request: messages.Cancel) -> None:
        self.ends_s[request.ticket] = 0.0
        self.done(request)

    def on_flush(self, request: messages.Flush) -> None:
        for number in range(request.deadline_ms):
            self.say(messages.GoingAway(0, str(number), 1000))
        self.ends_s[ticket := self.name()] = 0.0
        self.say(messages.Opened(request.id, ticket))

    def on_reset(self, request: messages.Reset) -> None:
        match request.epoch:
            case 1:
                self.close()
            case 2:
                self.socket.sendall(b"\x05\x00\x00\x00junk!")
            case 3:
                self.loop.remove_reader(self.socket)
            case 4:
                self.say(messages.Failed(0, ErrorCode.DRAINING.value, "this daemon stops: try another"))
                self.close()
            case _:
                self.done(request)


async def serve(path: str) -> None:
    """Accept for ever; says `ready` on standard output when it does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)  # noqa: T201
    while True:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection.settimeout(10)
        Peer(connection)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
