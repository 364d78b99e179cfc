"""The least an S3 server can do, in a process of its own: swallows uploads, answers downloads from memory.

What a client reaches against it is the client's own doing. Bodies of uploads are dropped in the kernel,
but for objects with a part `1` in their names (of ours: the blocks of shard 1). It looks at no signature
and at no condition.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading

HEAD_BYTES_MAX = 64 * 1024
DROP_BYTES = 8 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)
_EMPTY_LIST = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
    b"<KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)
_NOT_FOUND = b"<Error><Code>NoSuchKey</Code></Error>"


class NullS3:
    """The server as a process; `with` ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "scripts.bench_parts.null_s3"], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.endpoint_url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "null",
            "AWS_SECRET_ACCESS_KEY": "null",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> NullS3:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Connection(threading.Thread):
    """Serves one client until it leaves."""

    def __init__(self, channel: socket.socket, objects: dict[bytes, bytes]) -> None:
        super().__init__(daemon=True)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel = channel
        self._objects = objects
        self._drop = bytearray(DROP_BYTES)

    def run(self) -> None:
        rest = b""
        while True:
            while (end := rest.find(b"\r\n\r\n")) < 0:
                piece = self._channel.recv(HEAD_BYTES_MAX)
                if not piece:
                    self._channel.close()
                    return
                rest += piece
            rest = self._serve(rest[: end + 2], rest[end + 4 :])

    def _serve(self, head: bytes, rest: bytes) -> bytes:
        """One request; what of the next one has come already."""
        method, path, _ = head.split(b" ", 2)
        path, _, query = path.partition(b"?")
        length = int(found[1]) if (found := _LENGTH.search(head)) else 0
        if b"100-continue" in head:
            self._channel.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if method == b"PUT":
            self._take(path, length, rest)
            self._answer(b"200 OK", b"")
            return b""
        body, rest = rest[:length], rest[length:]
        while len(body) < length:
            body += self._channel.recv(length - len(body))
        if method == b"GET" and (path.count(b"/") < 2 or b"list-type" in query or path.endswith(b"/")):
            self._answer(b"200 OK", _EMPTY_LIST)
        elif method == b"GET":
            self._give(path, _RANGE.search(head))
        else:
            self._answer(b"200 OK", b"<DeleteResult/>")
        return rest

    def _take(self, path: bytes, length: int, rest: bytes) -> None:
        if b"/1/" in path:
            body = bytearray(length)
            body[: len(rest)] = rest
            at = len(rest)
            while at < length:
                at += self._channel.recv_into(memoryview(body)[at:])
            self._objects[path] = bytes(body)
            return
        left = length - len(rest)
        while left:
            left -= self._channel.recv_into(self._drop, min(left, DROP_BYTES), socket.MSG_TRUNC)

    def _give(self, path: bytes, asked: re.Match[bytes] | None) -> None:
        data = self._objects.get(path)
        if data is None:
            self._answer(b"404 Not Found", _NOT_FOUND)
        elif asked is None:
            self._answer(b"200 OK", data)
        else:
            start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
            place = b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, len(data))
            self._answer(b"206 Partial Content", memoryview(data)[start:end], place)

    def _answer(self, status: bytes, body: bytes | memoryview, headers: bytes = b"") -> None:
        common = b'Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: application/xml\r\nETag: "0"\r\n'
        head = b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n" % (status, common, headers, len(body))
        sent = self._channel.sendmsg([head, body])
        if sent < len(head) + len(body):
            assert sent >= len(head)
            self._channel.sendall(memoryview(body)[sent - len(head) :])


def main() -> None:
    """Print the port, then serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    objects: dict[bytes, bytes] = {}
    while True:
        channel, _ = listener.accept()
        _Connection(channel, objects).start()


if __name__ == "__main__":
    main()
