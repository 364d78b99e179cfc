"""One bucket through boto3: what is rare enough for its price: deletes, and the ends of uploads in parts.

Owns the boto3 session and client. Single objects go over `wire`. Called by `objects`, in the byte worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.faults import answer_trouble
from flexkv_tiers.s3.messages import Failed
from flexkv_tiers.s3.names import listing_prefix

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SWEPT_COUNT_MAX = 1000
"""Abandoned uploads given up at a time; the next sweep finds the rest."""


class BucketClient:
    """Requests about the bucket as a whole. Raises what boto3 raises."""

    def __init__(self, config: S3Config) -> None:
        self._config = config
        self.session = boto3.Session()
        self.client = _open_client(self.session, config)

    def delete(self, names: Sequence[str]) -> Iterator[Failed]:
        answer = self.client.delete_objects(
            Bucket=self._config.bucket,
            Delete={"Objects": [{"Key": name} for name in names], "Quiet": True},
        )
        refused = [error for error in answer.get("Errors", []) if error.get("Code") != "NoSuchKey"]
        if refused:
            first = refused[0]
            yield Failed(
                answer_trouble(first.get("Code", ""), 400),
                f"{len(refused)} of {len(names)} objects were not deleted, the first is {first.get('Key')}: "
                f"{first.get('Code')} {first.get('Message')}",
            )

    def begin_upload(self, name: str) -> str:
        encryption: dict[str, Any] = {}
        if self._config.sse:
            encryption["ServerSideEncryption"] = self._config.sse
        if self._config.sse_kms_key_id:
            encryption["SSEKMSKeyId"] = self._config.sse_kms_key_id
        answer = self.client.create_multipart_upload(Bucket=self._config.bucket, Key=name, **encryption)
        return answer["UploadId"]

    def end_upload(self, name: str, upload: str, etags: Sequence[str]) -> None:
        if not etags:
            self.client.abort_multipart_upload(Bucket=self._config.bucket, Key=name, UploadId=upload)
            return
        self.client.complete_multipart_upload(
            Bucket=self._config.bucket,
            Key=name,
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(etags, 1)]},
        )

    def sweep(self, age_s: float) -> int:
        """Give up what was begun under our prefix more than `age_s` ago and not ended."""
        answer = self.client.list_multipart_uploads(
            Bucket=self._config.bucket, Prefix=listing_prefix(self._config.prefix), MaxUploads=SWEPT_COUNT_MAX
        )
        before = datetime.now(UTC) - timedelta(seconds=age_s)
        old = [upload for upload in answer.get("Uploads", []) if upload["Initiated"] <= before]
        for upload in old:
            self.end_upload(upload["Key"], upload["UploadId"], ())
        return len(old)

    def close(self) -> None:
        self.client.close()


def _open_client(session: boto3.Session, config: S3Config) -> S3Client:
    return session.client(
        "s3",
        endpoint_url=config.endpoint_url or None,
        region_name=config.region or None,
        verify=config.ca_bundle or None,
        config=Config(
            connect_timeout=config.connect_timeout_s,
            read_timeout=config.read_timeout_s,
            max_pool_connections=config.threads,
            retries={"total_max_attempts": 1},  # the store retries, within the move's deadline
            tcp_keepalive=True,
            # A record carries its own checksums; a second one over the body would double an upload's cost.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": config.addressing_style, "payload_signing_enabled": config.signs_payload},
        ),
    )
