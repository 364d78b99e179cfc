"""Uploads of the S3 tier: in parts, present already, encrypted, cut; against a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.child import Call
from flexkv_tiers.s3 import S3Store
from flexkv_tiers.s3.messages import Failed, Put, Reply, Span, Stored, Sweep, Swept
from flexkv_tiers.s3.names import object_name
from flexkv_tiers.s3.objects import Objects
from scripts.bench_parts.null_s3 import NullS3
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.contract import assert_readable, block, fault_of_read
from tests.tiers.s3_backing import patient, shared_server

MIB = 1 << 20
LARGE = (MIB + 4096,) * 11
PART_BYTES = 5 * MIB


@pytest.fixture
def config(tmp_path):
    return replace(patient(tmp_path.name), part_bytes=PART_BYTES, pack_bytes=0, retry_count_max=0)


@pytest.fixture
def bucket():
    client = shared_server().client()
    yield client
    client.close()


def run(config, frames, scene):
    async def life():
        store = S3Store(config, frames.arena)
        try:
            await store.start()
            await scene(store)
        finally:
            await store.close()

    asyncio.run(life())


def uploads_of(bucket, config):
    listed = bucket.list_multipart_uploads(Bucket=config.bucket, Prefix=f"{config.prefix}/")
    return [upload["Key"] for upload in listed.get("Uploads", [])]


def test_a_large_record_goes_up_in_parts(frames, config, bucket):
    """A record of three parts, cut in the middle of chunks, reads right, and is an object of three parts."""

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), LARGE))
        await assert_readable(store, frames, block(1), 0, LARGE)

    run(config, frames, scene)
    head = bucket.head_object(Bucket=config.bucket, Key=object_name(config.prefix, block(1)))
    assert head["ETag"].strip('"').endswith("-3")
    assert uploads_of(bucket, config) == []


def test_an_upload_in_parts_that_fails_leaves_nothing(frames, config, bucket):
    """One part is cut: the write faults, no object is there, and the other parts are given up."""
    with FaultProxy(shared_server().endpoint_url) as proxy:

        async def scene(store):
            proxy.set(Faults(methods=["PUT"], cut_request=MIB))
            with pytest.raises(TierFault):
                await store.write(block(1), frames.fill(block(1), LARGE))
            proxy.set(Faults())

        run(replace(config, endpoint_url=proxy.endpoint_url), frames, scene)
    assert uploads_of(bucket, config) == []
    assert "Contents" not in bucket.list_objects_v2(Bucket=config.bucket, Prefix=f"{config.prefix}/")


def ask(objects, request):
    return [msgspec.msgpack.decode(raw, type=Reply) for raw in objects(msgspec.msgpack.encode(request), Call(1))]


def test_abandoned_uploads_are_given_up(frames, config, bucket):
    """What was begun long ago under our prefix goes, what is young or somebody else's stays."""
    ours = f"{config.prefix}/begun"
    bucket.create_multipart_upload(Bucket=config.bucket, Key=ours)
    bucket.create_multipart_upload(Bucket=config.bucket, Key=f"{config.prefix}2/begun")
    objects = Objects(config, frames.arena)
    assert ask(objects, Sweep(3600.0)) == [Swept(0)]
    assert uploads_of(bucket, config) == [ours]
    assert ask(objects, Sweep(-60.0)) == [Swept(1)]  # younger than nothing, whatever the server's clock says
    assert uploads_of(bucket, config) == []
    objects.close()
    listed = bucket.list_multipart_uploads(Bucket=config.bucket, Prefix=f"{config.prefix}2/")
    assert len(listed["Uploads"]) == 1


def put_of(frames, config, number, lengths=(4096,)):
    spans = frames.fill(block(number), lengths)
    return Put(
        object_name(config.prefix, block(number)), bytes([number]) * 4096, [Span(s.frame, s.length) for s in spans]
    )


def test_what_is_present_is_not_sent_again(frames, config, bucket):
    """The second upload of an object is answered without its bytes; one with another header replaces it."""
    objects, put = Objects(config, frames.arena), put_of(frames, config, 1, (MIB,))
    stored, present = (Stored(here, 4096 + MIB) for here in (False, True))
    assert ask(objects, put) == [stored]
    assert ask(objects, put) == [present]
    assert ask(objects, msgspec.structs.replace(put, replace=True)) == [stored]
    other = Put(put.name, b"x" * 4096, put.spans)
    assert ask(objects, other) == [stored]
    header = bucket.get_object(Bucket=config.bucket, Key=put.name)["Body"].read()[:4096]
    for part in (header, header[:100]):
        bucket.put_object(Bucket=config.bucket, Key=put.name, Body=part)
        assert ask(objects, other) == [stored]
    assert bucket.head_object(Bucket=config.bucket, Key=put.name)["ContentLength"] == 4096 + MIB
    objects.close()


@pytest.mark.parametrize("status", [412, 409, 501])
def test_a_condition_that_is_not_honoured_costs_a_second_request(frames, config, status):
    """A server that answers conditions with nonsense gets the object without one; after 501 it is not asked again."""
    with FaultProxy(shared_server().endpoint_url) as proxy:
        objects = Objects(replace(config, endpoint_url=proxy.endpoint_url), frames.arena)
        proxy.set(Faults(conditions=status))
        assert ask(objects, put_of(frames, config, 2)) == [Stored(present=False, object_bytes=8192)]
        assert ask(objects, put_of(frames, config, 3)) == [Stored(present=False, object_bytes=8192)]
        assert proxy.set(Faults()) == (1 if status == 501 else 2)
        objects.close()


def test_what_was_read_as_damaged_is_replaced(frames, config, bucket):
    """A header that is whole does not save a block whose chunks are not: saved again, the block is readable again."""
    name = object_name(config.prefix, block(1))

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), (MIB,)))
        whole = bucket.get_object(Bucket=config.bucket, Key=name)["Body"].read()
        bucket.put_object(Bucket=config.bucket, Key=name, Body=whole[:-1] + bytes([whole[-1] ^ 1]))
        assert await fault_of_read(store, frames, block(1), 0, (MIB,)) is Fault.CORRUPT
        await store.drop(block(1), 0)  # a guest only forgets
        await store.write(block(1), frames.fill(block(1), (MIB,)))
        await assert_readable(store, frames, block(1), 0, (MIB,))
        await store.write(block(1), frames.fill(block(1), (MIB,)))
        assert store.status()["uploads_present"] == 1

    run(replace(config, owner=False), frames, scene)


def test_a_server_that_ignores_conditions_gets_the_object_again(frames, config, monkeypatch):
    """On another server, one that looks at no condition: both uploads are taken, and the record reads right."""
    with NullS3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        name = block(1, shard=1)  # this server keeps nothing else

        async def scene(store):
            for _ in range(2):
                await store.write(name, frames.fill(name, (MIB, MIB)))
                await assert_readable(store, frames, name, 0, (MIB, MIB))
            assert store.status()["uploads_present"] == 0

        run(replace(config, endpoint_url=server.endpoint_url), frames, scene)


def test_encryption_is_asked_for_in_the_words_of_s3(frames, config):
    """Uploads carry the configured encryption; a server that knows no such key refuses."""
    with FaultProxy(shared_server().endpoint_url) as proxy:
        asked = replace(config, endpoint_url=proxy.endpoint_url, sse="aws:kms", sse_kms_key_id="alias/kv")
        objects = Objects(asked, frames.arena)
        headers = objects._upload_headers(8192)
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/kv"
        proxy.set(Faults(status=400, code="KMS.NotFoundException"))
        [failed] = ask(objects, put_of(frames, config, 4))
        assert isinstance(failed, Failed)
        objects.close()
