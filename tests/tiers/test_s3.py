"""The S3 tier against a real server: damage, outages, killed processes, listings, start-up errors."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3 import S3Config, S3Store
from flexkv_tiers.s3.names import object_name
from flexkvd.cli.s3server import S3Server
from tests.tiers.contract import SMALL, assert_readable, block, content, drain, fault_of_read
from tests.tiers.s3_backing import Heard, impatient, patient, shared_server

KIB = 1024
LARGE = (2048 * KIB,) * 8
"""More than the socket buffers between server and client hold."""


@pytest.fixture
def config(tmp_path):
    return patient(tmp_path.name)


@pytest.fixture
def bucket(config):
    """The bucket as someone else sees it."""
    client = shared_server().client()
    yield client
    client.close()


def run(store, scene):
    """One life of a store."""

    async def life():
        try:
            await store.start()
            return await scene()
        finally:
            await store.close()

    return asyncio.run(life())


def put_bytes(bucket, config, name, data):
    bucket.put_object(Bucket=config.bucket, Key=object_name(config.prefix, name), Body=data)


def get_bytes(bucket, config, name):
    return bucket.get_object(Bucket=config.bucket, Key=object_name(config.prefix, name))["Body"].read()


async def attempt(move):
    """The fault of a move, and how long it took in seconds."""
    start = time.monotonic()
    with pytest.raises(TierFault) as caught:
        await move
    return caught.value, time.monotonic() - start


async def until_up(store, frames, name):
    """Try until a read succeeds, as workers do; fails after a few seconds."""
    end = time.monotonic() + 8.0
    while time.monotonic() < end:
        with suppress(TierFault):
            await assert_readable(store, frames, name, 0)
            return
        await asyncio.sleep(0.1)
    await assert_readable(store, frames, name, 0)


# ------------------------------------------------------------------ damage


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE = {
    "flip in the magic": lambda data: flip(data, 0),
    "flip in the key": lambda data: flip(data, 30),
    "flip in the header's end": lambda data: flip(data, 4095),
    "flip in the first chunk": lambda data: flip(data, 4096),
    "flip in the last byte": lambda data: flip(data, len(data) - 1),
    "one byte short": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "header only": lambda data: data[:4096],
    "less than a header": lambda data: data[:100],
    "empty": lambda data: b"",
    "4 KiB too long": lambda data: data + bytes(4096),
    "all zeros": lambda data: bytes(len(data)),
    "chunks swapped": lambda data: data[:4096] + data[8192:] + data[4096:8192],
}


def test_damaged_objects_are_corrupt(frames, config, bucket):
    """Whatever is done to an object, reading it faults CORRUPT; put back as it was, it reads again."""
    store = S3Store(config, frames.arena)
    lengths = (4 * KIB, 4 * KIB)

    async def scene():
        await store.write(block(1), frames.fill(block(1), lengths))
        right = get_bytes(bucket, config, block(1))
        for what, damage in DAMAGE.items():
            put_bytes(bucket, config, block(1), damage(right))
            assert await fault_of_read(store, frames, block(1), 0, lengths) is Fault.CORRUPT, what
        put_bytes(bucket, config, block(1), right)
        await assert_readable(store, frames, block(1), 0, lengths)
        assert store.status()["failed_corrupt"] == 2 * len(DAMAGE)  # each is looked at twice
        assert store.status()["up"]

    run(store, scene)


def test_only_chunks_before_the_damage_are_yielded(frames, config, bucket):
    """A flipped bit in the third chunk: two right chunks, then CORRUPT."""
    store = S3Store(config, frames.arena)
    lengths = (8 * KIB,) * 4

    async def scene():
        await store.write(block(1), frames.fill(block(1), lengths))
        put_bytes(bucket, config, block(1), flip(get_bytes(bucket, config, block(1)), 4096 + 20 * KIB))
        target, landed = frames.take(lengths), []

        async def read():
            async for chunk in store.read(block(1), 0, target):
                landed.append(chunk)  # noqa: PERF401 - what landed before the fault counts

        with pytest.raises(TierFault) as caught:
            await read()
        assert caught.value.fault is Fault.CORRUPT
        assert landed == [0, 1]
        assert frames.bytes_of(target)[:2] == content(block(1), lengths)[:2]

    run(store, scene)


def test_swapped_and_foreign_objects_are_corrupt(frames, config, bucket):
    """Another block's whole record under this block's name is never served as this block."""
    store = S3Store(config, frames.arena)
    others = [block(2), block(1, space=2), block(1, shard=1), replace(block(1), parent=block(7).key)]

    async def scene():
        for other in others:
            await store.write(other, frames.fill(other, SMALL))
            put_bytes(bucket, config, block(1), get_bytes(bucket, config, other))
            assert await fault_of_read(store, frames, block(1), 0) is Fault.CORRUPT
        await store.write(block(1), frames.fill(block(1), SMALL))
        assert await fault_of_read(store, frames, block(1), 0, SMALL[::-1]) is Fault.CORRUPT  # cut in another way
        await assert_readable(store, frames, block(1), 0)

    run(store, scene)


# ----------------------------------------------------------------- start-up


@pytest.mark.parametrize(
    ("change", "code", "setting"),
    [
        ({"bucket": "nowhere"}, ErrorCode.S3_BUCKET_MISSING, "s3.bucket"),
        ({"endpoint_url": "http://127.0.0.1:9"}, ErrorCode.S3_UNREACHABLE, "s3.endpoint_url"),
        ({}, ErrorCode.S3_DENIED, "credentials"),
    ],
    ids=["bucket", "endpoint", "credentials"],
)
def test_a_bucket_that_cannot_be_used_is_a_coded_error(frames, config, monkeypatch, change, code, setting):
    """Start says what is wrong and where to look: no such bucket, no server, wrong credentials."""
    if code is ErrorCode.S3_DENIED:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    async def scene():
        raise AssertionError("it started")

    with pytest.raises(FlexKVError, match=setting) as caught:
        run(S3Store(replace(config, **change), frames.arena), scene)
    assert caught.value.code is code
    assert f"s3://{change.get('bucket', 'flexkv')}/" in caught.value.message


def test_a_store_whose_start_failed_recovers_by_itself(frames, config):
    """S3 is away at start: moves are DOWN at once; when it comes up, so does the tier, listing included."""
    server, heard = shared_server(), Heard()
    store = S3Store(config, frames.arena, heard)

    async def life():
        server.kill()
        with pytest.raises(FlexKVError) as caught:
            await store.start()
        assert caught.value.code is ErrorCode.S3_UNREACHABLE
        listing = asyncio.create_task(anext(store.found(), None))
        fault, seconds = await attempt(store.write(block(1), frames.fill(block(1), SMALL)))
        assert fault.fault is Fault.DOWN
        assert seconds < 0.5
        server.start()
        assert await asyncio.wait_for(listing, 10.0) is None  # an empty prefix, listed to its end
        await store.write(block(1), frames.fill(block(1), SMALL))
        await assert_readable(store, frames, block(1), 0)
        assert heard.changes == [False, True]
        await store.close()

    try:
        asyncio.run(life())
    finally:
        if not server.running:
            server.start()


@pytest.mark.parametrize(
    "field", ["bucket", "endpoint_url", "processes", "threads", "operation_timeout_s", "addressing_style"]
)
def test_bad_settings_are_named(field):
    """A setting out of range is refused with its name."""
    bad = {
        "bucket": "",
        "endpoint_url": "127.0.0.1:9000",
        "processes": 0,
        "threads": 1000,
        "operation_timeout_s": 0.0,
        "addressing_style": "odd",
    }
    with pytest.raises(FlexKVError, match=f"s3.{field}") as caught:
        S3Config(**{"bucket": "b", field: bad[field]})
    assert caught.value.code is ErrorCode.BAD_CONFIG


# ------------------------------------------------------------------ outages


def test_a_killed_server_is_down_and_comes_back(frames, config):
    """Kill -9 of the server: moves fault within their deadline, the breaker opens, a probe closes it."""
    server, heard = shared_server(), Heard()
    store = S3Store(config, frames.arena, heard)

    async def scene():
        await store.write(block(1), frames.fill(block(1), SMALL))
        server.kill()
        try:
            for number in range(2, 5):
                fault, seconds = await attempt(store.write(block(number), frames.fill(block(number), SMALL)))
                assert fault.fault is Fault.DOWN
                assert seconds < config.operation_timeout_s + 0.5
            assert "s3.endpoint_url" in fault.detail
            assert not store.status()["up"]
        finally:
            server.start()
        await until_up(store, frames, block(1))
        assert store.status()["up"]
        assert heard.changes == [False, True]

    run(store, scene)


def test_a_hanging_server_makes_moves_late(frames, tmp_path):
    """A stopped server: a read ends LATE by its deadline, and works again once the server goes on."""
    server, config = shared_server(), impatient(tmp_path.name)
    store = S3Store(config, frames.arena)

    async def scene():
        await store.write(block(1), frames.fill(block(1), SMALL))
        server.suspend()
        try:
            fault, seconds = await attempt(drain(store, block(1), 0, frames.take(SMALL)))
        finally:
            server.resume()
        assert fault.fault is Fault.LATE
        assert seconds < config.operation_timeout_s + config.read_timeout_s + 0.5
        await until_up(store, frames, block(1))

    run(store, scene)


def test_a_read_goes_on_where_an_outage_cut_it(frames, config):
    """The server hangs in mid-object: landed chunks are not touched again, the rest follows, each once."""
    server = shared_server()
    store = S3Store(replace(config, read_timeout_s=0.5), frames.arena)

    async def scene():
        await store.write(block(1), frames.fill(block(1), LARGE))
        target, landed = frames.take(LARGE), []
        async for chunk in store.read(block(1), 0, target):
            landed.append(chunk)
            if chunk == 0:
                server.suspend()
                asyncio.get_running_loop().call_later(1.5, server.resume)  # a wait may take the timeout twice
                frames.arena.view(target[0].frame, 1)[:] = b"!"  # whoever writes to it again shows
        assert landed == list(range(8))
        assert store.status()["retries"] >= 1
        bytes_read = frames.bytes_of(target)
        assert bytes_read[0][:1] == b"!"
        assert bytes_read[1:] == content(block(1), LARGE)[1:]

    try:
        run(store, scene)
    finally:
        server.resume()


def test_a_byte_worker_killed_in_mid_transfer(frames, config):
    """SIGKILL of the child: its move faults once it is reaped, and the next one runs in a new child."""
    server = shared_server()
    store = S3Store(config, frames.arena)

    async def scene():
        await store.write(block(1), frames.fill(block(1), SMALL))
        [pid] = store.status()["processes"]
        server.suspend()  # so that the upload is in the middle
        writing = asyncio.create_task(store.write(block(2), frames.fill(block(2), LARGE)))
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        try:
            fault, seconds = await attempt(writing)
        finally:
            server.resume()
        assert fault.fault is Fault.IO
        assert seconds < 1.0
        assert not psutil.pid_exists(pid)
        await assert_readable(store, frames, block(1), 0)
        # Nothing, or what this server keeps of an upload that was cut: unreadable either way.
        assert await fault_of_read(store, frames, block(2), 0, LARGE) in (Fault.MISSING, Fault.CORRUPT)
        assert store.status()["process_deaths"] == 1

    run(store, scene)


def test_the_test_server_listens_on_loopback_only():
    """No port of the S3 server under test can be reached from outside."""
    listening = [each for each in psutil.Process(shared_server().pid).net_connections() if each.status == "LISTEN"]
    assert len(listening) >= 5
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


def test_the_test_server_removes_its_own_sockets_only(tmp_path):
    """What has another file's place by the time it ends belongs to another server, and stays."""
    with S3Server(tmp_path) as server:
        taken, *others = server._sockets
        taken.unlink()
        taken.write_bytes(b"another's")
        server.kill()  # ended cleanly it may itself unlink what has its sockets' names
    assert others
    assert not any(path.exists() for path in others)
    assert taken.read_bytes() == b"another's"
    taken.unlink()


# ----------------------------------------------------- listings and deletes


def test_a_listing_ignores_what_is_not_ours(frames, config, bucket):
    """Foreign names and impossible sizes in the prefix are counted and skipped; the rest comes with parents."""
    first, store = S3Store(config, frames.arena), S3Store(config, frames.arena)
    ours = [block(1), block(2), block(3, shard=5)]

    async def earlier():
        for name in ours:
            await first.write(name, frames.fill(name, SMALL))

    async def scene():
        right = object_name(config.prefix, block(9))
        for foreign in (
            "readme.txt",
            "a/b/c",
            right[len(config.prefix) + 1 :].upper(),
            right[len(config.prefix) + 1 :] + ".tmp",
        ):
            bucket.put_object(Bucket=config.bucket, Key=f"{config.prefix}/{foreign}", Body=b"x")
        bucket.put_object(Bucket=config.bucket, Key=f"{config.prefix}2/{right}", Body=b"x")  # a neighbour's
        put_bytes(bucket, config, block(9), b"not a whole page")
        found = {
            (batch.namespace, batch.shard, each.key, each.parent, batch.record_bytes)
            async for batch in store.found()
            for each in batch.blocks
        }
        assert found == {(name.namespace, name.shard, name.key, name.parent, 4 * KIB + sum(SMALL)) for name in ours}
        status = store.status()
        assert (status["listed_blocks"], status["listed_foreign"], status["listed_damaged"]) == (3, 4, 1)

    run(first, earlier)
    run(store, scene)


def test_a_burst_of_drops_is_a_few_requests(frames, config, bucket):
    """Forty drops at once go out in batches; a name dropped twice is deleted once."""
    store = S3Store(config, frames.arena)

    async def scene():
        names = [block(number) for number in range(40)]
        for name in names:
            put_bytes(bucket, config, name, b"x")
        await asyncio.gather(*(store.drop(name, 0) for name in names + names))
        assert store.status()["delete_requests"] <= 3
        listed = bucket.list_objects_v2(Bucket=config.bucket, Prefix=f"{config.prefix}/")
        assert listed["KeyCount"] == 0

    run(store, scene)
