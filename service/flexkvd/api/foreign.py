"""Pages of other sites in an operator's browser: known by the names under which they reach the API, and refused.

Pure. Called by `guard` where no token is asked for: there only the browser's reach stands between a page and the cache.
A page whose name was made to lead to this machine (DNS rebinding) says its own name in `Host`; a page of another site
that posts here is named in `Origin`. With tokens neither can do anything: a browser never adds a token by itself.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from flexkv_py.errors import ErrorCode, FlexKVError


def check_own(host: bytes, origin: bytes, listens_on: str) -> None:
    """Raises FlexKVError(FORBIDDEN) unless the request names loopback or `[api] host`, and comes from no other page.

    Without these headers it is no browser's.
    """
    if host and not _is_ours(_name_of(b"//" + host), listens_on):
        raise FlexKVError(
            ErrorCode.FORBIDDEN,
            "the request's Host is neither loopback nor [api] host: ask for localhost, or give the API an "
            "[api] token_file, with which every name is served",
        )
    if origin and origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
        raise FlexKVError(
            ErrorCode.FORBIDDEN,
            "the request's Origin is another site's page: ask from the daemon's own, or give the API an "
            "[api] token_file, with which a token is what counts",
        )


def _name_of(address: bytes) -> str:
    """The name in `//name:port`, without brackets; empty when it has none."""
    try:
        return urlsplit(address.decode("ascii")).hostname or ""
    except ValueError:
        return ""


def _is_ours(name: str, listens_on: str) -> bool:
    if name in ("localhost", listens_on.lower()) and name:
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
