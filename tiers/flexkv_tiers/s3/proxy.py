"""The HTTP proxy between us and the bucket, where the environment names one, as for boto3's own requests.

Owns what the environment's variables mean and how a tunnel is opened; connections are `wire`'s. Called by
`objects` and `wire`, in the byte worker.
"""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from botocore.utils import get_environ_proxies

_PORT = 80
_HEAD_BYTES_MAX = 8192


@dataclass(frozen=True)
class Proxy:
    """`authorization` is the value of a Proxy-Authorization header; empty: none is sent."""

    host: str
    port: int
    authorization: str

    @property
    def place(self) -> str:
        """For people, without the password."""
        return f"{self.host}:{self.port}"


class ProxyRefused(OSError):
    """The proxy cannot be used, or does not let us through."""


def proxy_of(url: str) -> Proxy | None:
    """The proxy for requests to `url`, by HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Raises ProxyRefused."""
    given = get_environ_proxies(url).get(urlsplit(url).scheme)
    if not given:
        return None
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port = parts.port or _PORT
    except ValueError:
        raise ProxyRefused("HTTP_PROXY or HTTPS_PROXY is no URL: write http://host:port, or unset it") from None
    if not parts.hostname:
        raise ProxyRefused("HTTP_PROXY or HTTPS_PROXY names no host: write http://host:port, or unset it")
    if parts.scheme != "http":
        raise ProxyRefused(
            f"HTTP_PROXY or HTTPS_PROXY is a {parts.scheme}:// address, and only http:// proxies are supported: name "
            "one, or the server in NO_PROXY"
        )
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(parts.hostname, port, authorization)


def open_tunnel(connected: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Have the proxy pass on bytes to and from `host`. Raises OSError."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    connected.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's, and belongs to TLS
        byte = connected.recv(1)
        if not byte or len(head) == _HEAD_BYTES_MAX:
            break
        head += byte
    said = head.split(b"\r\n", 1)[0].decode("latin-1")
    if said.split(" ")[1:2] != ["200"]:
        raise ProxyRefused(
            f"the proxy {proxy.place} does not connect to {place} ({said or 'no answer'}): check HTTPS_PROXY and what "
            "the proxy allows, or name the server in NO_PROXY"
        )
