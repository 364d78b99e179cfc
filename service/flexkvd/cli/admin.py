"""A small client of the REST admin API: over its Unix socket, or a loopback address."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from flexkv_py.errors import ErrorCode, FlexKVError

TIMEOUT_S = 10.0

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Value by metric name and labels."""


def value(samples: Samples, name: str, **labels: str) -> float:
    """One value; a counter that has not counted yet is 0."""
    return samples.get((name, frozenset(labels.items())), 0.0)


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """All values of one metric, by one of its labels."""
    return {dict(labels)[label]: number for (each, labels), number in samples.items() if each == name}


class AdminClient:
    """`address` is the path of a Unix socket, or `host:port`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of one GET. Raises FlexKVError (`daemon_lost`) if nobody answers."""
        connection = self._connection()
        try:
            connection.request("GET", path, headers={"Host": "localhost"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise FlexKVError(
                ErrorCode.DAEMON_LOST,
                f"the admin API at {self.address} does not answer ({error}): is flexkvd running, and is this its "
                "address ([api] in its configuration)?",
            ) from error
        finally:
            connection.close()

    def json(self, path: str) -> dict[str, Any]:
        """The JSON object behind `path`."""
        body: dict[str, Any] = json.loads(self.get(path)[1])
        return body

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

    def _connection(self) -> http.client.HTTPConnection:
        if "/" in self.address:
            return _UnixConnection(self.address)
        return http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
