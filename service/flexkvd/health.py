"""Whether a running daemon of this configuration is ready, asked as a container's health check asks: over its REST API.

Imports nothing heavy, because it runs every few seconds. Called by `main --healthy`.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl

from flexkvd.api.table import ApiTable

TIMEOUT_S = 3.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a daemon listens, not this


def illness(table: ApiTable) -> str | None:
    """What keeps it from being ready, in words; None when it is. It does not answer: that is one too."""
    if not table.host and not table.socket:
        return 'this configuration has no REST API to ask: set [api] socket or [api] host, not socket = ""'
    connection = _Connection(table)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        if response.status == http.client.OK:
            return None
        reasons = json.loads(response.read()).get("reasons", {})
        return "not ready: " + "; ".join(f"{name}: {why}" for name, why in reasons.items())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"the REST API of flexkvd does not answer ({error}): does it run, with this configuration?"
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """To the API's address, by TLS where it has a certificate, or to its Unix socket."""

    def __init__(self, table: ApiTable) -> None:
        super().__init__(_ANY_ADDRESS.get(table.host, table.host) or "localhost", table.port, timeout=TIMEOUT_S)
        self._path = "" if table.host else table.socket
        self._encrypted = bool(table.tls_certificate_file)

    def connect(self) -> None:
        if not self._path:
            super().connect()
            if self._encrypted:  # to ourselves, and nothing secret is said: whose certificate it is does not matter
                self.sock = ssl._create_unverified_context().wrap_socket(self.sock)  # noqa: S323
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
