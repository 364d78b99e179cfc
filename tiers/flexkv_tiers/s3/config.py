"""What the S3 tier can be told. Never credentials: those come from boto3's own chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.s3.places import bucket_fault, endpoint_fault, prefix_fault, region_fault

PROCESSES_MAX = 16
THREADS_MAX = 64
PART_BYTES_MIN = 5 << 20
"""S3's own limit for all parts of an upload but the last."""
PACK_BYTES_MIN = 1 << 20
PACK_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class S3Config:
    """Where the bucket is and how hard to try. All times are seconds.

    `endpoint_url`, `region`, `addressing_style` and `ca_bundle` are boto3's; empty means boto3's own
    default. `sign_payload` None signs bodies only where the link is not TLS: a signature costs more
    CPU than everything else of an upload together. `operation_timeout_s` bounds one move with all its
    retries. After `silence_s` without any answer the bucket is asked whether it is
    there. Records above `part_bytes` go up in parts of that size. `sse` is what the server encrypts
    with, in S3's words; empty: the bucket's own default. `pack_bytes` 0 packs nothing, `refresh_s` 0 never
    lists again, `ttl_s` and `bytes` 0 set no limit.
    """

    bucket: str
    prefix: str = "flexkv"
    endpoint_url: str = ""
    region: str = ""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    processes: int = 1
    threads: int = 4
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    silence_s: float = 2.0
    operation_timeout_s: float = 30.0
    retry_count_max: int = 4
    sign_payload: bool | None = None
    ca_bundle: str = ""
    sse: Literal["", "AES256", "aws:kms"] = ""
    sse_kms_key_id: str = ""
    part_bytes: int = 64 << 20
    bytes: int = 0
    pack_bytes: int = 8 << 20
    refresh_s: float = 30.0
    ttl_s: float = 0.0
    owner: bool = True

    def __post_init__(self) -> None:
        self._check_place()
        if self.addressing_style not in ("auto", "path", "virtual"):
            raise _refuse("addressing_style", f"is {self.addressing_style!r}: use 'auto', 'path' or 'virtual'")
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise _refuse("processes", f"is {self.processes}: use 1 to {PROCESSES_MAX}")
        if not 1 <= self.threads <= THREADS_MAX:
            raise _refuse("threads", f"is {self.threads}: use 1 to {THREADS_MAX}")
        if self.retry_count_max < 0:
            raise _refuse("retry_count_max", f"is {self.retry_count_max}: use 0 or more")
        if self.ttl_s and not self.refresh_s:
            raise _refuse("ttl_s", "needs listings to find what has outlived it: set s3.refresh_s too")
        for name in ("connect_timeout_s", "read_timeout_s", "silence_s", "operation_timeout_s"):
            if getattr(self, name) <= 0:
                raise _refuse(name, f"is {getattr(self, name)}: use more than 0")
        self._check_uploads()

    def _check_place(self) -> None:
        for name, why in (
            ("bucket", bucket_fault(self.bucket)),
            ("prefix", prefix_fault(self.prefix)),
            ("region", region_fault(self.region)),
            ("endpoint_url", endpoint_fault(self.endpoint_url)),
        ):
            if why:
                raise _refuse(name, why)

    def _check_uploads(self) -> None:
        if self.sse not in ("", "AES256", "aws:kms"):
            raise _refuse("sse", f"is {self.sse!r}: use '', 'AES256' or 'aws:kms'")
        if self.sse_kms_key_id and self.sse != "aws:kms":
            raise _refuse("sse_kms_key_id", "is given without sse = 'aws:kms': give both, or no key")
        if self.part_bytes < PART_BYTES_MIN:
            raise _refuse("part_bytes", f"is {self.part_bytes}: S3 takes no parts below {PART_BYTES_MIN} bytes")
        if self.pack_bytes and not PACK_BYTES_MIN <= self.pack_bytes <= PACK_BYTES_MAX:
            raise _refuse("pack_bytes", f"is {self.pack_bytes}: use 0, or {PACK_BYTES_MIN} to {PACK_BYTES_MAX}")

    @property
    def signs_payload(self) -> bool:
        if self.sign_payload is not None:
            return self.sign_payload
        return self.endpoint_url.startswith("http://")

    @property
    def place(self) -> str:
        """Bucket and prefix for people."""
        return f"s3://{self.bucket}/{self.prefix.strip('/')}"


def _refuse(name: str, why: str) -> FlexKVError:
    return FlexKVError(ErrorCode.BAD_CONFIG, f"s3.{name} {why}")
