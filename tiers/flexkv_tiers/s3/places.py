"""What can name a place in S3: a bucket, a prefix, a region, a server. Pure, and asks nobody.

Names that a server would take for others are refused here: it would store under another name than we list, and what it
acknowledged would be lost with the daemon's memory of it. Called by `config`.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from flexkv_tiers.s3.names import TAIL_BYTES_MAX, listing_prefix

NAME_BYTES_MAX = 1024
"""S3's own limit of an object's name, in UTF-8."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}|arn:[A-Za-z0-9:/._-]{1,2000}")
_REGION = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_HOST = re.compile(r"[A-Za-z0-9.:%-]{1,255}")


def bucket_fault(bucket: str) -> str:
    """Why no bucket can have this name, with the cure; empty: one can."""
    if not bucket:
        return "is empty: name the bucket that holds the blocks"
    if _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        return f"is {bucket!r}, which no bucket can be called: use its name alone, of letters, digits, '.', '-' and '_'"
    return ""


def prefix_fault(prefix: str) -> str:
    """Why objects cannot lie under this prefix, with the cure; empty: they can."""
    start = listing_prefix(prefix)
    segments = start.split("/")[:-1]
    if "" in segments:
        return f"is {prefix!r}, and servers take its '//' for one '/': put something between, or leave one out"
    if "." in segments or ".." in segments:
        return f"is {prefix!r}, and servers resolve '.' and '..' as paths do: write the place itself"
    if not start.isprintable():
        return f"is {prefix!r}, with characters that a listing in XML cannot carry: use printable ones"
    excess = len(start.encode("utf-8", "surrogatepass")) + TAIL_BYTES_MAX - NAME_BYTES_MAX
    if excess > 0:
        return f"makes names {excess} bytes longer than S3's {NAME_BYTES_MAX}: shorten it by as much"
    return ""


def region_fault(region: str) -> str:
    """Why no region can have this name, with the cure; empty: one can, or it is boto3's own."""
    if region and _REGION.fullmatch(region) is None:
        return f"is {region!r}, which no region is called: write one like 'eu-central-1', or leave it empty for boto3's"
    return ""


def endpoint_fault(url: str) -> str:
    """Why no server can be at this URL, with the cure; empty: one can, or it is AWS."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0 and _HOST.fullmatch(parts.hostname or "")
    except ValueError:
        known = None
    if not known:
        return f"is {url!r}, no URL of a server: write http://host:port or https://host, or leave it empty for AWS"
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:  # not said again: a password
        return (
            f"has more than a server's scheme, name and port: write {parts.scheme}://host:port; the bucket is "
            "s3.bucket, a path in it s3.prefix, and credentials are where boto3 looks for them"
        )
    return ""
