"""Records where they lie: in the segment files of an SSD directory, as objects of a bucket. Reads and damages them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flexkv_tiers.s3.names import listing_prefix, parse_object_name
from flexkvd.cli.s3server import S3Server
from tests.tiers.segment_files import records

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Store(Protocol):
    """Where records lie, by key."""

    def keys(self) -> list[bytes]: ...

    def read(self, key: bytes) -> bytes: ...

    def write(self, key: bytes, record: bytes) -> None:
        """Put `record` where that of `key` lies; a shorter one cuts it."""


class Segments:
    """The records of a directory, found by reading every page of every segment."""

    def __init__(self, directory: Path) -> None:
        self._places = {block.key: place for block, place in records(directory)}

    def keys(self) -> list[bytes]:
        """In the order in which they lie: the last one can be cut off without harm to another."""
        return sorted(self._places, key=lambda key: (self._places[key].path, self._places[key].offset))

    def read(self, key: bytes) -> bytes:
        return self._places[key].read()

    def write(self, key: bytes, record: bytes) -> None:
        place = self._places[key]
        place.write(record)
        if len(record) < place.length:
            os.truncate(place.path, place.offset + len(record))


class Objects:
    """The records of a bucket under a prefix."""

    BUCKET = "flexkv"

    def __init__(self, server: S3Server, prefix: str) -> None:
        self.client: S3Client = server.client()
        self._names: dict[bytes, str] = {}
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.BUCKET, Prefix=listing_prefix(prefix))
        for name in _names(pages):
            block = parse_object_name(prefix, name)
            assert block is not None
            self._names[block.key] = name

    def keys(self) -> list[bytes]:
        return sorted(self._names)

    def read(self, key: bytes) -> bytes:
        return self.client.get_object(Bucket=self.BUCKET, Key=self._names[key])["Body"].read()

    def write(self, key: bytes, record: bytes) -> None:
        self.client.put_object(Bucket=self.BUCKET, Key=self._names[key], Body=record)

    def delete(self, key: bytes) -> None:
        self.client.delete_object(Bucket=self.BUCKET, Key=self._names[key])


def _names(pages: Iterable[dict[str, object]]) -> Iterable[str]:
    for page in pages:
        for entry in page.get("Contents", []):  # type: ignore[attr-defined]
            yield entry["Key"]
