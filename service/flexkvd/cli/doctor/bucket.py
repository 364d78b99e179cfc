"""Checks of the S3 tier: is the bucket there, may we list, put, get and delete, and is the clock right."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from flexkv_py.errors import FlexKVError
from flexkvd.cli import words
from flexkvd.cli.doctor.finding import Finding, Subject, failed, ok, skipped, warning

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from flexkv_tiers.s3 import S3Config

SKEW_S_WARNED = 60.0
SKEW_S_MAX = 900.0
"""AWS refuses signatures that are further off."""
ATTEMPT_S = 5.0
CLOCK_CURE = "set this machine's clock (chronyd or systemd-timesyncd): S3 refuses signatures 15 minutes off"


def bucket(subject: Subject) -> Iterator[Finding]:
    """Each right is used once, on one small object under the prefix that is deleted again."""
    table = subject.config.s3
    if table is None:
        yield skipped("s3", "no [s3]")
        return
    from flexkv_tiers.s3.client import BucketClient  # noqa: PLC0415 - boto3: only where there is an object tier
    from flexkvd.stores import s3_config  # noqa: PLC0415 - likewise

    try:
        config = s3_config(table)
    except FlexKVError as error:
        yield failed("s3", str(error), "correct the key of [s3] that the sentence names")
        return
    config = replace(
        config,
        connect_timeout_s=min(config.connect_timeout_s, ATTEMPT_S),
        read_timeout_s=min(config.read_timeout_s, ATTEMPT_S),
    )
    client = BucketClient(config)
    try:
        yield from _rights(client.client, config)
    finally:
        client.close()


def _rights(client: S3Client, config: S3Config) -> Iterator[Finding]:
    from flexkv_tiers.s3.names import listing_prefix  # noqa: PLC0415 - as above

    prefix = listing_prefix(config.prefix)
    name = f"{prefix}doctor-{secrets.token_hex(8)}"
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("list", partial(client.list_objects_v2, Bucket=config.bucket, Prefix=prefix, MaxKeys=1)),
        ("put", partial(client.put_object, Bucket=config.bucket, Key=name, Body=b"flexkv doctor")),
        ("get", partial(_read, client, config.bucket, name)),
        ("delete", partial(client.delete_object, Bucket=config.bucket, Key=name)),
    ]
    answer: Any = {}
    for step, act in steps:
        try:
            result = act()
        except Exception as error:  # whatever boto3 raises has one meaning or is a bug
            yield _refusal(step, error, config)
            if step == "list":  # nothing else can be expected to work
                return
            continue
        answer = result if step == "list" else answer
        yield ok(f"s3 {step}", f"{config.place}")
    yield _clock(answer)


def _read(client: S3Client, bucket: str, name: str) -> bytes:
    return client.get_object(Bucket=bucket, Key=name)["Body"].read()


def _refusal(step: str, error: Exception, config: S3Config) -> Finding:
    from flexkv_tiers.s3.faults import cure_of, trouble_of  # noqa: PLC0415 - as above
    from flexkv_tiers.s3.messages import Trouble  # noqa: PLC0415 - likewise

    trouble = trouble_of(error)
    if trouble is None:
        raise error
    if trouble is Trouble.SKEWED:
        return failed("clock", f"{config.place}: {error}", CLOCK_CURE)
    return failed(f"s3 {step}", f"{config.place}: {error}", cure_of(trouble))


def _clock(answer: Any) -> Finding:
    """The server's time stands in every answer, to the second."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        return skipped("clock", "the server says no time")
    skew_s = time.time() - parsedate_to_datetime(date).timestamp()
    ahead = f"this machine is {words.span(abs(skew_s))} {'ahead of' if skew_s > 0 else 'behind'} the S3 server"
    if abs(skew_s) >= SKEW_S_MAX:
        return failed("clock", ahead, CLOCK_CURE)
    if abs(skew_s) >= SKEW_S_WARNED:
        return warning("clock", ahead, CLOCK_CURE)
    return ok("clock", "agrees with the S3 server's")
