"""A client of the REST admin API: over its Unix socket, or an address with or without TLS.

Owns connections and how answers become values or errors; knows nothing of what the routes mean. Every call is a
connection of its own, so that it survives a restart of the daemon.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from flexkv_py.errors import ErrorCode, FlexKVError

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 256 << 20
"""No answer is larger, dumps of the recorder included."""
EVENT_LINE_BYTES_MAX = 1 << 20
PORT_DEFAULT = 7979

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Value by metric name and labels."""


def value(samples: Samples, name: str, **labels: str) -> float:
    """One value; a counter that has not counted yet is 0."""
    return samples.get((name, frozenset(labels.items())), 0.0)


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """All values of one metric, by one of its labels."""
    return {dict(labels)[label]: number for (each, labels), number in samples.items() if each == name}


def path_of(*parts: object, **query: object) -> str:
    """`/v1/…` with every part and value quoted; values that are None are left out."""
    given = {name: each for name, each in query.items() if each is not None}
    path = "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


class AdminClient:
    """`address` is the path of a Unix socket, `host:port`, or a URL with http or https.

    `token` is sent as a bearer token. `ca_file` holds certificates to trust instead of the system's.
    """

    def __init__(self, address: str, token: str = "", ca_file: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._token = token
        self._ca_file = ca_file
        self._timeout_s = timeout_s

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of one GET. Raises FlexKVError (`daemon_lost`) if nobody answers."""
        return self._send("GET", path)

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The JSON object that is answered. Raises FlexKVError: the daemon's own, or `daemon_lost`."""
        status, answer = self._send(method, path, body)
        if status >= http.client.BAD_REQUEST:
            raise self._refusal(status, answer)
        return self._object(answer)

    def download(self, method: str, path: str) -> bytes:
        """The bytes that are answered. Raises FlexKVError: the daemon's own, or `daemon_lost`."""
        status, answer = self._send(method, path)
        if status >= http.client.BAD_REQUEST:
            raise self._refusal(status, answer)
        return answer

    def json(self, path: str) -> dict[str, Any]:
        """The JSON object behind `path`, whatever the status."""
        return self._object(self.get(path)[1])

    def ready(self) -> bool:
        return self.get("/readyz")[0] == http.client.OK

    def metrics(self) -> Samples:
        """Everything `/metrics` says now."""
        families = text_string_to_metric_families(self.get("/metrics")[1].decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def events(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and data of each server-sent event, until the daemon ends the stream. Raises FlexKVError."""
        connection = self._connection()
        try:
            connection.request("GET", path, headers=self._headers({"Accept": "text/event-stream"}))
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise self._refusal(response.status, response.read(ANSWER_BYTES_MAX))
            name = "message"
            while line := response.readline(EVENT_LINE_BYTES_MAX):
                field, _, rest = line.decode().rstrip("\r\n").partition(":")
                if field == "event":
                    name = rest.strip()
                elif field == "data":
                    yield name, self._object(rest.strip().encode())
                elif not field and not rest:
                    name = "message"
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, bytes]:
        sent = None if body is None else json.dumps(body).encode()
        headers = self._headers({} if sent is None else {"Content-Type": "application/json"})
        connection = self._connection()
        try:
            connection.request(method, path, body=sent, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {"Host": "localhost"} | authorization | dict(more)

    def _object(self, answer: bytes) -> dict[str, Any]:
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise FlexKVError(
                ErrorCode.DAEMON_LOST,
                f"what answers at {self.address} is no admin API of flexkvd: give its socket or URL with --address",
            )
        return found

    def _refusal(self, status: int, answer: bytes) -> FlexKVError:
        said = self._object(answer)
        message = f"{said.get('message', f'the daemon answers with status {status}')}"
        code = str(said.get("code"))
        try:
            return FlexKVError(ErrorCode(code), message)
        except ValueError:  # of a newer daemon
            return FlexKVError(ErrorCode.INTERNAL, f"{message} (code {code}, status {status})")

    def _lost(self, error: Exception) -> FlexKVError:
        if isinstance(error, ssl.SSLCertVerificationError):
            cure = f"its certificate is not trusted ({error.verify_message}): name its authority with --ca-file"
        elif isinstance(error, PermissionError):
            cure = "this user may not connect to it: run this as the daemon's user, or as root"
        elif isinstance(error, TimeoutError):
            cure = f"no answer within {self._timeout_s:g} s: is the daemon stuck, or the network?"
        else:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            why = "".join(sign if sign.isprintable() else "·" for sign in said)  # who answers may be no HTTP server
            cure = f"{why}: is flexkvd running, and is this its address ([api] in its configuration)?"
        return FlexKVError(ErrorCode.DAEMON_LOST, f"the admin API at {self.address} does not answer; {cure}")

    def _connection(self) -> http.client.HTTPConnection:
        address = self.address.removeprefix("unix:")
        if "://" not in address:
            if "/" in address:
                return _UnixConnection(address, self._timeout_s)
            address = f"http://{address}"
        try:
            parts = urlsplit(address)
            host, port = parts.hostname or "", parts.port or PORT_DEFAULT
        except ValueError as error:
            raise self._no_address() from error
        if parts.scheme not in ("http", "https") or not host:
            raise self._no_address()
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._trust())

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            why = f"--ca-file {self._ca_file!r} cannot be used ({error}): name a readable PEM file of certificates"
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, why) from error

    def _no_address(self) -> FlexKVError:
        why = f"{self.address!r} is no address: give the path of the API's Unix socket, host:port, or an http(s) URL"
        return FlexKVError(ErrorCode.BAD_ARGUMENT, why)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)
