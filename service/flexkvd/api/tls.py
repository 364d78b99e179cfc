"""TLS of the REST API: its certificate and key, read once and refused in words."""

from __future__ import annotations

import ssl

from flexkvd.api.table import ApiTable
from flexkvd.toml_tables import bad_config


def tls_context(table: ApiTable) -> ssl.SSLContext:
    """What `tls_certificate_file` and `tls_key_file` hold, TLS 1.2 and later. Raises FlexKVError(BAD_CONFIG)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    files = f"{table.tls_certificate_file} and {table.tls_key_file}"
    try:
        context.load_cert_chain(table.tls_certificate_file, table.tls_key_file, password=_no_passphrase)
    except ssl.SSLError as error:
        reason = error.reason or "its key has a passphrase"
        raise bad_config(
            f"[api] {files} are no PEM certificate with its key ({reason}): name a pair that fits, without a passphrase"
        ) from error
    except OSError as error:
        raise bad_config(f"[api] {files} cannot be read ({error.strerror}): name readable files") from error
    return context


def _no_passphrase() -> str:
    return ""  # OpenSSL would ask on the terminal
