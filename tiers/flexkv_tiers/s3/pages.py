"""One page of a listing: what each object is, by its name, size and age.

Runs in the byte worker, so that the daemon gets a page of a thousand names as a few joined fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexkv_py.core.messages import BlockName
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.codec import HEADER_BYTES
from flexkv_tiers.s3.config import S3Config
from flexkv_tiers.s3.messages import LIST_COUNT_MAX, ListedGroup, ListedPack, ListPage, Page
from flexkv_tiers.s3.names import DropMarks, parse_object_name, parse_pack_name
from flexkv_tiers.s3.packs import index_bytes

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def read_page(client: S3Client, config: S3Config, request: ListPage) -> Page:
    """Ask for one page. It goes on after a name, not by the server's token: a name outlives every outage."""
    answer = client.list_objects_v2(
        Bucket=config.bucket, Prefix=request.start, MaxKeys=LIST_COUNT_MAX, StartAfter=request.after
    )
    page, entries = _Sorting(config.prefix), answer.get("Contents", [])
    for entry in entries:
        if request.expires_s and entry["LastModified"].timestamp() < request.expires_s:
            page.add_expired(entry["Key"])
        else:
            page.add(entry["Key"], entry["Size"])
    return page.done(entries[-1]["Key"] if answer["IsTruncated"] and entries else "")


class _Sorting:
    """Collects one page, blocks by namespace, shard and size."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._groups: dict[tuple[bytes, int, int], list[BlockName]] = {}
        self._packs: list[ListedPack] = []
        self._expired: list[str] = []
        self._foreign = 0
        self._damaged = 0

    def add_expired(self, name: str) -> None:
        """Only what is ours may be deleted."""
        if parse_object_name(self._prefix, name) or parse_pack_name(self._prefix, name):
            self._expired.append(name)
        else:
            self._foreign += 1

    def add(self, name: str, object_bytes: int) -> None:
        block = parse_object_name(self._prefix, name)
        if block is not None:
            self._add_block(block, object_bytes)
            return
        pack = parse_pack_name(self._prefix, name)
        if pack is None:
            self._foreign += 1
        elif isinstance(pack, DropMarks) or (object_bytes > index_bytes(pack.count) and not object_bytes % ALIGN_BYTES):
            self._packs.append(ListedPack(name, object_bytes))
        else:
            self._damaged += 1

    def _add_block(self, block: BlockName, object_bytes: int) -> None:
        if object_bytes <= HEADER_BYTES or object_bytes % ALIGN_BYTES:
            self._damaged += 1
        else:
            self._groups.setdefault((block.namespace, block.shard, object_bytes), []).append(block)

    def done(self, after_next: str) -> Page:
        groups = [
            ListedGroup(*group, b"".join(block.key for block in blocks), b"".join(block.parent for block in blocks))
            for group, blocks in self._groups.items()
        ]
        return Page(groups, self._packs, self._expired, self._foreign, self._damaged, after_next)
