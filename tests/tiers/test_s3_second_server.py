"""The S3 tier on a second, different server, Debian's radosgw: `pytest -m second_server`, where it is installed."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.s3 import S3Config, S3Store
from tests.radosgw import BUCKET, RadosGateway, missing_programs
from tests.tiers.contract import TierContract, assert_readable, block, fault_of_read, namespace

pytestmark = [
    pytest.mark.second_server,
    pytest.mark.full,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
]

MIB = 1 << 20
SMALL, LARGE = (64 * 1024,) * 2, (2 * MIB,) * 3


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with RadosGateway(tmp_path_factory.mktemp("rgw")) as gateway:
        yield gateway


@pytest.fixture
def config(gateway, tmp_path, monkeypatch):
    for name, value in gateway.environment.items():
        monkeypatch.setenv(name, value)
    return S3Config(
        BUCKET,
        tmp_path.name,
        endpoint_url=gateway.endpoint_url,
        addressing_style="path",
        sign_payload=False,
        retry_count_max=3,
        silence_s=10.0,
        part_bytes=5 * MIB,
    )


class GatewayBacking:
    """A prefix of its bucket."""

    capacity_bytes = None

    def __init__(self, gateway, config, arena):
        self._gateway, self._config, self._arena = gateway, config, arena

    def store(self):
        return S3Store(self._config, self._arena)

    @contextmanager
    def failing_writes(self):
        """It is killed, and comes back."""
        self._gateway.kill()
        try:
            yield
        finally:
            self._gateway.start()

    def close(self):
        pass


@pytest.fixture
def backing(gateway, config, frames):
    return GatewayBacking(gateway, config, frames.arena)


class TestContract(TierContract):
    """Each promise of a tier, on this server."""


def run(config, frames, *scenes):
    """Each scene with a store of its own, one after the other: lives."""

    async def life(scene):
        store = S3Store(config, frames.arena)
        try:
            await store.start()
            await scene(store)
        finally:
            await store.close()

    for scene in scenes:
        asyncio.run(life(scene))


def names_in(gateway, config):
    client = gateway.client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{config.prefix}/").get("Contents", [])
    client.close()
    return [each["Key"] for each in listed]


@pytest.mark.parametrize("lengths", [SMALL, LARGE], ids=["whole", "in parts"])
def test_two_writers_of_one_block_end_with_one_good_object(gateway, config, frames, lengths):
    """Whether the server honours `If-None-Match` or not: both writes are right, and so is every read, in every life."""
    config = replace(config, pack_bytes=0)

    async def write_twice(store):
        await asyncio.gather(*(store.write(block(1), frames.fill(block(1), lengths)) for _ in range(2)))
        await store.write(block(1), frames.fill(block(1), lengths))
        await assert_readable(store, frames, block(1), 0, lengths)

    async def read(store):
        batches = [batch async for batch in store.found()]
        assert [each.key for batch in batches for each in batch.blocks] == [block(1).key]
        await assert_readable(store, frames, block(1), 0, lengths)
        await store.drop(block(1), 0)
        assert await fault_of_read(store, frames, block(1), 0, lengths) is Fault.MISSING

    run(config, frames, write_twice)
    assert len(names_in(gateway, config)) == 1
    frames.rewind()
    run(config, frames, read)
    assert names_in(gateway, config) == []


def test_packs_drops_and_a_reset(gateway, config, frames):
    """Small blocks share an object; one is dropped, the next life does not find it; a reset leaves nothing."""
    count = 8

    async def write(store):
        places = await asyncio.gather(*(store.write(block(n), frames.fill(block(n), SMALL)) for n in range(count)))
        assert store.status()["packs"] >= 1
        await store.drop(block(0), places[0])

    async def find(store):
        batches = [batch async for batch in store.found()]
        found = {each.key for batch in batches for each in batch.blocks}
        assert found == {block(n).key for n in range(1, count)}
        await store.reset(namespace())

    run(config, frames, write, find)
    assert names_in(gateway, config) == []


def test_a_gateway_that_is_killed_comes_back_by_itself(gateway, config, frames):
    """Moves fail while it is gone; when it answers again the breaker closes, and what was written reads right."""
    config = replace(config, pack_bytes=0, connect_timeout_s=0.5, operation_timeout_s=2.0)

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), SMALL))
        gateway.kill()
        while store.status()["up"]:
            assert await fault_of_read(store, frames, block(1), 0, SMALL) is not None
        await asyncio.to_thread(gateway.start)
        for _ in range(200):
            if store.status()["up"]:
                break
            await asyncio.sleep(0.1)
        await assert_readable(store, frames, block(1), 0, SMALL)

    run(config, frames, scene)
