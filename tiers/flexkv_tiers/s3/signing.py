"""Requests on single objects, ready for the wire: where the bucket answers, and the signature.

boto3 says where (endpoint, region and addressing style are its rules) and who we are, botocore signs.
boto3's own calls work all that out anew for every request, which costs more CPU than a small object.
Called by `objects`, in the byte worker.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import NoCredentialsError
from botocore.httpsession import get_cert_path

if TYPE_CHECKING:
    import boto3
    from mypy_boto3_s3 import S3Client

_ANYWHERE = "aws-global"
_PROBE = "x"


@dataclass(frozen=True)
class Signed:
    """What goes on the wire before the body."""

    target: str
    headers: Mapping[str, str]


class Signer:
    """Signs requests for objects of one bucket; used by any number of threads."""

    def __init__(self, session: boto3.Session, client: S3Client, bucket: str) -> None:
        """Raises BotoCoreError when boto3 finds no credentials or knows no such place."""
        credentials = session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        self._credentials = credentials
        self._config = client.meta.config
        region = client.meta.region_name
        self._region = "us-east-1" if region in (None, _ANYWHERE) else region
        probe = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": _PROBE})
        self.url = probe.partition("?")[0].removesuffix(_PROBE)
        """Where the bucket's objects are, with a slash at its end."""

    def sign(
        self,
        method: str,
        name: str,
        headers: Mapping[str, str],
        *,
        query: str = "",
        body: Any = None,
    ) -> Signed:
        """A signed request for the object `name`; `body` (file-like) is read only where bodies are signed."""
        url = self.url + quote(name, safe="/~") + (f"?{query}" if query else "")
        parts = urlsplit(url)
        request = AWSRequest(method=method, url=url, headers={"Host": parts.netloc, **headers}, data=body)
        request.context["client_config"] = self._config
        # Frozen: key and token of one moment, renewed by boto3 as they age.
        S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", self._region).add_auth(request)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return Signed(target, dict(request.headers.items()))


def tls_of(session: boto3.Session, url: str, ca_bundle: str) -> ssl.SSLContext | None:
    """How connections to `url` are secured; None where they are not. Raises OSError for a bad file."""
    if not url.startswith("https://"):
        return None
    bundle = ca_bundle or session._session.get_config_variable("ca_bundle") or get_cert_path(True)
    return ssl.create_default_context(cafile=str(bundle))
