"""HTTP/1.1 over plain or TLS sockets: bodies go from and into memory of the caller, without a copy on the way.

Owns connections and what can go wrong on them; knows nothing of S3. botocore's own HTTP client copies
every byte of an answer twice in Python, which costs more than everything else of a download. Called by
`objects`, in the byte worker.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException, HTTPResponse, RemoteDisconnected
from urllib.parse import urlsplit

from flexkv_tiers.byteworkers.child import Call
from flexkv_tiers.s3.proxy import Proxy, open_tunnel

CONTINUE_S = 1.0
"""A server that has not said "100 Continue" by then does not know of it, and gets the body."""
PARTS_PER_SEND_MAX = 64
ERROR_BYTES_MAX = 64 * 1024
_HEAD_BYTES = 8192
_TLS_ALERT = "\x15\x03"
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""What OpenSSL calls an answer that is not TLS at all."""

Buffer = bytes | bytearray | memoryview


class ConnectFailed(OSError):
    """No connection, or none that can be trusted; `certificate` when it was the certificate."""

    def __init__(self, error: OSError, route: Route) -> None:
        way = f" by the proxy {route.proxy.place}" if route.proxy else ""
        super().__init__(f"no connection to {route.url}{way}: {error}")
        self.certificate = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


class WrongScheme(OSError):
    """The server speaks TLS where we speak plain HTTP, or the other way round."""


class Cut(OSError):
    """The other end closed the connection where an answer, or more of it, was due."""


class Answer:
    """The head of an answer, and its body to be read; valid within `Wire.exchange`."""

    def __init__(self, response: HTTPResponse, *, asked_only: bool) -> None:
        self.status = response.status
        self.asked_only = asked_only  # the answer came instead of "100 Continue": no byte of the body was sent
        self._response = response

    @property
    def content_bytes(self) -> int | None:
        """Length of the body, where the server says it."""
        given = self.header("Content-Length")
        return int(given) if given.isdecimal() else None

    @property
    def ended_cleanly(self) -> bool:
        """Whether the body ended where it said, on a connection that stays open."""
        if self._response.length == 0:
            self._response.read()
        return self._response.isclosed() and not self._response.will_close and not self.asked_only

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    def fill(self, view: memoryview) -> None:
        """Read exactly as much as fits. Raises OSError."""
        at = 0
        while at < len(view):
            count = self._response.readinto(view[at:])
            if count == 0:
                raise Cut("the connection was cut in mid-object")
            at += count

    def text(self) -> str:
        """A short body, to be read by a parser or a person."""
        return self._response.read(ERROR_BYTES_MAX).decode(errors="replace")


@dataclass(frozen=True)
class Route:
    """The way to the server at `url` (only scheme, host and port of it count)."""

    url: str
    tls: ssl.SSLContext | None
    proxy: Proxy | None
    connect_timeout_s: float
    read_timeout_s: float

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the server itself."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return parts.hostname, parts.port or (443 if self.tls else 80)

    def asked(self, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """Target and headers as they go on the wire: a proxy of plain HTTP wants to know where they are to go."""
        if self.proxy is None or self.tls is not None:
            return target, headers
        authorization = {"Proxy-Authorization": self.proxy.authorization} if self.proxy.authorization else {}
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{target}", {**headers, **authorization}


class Wire:
    """Connections to one server, kept open between exchanges; used by any number of threads."""

    def __init__(self, route: Route, *, idle_max: int) -> None:
        self._route = route
        self._idle_max = idle_max
        self._idle: list[_Connection] = []  # open, and nothing on the way
        self._lock = threading.Lock()
        self._waits_for_continue = True

    @contextmanager
    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: Sequence[Buffer], call: Call
    ) -> Iterator[Answer]:
        """Send a request and hand out its answer; a stop of `call` cuts the connection. Raises OSError.

        `headers` with `Expect` are sent before the body, and the body only if the server wants it.
        """
        connection, reusable = self._claim(), False
        call.interruptible_by(connection.interrupt)
        try:
            head = _head(method, *self._route.asked(target, headers))
            answer = self._ask(connection, method, head, body, "Expect" in headers)
            yield answer
            reusable = answer.ended_cleanly
        except RemoteDisconnected as error:
            raise Cut("the connection was closed without an answer") from error
        except HTTPException as error:
            if isinstance(error, BadStatusLine) and str(error.args[0]).startswith(_TLS_ALERT):
                raise WrongScheme(f"the server at {self._route.url} answers plain HTTP with TLS") from error
            raise Cut(f"what came is no HTTP: {error!r}") from error
        finally:
            call.interruptible_by(None)
            if reusable and not call.stopped:
                self._give_back(connection)
            else:
                connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, connection: _Connection, method: str, head: bytes, body: Sequence[Buffer], ask: bool) -> Answer:
        ask = ask and self._waits_for_continue
        refused = False
        try:
            if ask:
                connection.send([head])
                said = connection.continues()
                self._waits_for_continue = said is not None
                refused = said is False
                if not refused:
                    connection.send(body)
            else:
                connection.send([head, *body])
        except (BrokenPipeError, ConnectionResetError):
            if not connection.readable(0.0):  # it may have answered before it closed
                raise
        return Answer(connection.response(method), asked_only=refused)

    def _claim(self) -> _Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return _Connection(self._route)
            if not connection.readable(0.0):
                return connection
            connection.close()  # what is readable now is its end, or nothing we asked for

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        connection.close()


class _Connection:
    """One socket. The kernel keeps the time of plain ones, so that one call can wait for a whole buffer."""

    def __init__(self, route: Route) -> None:
        self._reader: io.BufferedReader | None = None
        self._plain = route.tls is None
        try:
            self._socket = _connect(route)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
                raise WrongScheme(f"the server at {route.url} answers TLS with something else") from error
            raise ConnectFailed(error, route) from error
        read_timeout_s = route.read_timeout_s
        self._socket.settimeout(None if self._plain else read_timeout_s)
        limit = struct.pack("ll", int(read_timeout_s), int(read_timeout_s % 1 * 1e6))
        if self._plain:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, parts: Sequence[Buffer]) -> None:
        if not self._plain:
            for part in parts:
                self._socket.sendall(part)
            return
        rest = [memoryview(part).cast("B") for part in parts]
        while rest:
            try:
                count = self._socket.sendmsg(rest[:PARTS_PER_SEND_MAX])
            except BlockingIOError:
                raise TimeoutError("the server took no more bytes within s3.read_timeout_s") from None
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]

    def receive(self, target: memoryview) -> int:
        """Bytes into `target`; what is larger than a head is waited for as a whole.

        Such a wait ends with what has come by the time limit, so silence may take the limit twice to be noticed.
        """
        whole = self._plain and len(target) > _HEAD_BYTES
        try:
            return self._socket.recv_into(target, 0, socket.MSG_WAITALL if whole else 0)
        except BlockingIOError:
            raise TimeoutError("no byte came within s3.read_timeout_s") from None

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For `HTTPResponse`, which asks its socket for a file."""
        assert self._reader is not None
        return self._reader

    def continues(self) -> bool | None:
        """Whether the server wants the body; None when it says nothing at all."""
        self._reader = io.BufferedReader(_Raw(self), _HEAD_BYTES)
        if not self.readable(CONTINUE_S):
            return None
        if not self._reader.peek(_HEAD_BYTES).startswith(b"HTTP/1.1 100"):
            return False
        while self._reader.readline(_HEAD_BYTES) not in (b"\r\n", b"\n", b""):
            pass
        return True

    def response(self, method: str) -> HTTPResponse:
        if self._reader is None:
            self._reader = io.BufferedReader(_Raw(self), _HEAD_BYTES)
        response = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # it only asks for `makefile`
        self._reader = None
        response.begin()
        return response

    def readable(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def interrupt(self) -> None:
        """Wake whoever waits on it, from another thread: closing would wait for them instead."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would take its state away

    def close(self) -> None:
        self._socket.close()


class _Raw(io.RawIOBase):
    """A connection as the file that a buffered reader reads from; closing it leaves the connection open."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer, /) -> int:  # type: ignore[override]  # 3.11 has no name for any buffer
        return self._connection.receive(memoryview(target))


def _connect(route: Route) -> socket.socket:
    host, port = route.place
    proxy = route.proxy
    connected = socket.create_connection((proxy.host, proxy.port) if proxy else (host, port), route.connect_timeout_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if route.tls is None:
            return connected
        if proxy is not None:
            open_tunnel(connected, proxy, host, port)
        return route.tls.wrap_socket(connected, server_hostname=host)
    except OSError:
        connected.close()
        raise


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")
