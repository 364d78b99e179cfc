"""[api] of the configuration: where the REST API listens, who may ask, and how much."""

from __future__ import annotations

from dataclasses import dataclass

from flexkvd.tier_tables import KIB, MIB
from flexkvd.toml_tables import Kind, bad_config, key


@dataclass(frozen=True)
class ApiTable:
    """[api]: the REST admin API and /metrics."""

    socket: str = key(
        Kind.TEXT, "Unix socket of the API; empty: none. Only the daemon's user may connect.", "/run/flexkvd/admin.sock"
    )
    host: str = key(Kind.TEXT, "Address to listen on instead of the socket; other than loopback needs a token.", "")
    port: int = key(Kind.COUNT, "TCP port used with host.", 7979, high=65_535)
    token_file: str = key(
        Kind.TEXT,
        "File of bearer tokens: one alone is an admin's; else lines `read TOKEN` and `admin TOKEN`. "
        "Empty: none is asked for.",
        "",
    )
    tls_certificate_file: str = key(
        Kind.TEXT, "PEM file of the certificate and its chain, for TLS on `host`; empty: no TLS.", ""
    )
    tls_key_file: str = key(Kind.TEXT, "PEM file of the certificate's private key, without a passphrase.", "")
    requests_per_s_max: float = key(
        Kind.NUMBER,
        "Requests a second, twice as many in a burst; more are answered 429.",
        200.0,
        low=1,
        high=100_000,
        live=True,
    )
    body_bytes_max: int = key(
        Kind.SIZE, "Size of a request's body; a larger one is answered 413.", MIB, low=KIB, high=64 * MIB, live=True
    )
    connections_max: int = key(Kind.COUNT, "Open connections; more are answered 429 and closed.", 64, low=1, high=4096)
    jobs_running_max: int = key(Kind.COUNT, "Jobs that run at a time; others wait for their turn.", 8, low=1, high=64)

    def __post_init__(self) -> None:
        if bool(self.tls_certificate_file) is not bool(self.tls_key_file):
            raise bad_config(
                "[api] tls_certificate_file and tls_key_file belong together: give both for TLS, or neither"
            )
        if self.tls_certificate_file and not self.host:
            raise bad_config("[api] tls_certificate_file needs host: a Unix socket has no TLS, leave it out")
