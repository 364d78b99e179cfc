"""The end of the S3 store: whatever it is doing, closing it waits for nothing that does not come."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from flexkv_py.core.messages import Fault
from flexkv_py.errors import FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3 import S3Store
from tests.tiers.contract import SMALL, block, namespace
from tests.tiers.s3_backing import patient, shared_server

CLOSE_S_MAX = 5.0
"""Far below the minute that a request of a patient store may take, far above what a busy machine needs."""


@pytest.fixture
def config(tmp_path):
    return patient(tmp_path.name)


@pytest.fixture
def hanging_server():
    shared_server().suspend()
    yield
    shared_server().resume()


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 3, 200])
def test_a_store_closed_while_it_starts_is_closed(frames, config, hanging_server, turns, cancelled):
    """At whatever point of its start: `close` returns, `start` ends, no task and no process is left."""

    async def scene():
        store = S3Store(config, frames.arena)
        starting = asyncio.create_task(store.start())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        if cancelled:
            starting.cancel()
        async with asyncio.timeout(CLOSE_S_MAX):
            await store.close()
            await asyncio.wait([starting])
        assert starting.cancelled() or isinstance(starting.exception(), FlexKVError)
        await store.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    others = psutil.Process().children()
    asyncio.run(scene())
    assert psutil.Process().children() == others


def test_close_ends_all_that_waits_for_the_bucket(frames, config):
    """With a server that hangs: writes, reads, drops, a listing and a reset end, as DOWN or IO; so do later ones."""
    names = [block(number) for number in range(4)]

    async def scene():
        store = S3Store(config, frames.arena)
        await store.start()
        locations = await asyncio.gather(*(store.write(name, frames.fill(name, SMALL)) for name in names[:3]))
        shared_server().suspend()
        waiting = [
            asyncio.create_task(store.write(names[3], frames.fill(names[3], SMALL))),
            asyncio.create_task(read(store, frames, names[0], locations[0])),
            asyncio.create_task(store.drop(names[1], locations[1])),
            asyncio.create_task(store.drop(names[2], locations[2])),
            asyncio.create_task(found(store)),
            store.reset(namespace(2)),
        ]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        async with asyncio.timeout(CLOSE_S_MAX):
            await store.close()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - begun < CLOSE_S_MAX
        cut_off = [end for end in ends if isinstance(end, BaseException)]  # on a busy machine one was done before
        assert len(cut_off) >= len(ends) - 1
        for end in cut_off:
            assert isinstance(end, asyncio.CancelledError) or end.fault in (Fault.DOWN, Fault.IO)
        with pytest.raises(TierFault) as caught:
            await store.write(names[3], frames.fill(names[3], SMALL))
        assert caught.value.fault is Fault.DOWN
        assert asyncio.all_tasks() == {asyncio.current_task()}

    others = psutil.Process().children()
    try:
        asyncio.run(scene())
    finally:
        shared_server().resume()
    assert psutil.Process().children() == others


async def read(store, frames, name, location):
    async for _ in store.read(name, location, frames.take(SMALL)):
        pass


async def found(store):
    async for _ in store.found():
        pass
