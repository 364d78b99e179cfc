"""A TCP proxy between an S3 client and its server that misbehaves on demand, in a process of its own.

As a module: `with FaultProxy(server.endpoint_url) as proxy:` and `proxy.set(Faults(...))`, at any time.
It speaks just enough HTTP to know where requests, answers and bodies begin and end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

PIECE_BYTES = 64 * 1024
KEPT_BODIES_MAX = 64
_GONE = (ConnectionError, asyncio.IncompleteReadError, OSError)


@dataclass
class Faults:
    """What goes wrong, for this share of the requests with these methods. Nothing by default."""

    methods: list[str] = field(default_factory=lambda: ["GET", "PUT", "POST", "HEAD", "DELETE"])
    share: float = 1.0
    count_max: int = 1 << 30
    """As often as this, then never again."""
    refuse: bool = False
    """Nobody listens, and connections that exist are reset."""
    silent: bool = False
    """Requests are taken and never answered."""
    delay_s: float = 0.0
    """Before each request goes on."""
    bytes_per_s: float = 0.0
    """Bodies in both directions; 0: as fast as they come."""
    status: int = 0
    """Answer with this status, and `code` in the XML that S3 sends, instead of asking the server."""
    code: str = ""
    conditions: int = 0
    """Answer requests with `If-None-Match` with this status, others not at all differently."""
    cut_request: int = -1
    cut_answer: int = -1
    """Close the connection after so many bytes of the body; -1: never."""
    length_off_by: int = 0
    """Added to the answer's Content-Length; the body stays as it is."""
    date_off_s: float = 0.0
    """Added to the time that the server says it is."""
    truncate: int = -1
    """End the body there, and say so in Content-Length and Content-Range: a shorter object."""
    flip: int = -1
    """Turn one bit of this byte of the answer's body."""
    other_body: bool = False
    """Bytes of another object of the same length, if one was read before."""


class FaultProxy:
    """The proxy, as a process; `with` ends it. With a certificate (a PEM file that has its key) it speaks TLS."""

    def __init__(self, upstream_url: str, certificate: Path | None = None) -> None:
        place = urlsplit(upstream_url)
        command = [sys.executable, "-m", "tests.s3proxy", str(place.hostname), str(place.port), str(certificate or "")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint_url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._hear()}"

    def set(self, faults: Faults) -> int:
        """Misbehave like this from now on; returns how many requests the faults before this met."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(faults)) + "\n")
        self._process.stdin.flush()
        return int(self._hear())

    def suspend(self) -> None:
        """Freeze it: the kernel takes connections and bytes for it, and nothing comes back."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Head:
    """First line and headers of a request or an answer."""

    def __init__(self, raw: bytes) -> None:
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.first = first
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }

    @property
    def length(self) -> int | None:
        given = self.headers.get("content-length")
        return int(given) if given is not None else None

    def pack(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1")


class _Proxy:
    def __init__(self, host: str, port: int, certificate: str) -> None:
        self._upstream = (host, port)
        self._tls: ssl.SSLContext | None = None
        if certificate:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(certificate)
        self._faults = Faults()
        self._met = 0
        self._chance = random.Random(1)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._clients: set[asyncio.StreamWriter] = set()
        self._kept: dict[tuple[int, str], bytes] = {}  # by length and the object's own name

    async def run(self) -> None:
        await self._listen()
        _tell(self._port)
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            met, self._met, self._faults = self._met, 0, Faults(**json.loads(line))
            if self._faults.refuse:
                await self._refuse()
            elif self._server is None:
                await self._listen()
            _tell(met)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 20, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for client in list(self._clients):
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        upstream_writer = None
        try:
            upstream, upstream_writer = await asyncio.open_connection(*self._upstream, limit=1 << 20)
            while await self._exchange(reader, writer, upstream, upstream_writer):
                pass
        except _GONE:
            pass
        finally:
            self._clients.discard(writer)
            for each in (writer, upstream_writer):
                if each is not None:
                    each.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False when the connection is of no more use."""
        request = _Head(await reader.readuntil(b"\r\n\r\n"))
        method, path, _ = request.first.split(" ", 2)
        faults = self._faults
        spent = self._met >= faults.count_max
        if spent or method not in faults.methods or self._chance.random() >= faults.share:
            faults = Faults()
        if faults.conditions:
            faults = Faults(status=faults.conditions) if "if-none-match" in request.headers else Faults()
        self._met += faults != Faults()
        if faults.silent:
            while await reader.read(PIECE_BYTES):
                pass
            return False
        await asyncio.sleep(faults.delay_s)
        if faults.status:
            return await self._refusal(faults, request, reader, writer)
        upstream_writer.write(request.pack())
        sending = asyncio.create_task(
            _pump(reader, upstream_writer, request.length or 0, faults.bytes_per_s, faults.cut_request)
        )
        try:
            whole = await self._answer(method, path, faults, upstream, writer)
            return whole and sending.done() and bool(await sending)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, *_GONE):
                await sending

    async def _refusal(
        self, faults: Faults, request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        body = f"<?xml version='1.0'?><Error><Code>{faults.code}</Code><Message>by the proxy</Message></Error>".encode()
        if request.first.startswith("HEAD"):
            body = b""
        head = f"HTTP/1.1 {faults.status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        if request.length and "expect" not in request.headers:
            await reader.readexactly(request.length)
        writer.write(head.encode() + body)
        await writer.drain()
        return not request.length or "expect" not in request.headers

    async def _answer(
        self, method: str, path: str, faults: Faults, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        while True:
            answer = _Head(await upstream.readuntil(b"\r\n\r\n"))
            status = int(answer.first.split(" ", 2)[1])
            if status >= 200:
                break
            writer.write(answer.pack())
        if faults.date_off_s and "date" in answer.headers:
            told = parsedate_to_datetime(answer.headers["date"]) + timedelta(seconds=faults.date_off_s)
            answer.headers["date"] = format_datetime(told, usegmt=True)
        length = answer.length
        if method == "HEAD" or status in (204, 304):
            writer.write(answer.pack())
            return True
        if length is None:
            return await _pump_chunks(answer, upstream, writer)
        change = self._changed(method, status, path, faults, length)
        if faults.truncate >= 0:
            answer.headers["content-length"] = str(min(length, faults.truncate))
            if "content-range" in answer.headers:
                answer.headers["content-range"] = f"bytes 0-{faults.truncate - 1}/{faults.truncate}"
        elif faults.length_off_by:
            answer.headers["content-length"] = str(length + faults.length_off_by)
        writer.write(answer.pack())
        cut = faults.truncate if faults.truncate >= 0 else faults.cut_answer
        whole = await _pump(upstream, writer, length, faults.bytes_per_s, cut, change)
        if faults.length_off_by > 0:
            await asyncio.sleep(3600)  # the client waits for bytes that do not come
        return whole and not faults.length_off_by

    def _changed(
        self, method: str, status: int, path: str, faults: Faults, length: int
    ) -> Callable[[int, bytes], bytes] | None:
        """How pieces of this answer's body are to be changed: given where each begins, and its bytes."""
        if method != "GET" or status not in (200, 206):
            return None
        if faults.flip >= 0:
            return lambda at, piece: _flip(piece, faults.flip - at)
        name = _object(path)
        if faults.other_body:
            others = [body for (bytes_, other), body in self._kept.items() if bytes_ == length and other != name]
            return (lambda at, piece: others[0][at : at + len(piece)]) if others else None
        if (length, name) in self._kept or len(self._kept) == KEPT_BODIES_MAX:
            return None
        body = bytearray()

        def keep(_at: int, piece: bytes) -> bytes:
            body.extend(piece)
            if len(body) == length:
                self._kept[length, name] = bytes(body)
            return piece

        return keep


def _object(path: str) -> str:
    return path.partition("?")[0].rpartition("/")[2]


def _tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _flip(piece: bytes, at: int) -> bytes:
    if not 0 <= at < len(piece):
        return piece
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    length: int,
    bytes_per_s: float,
    cut: int,
    change: Callable[[int, bytes], bytes] | None = None,
) -> bool:
    """Pass `length` bytes on; False when it was cut."""
    at = 0
    while at < length:
        piece = await reader.read(min(PIECE_BYTES, length - at))
        if not piece:
            raise ConnectionError("it ended early")
        given = change(at, piece) if change else piece
        if 0 <= cut < at + len(given):
            writer.write(given[: cut - at])
            await writer.drain()
            writer.close()
            return False
        writer.write(given)
        await writer.drain()
        at += len(piece)
        if bytes_per_s:
            await asyncio.sleep(len(piece) / bytes_per_s)
    return True


async def _pump_chunks(answer: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(answer.pack())
    if answer.headers.get("transfer-encoding") != "chunked":
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
        return False
    while True:
        size = await reader.readline()
        piece = await reader.readexactly(int(size, 16) + 2)
        writer.write(size + piece)
        await writer.drain()
        if not int(size, 16):
            return True


if __name__ == "__main__":
    asyncio.run(_Proxy(sys.argv[1], int(sys.argv[2]), sys.argv[3]).run())
