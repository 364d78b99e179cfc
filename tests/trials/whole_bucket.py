"""Looks at every object under a prefix, as nobody in the product does: is each of them whole, to the last chunk?"""

from __future__ import annotations

from flexkv_py.core.messages import BlockName
from flexkv_tiers.codec import HEADER_BYTES, parse_header
from flexkv_tiers.codec.record import check_stored, decode_into
from flexkv_tiers.s3.names import DropMarks, PackName, listing_prefix, parse_object_name, parse_pack_name
from flexkv_tiers.s3.packs import Pack, check_index, index_bytes
from flexkvd.cli.s3server import S3Server

BUCKET = "flexkv"


def verify_bucket(server: S3Server, prefix: str) -> dict[str, int]:
    """Counts of objects, packs and blocks; fails at the first that is not exactly what its name says."""
    client, counts, blocks = server.client(), {"objects": 0, "packs": 0, "drop marks": 0, "records": 0}, set()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=listing_prefix(prefix))
    for name in [entry["Key"] for page in pages for entry in page.get("Contents", [])]:
        counts["objects"] += 1
        raw = client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        pack = parse_pack_name(prefix, name)
        if isinstance(pack, DropMarks):
            counts["drop marks"] += 1
            assert raw == b""
        elif isinstance(pack, PackName):
            counts["packs"] += 1
            found = _verify_pack(pack, raw)
            counts["records"] += len(found)
            blocks |= found
        else:
            block = parse_object_name(prefix, name)
            assert block is not None, f"{name} is not ours"
            _verify_record(block, raw)
            counts["records"] += 1
            blocks.add(block)
    client.close()
    return counts | {"blocks": len(blocks)}


def _verify_pack(name: PackName, raw: bytes) -> set[BlockName]:
    index = raw[: index_bytes(name.count)]
    check_index(name, index, len(raw))
    blocks = set()
    for record in Pack(1, name, index).records():
        block = BlockName(name.namespace, name.shard, record.key, record.parent)
        _verify_record(block, raw[record.offset : record.offset + record.length])
        blocks.add(block)
    assert len(blocks) == name.count
    return blocks


def _verify_record(block: BlockName, raw: bytes) -> None:
    header = parse_header(raw[:HEADER_BYTES])
    assert header.matches(block)
    assert header.record_bytes == len(raw)
    for number, chunk in enumerate(header.chunks):
        stored = memoryview(raw)[chunk.offset : chunk.offset + chunk.room_bytes]
        check_stored(block.key, number, chunk, stored)
        decode_into(memoryview(bytearray(chunk.raw_bytes)), block.key, number, chunk, stored)
