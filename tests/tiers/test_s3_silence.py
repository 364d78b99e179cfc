"""A server that takes connections and says nothing: noticed early, told to all who wait, not mistaken for slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from flexkv_py.core.messages import Fault
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3 import S3Store
from flexkv_tiers.s3.health import Silence
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.contract import assert_readable, block, fault_of_read
from tests.tiers.s3_backing import Heard, patient, run_life, shared_server

RECORD = (64 * 1024,) * 2
SILENCE_S = 1.0
READS = 12
"""More than there are connections."""


async def until_well(store, frames):
    """The block is read again, by itself."""
    end = time.monotonic() + 30
    while await fault_or_none(store, frames) is not None:
        assert time.monotonic() < end, store.status()
        await asyncio.sleep(0.05)


async def fault_or_none(store, frames):
    frames.rewind()
    try:
        await assert_readable(store, frames, block(1), 0, RECORD)
    except TierFault as fault:
        return fault
    return None


@pytest.fixture(scope="module")
def proxy():
    with FaultProxy(shared_server().endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def config(tmp_path, proxy):
    """The timeouts of the default configuration."""
    proxy.set(Faults())
    return replace(patient(tmp_path.name), endpoint_url=proxy.endpoint_url, silence_s=SILENCE_S, pack_bytes=0)


def test_a_frozen_server_is_told_to_everybody_long_before_the_timeouts(frames, config, proxy):
    """SIGSTOP of what answers, under default timeouts: all reads fail as DOWN, later ones at once; then it is back."""

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), RECORD))
        begun = time.monotonic()
        proxy.suspend()
        try:
            faults = await asyncio.gather(*(fault_of_read(store, frames, block(1), 0, RECORD) for _ in range(READS)))
            assert time.monotonic() - begun < config.read_timeout_s
            assert set(faults) == {Fault.DOWN}
            assert store.status()["failed_silent"] == 1
            begun = time.monotonic()
            with pytest.raises(TierFault, match=r"said nothing .*s3\.silence_s"):
                await assert_readable(store, frames, block(1), 0, RECORD)
            assert time.monotonic() - begun < SILENCE_S
        finally:
            proxy.resume()
        await until_well(store, frames)

    assert run_life(config, frames.arena, scene)[:2] == [False, True]


def test_a_server_that_is_silent_from_the_start_is_not_up_and_is_noticed_early(frames, config, proxy):
    """SIGSTOP before the first request: not up while connecting, down as silent before the timeouts, then back."""

    async def life():
        heard = Heard()
        store = S3Store(config, frames.arena, heard)
        proxy.suspend()
        try:
            starting = asyncio.create_task(store.start())
            while store.status()["failed_silent"] == 0:
                told = store.status()
                assert not told["up"]
                assert "connecting" in told["down_because"]
                assert not starting.done()
                await asyncio.sleep(0.05)
            with pytest.raises(FlexKVError, match=r"said nothing .*s3\.silence_s") as caught:
                await starting
            assert caught.value.code is ErrorCode.S3_UNREACHABLE
            assert store.status()["failed_timeout"] == 0
        finally:
            proxy.resume()
        await until_well_written(store, frames)
        await store.close()
        assert heard.changes == [False, True]

    asyncio.run(life())


def test_a_changed_cause_is_told_as_it_comes(frames, config, proxy):
    """Nobody listens, then the server refuses us: both are told, the second with the probes that failed before."""

    async def life():
        heard = Heard()
        store = S3Store(config, frames.arena, heard)
        proxy.set(Faults(refuse=True))
        with pytest.raises(FlexKVError):
            await store.start()
        proxy.set(Faults(status=403, code="AccessDenied"))
        end = time.monotonic() + 30
        while len(heard.reasons) < 2:
            assert time.monotonic() < end, store.status()
            await asyncio.sleep(0.05)
        proxy.set(Faults())
        await until_well_written(store, frames)
        await store.close()
        assert heard.changes == [False, False, True]
        assert "AccessDenied" in heard.reasons[1]
        assert all("failed probes" in reason for reason in heard.reasons[1:])

    asyncio.run(life())


async def until_well_written(store, frames):
    """A block is written, once the bucket is back."""
    end = time.monotonic() + 30
    while not store.status()["up"]:
        assert time.monotonic() < end, store.status()
        await asyncio.sleep(0.05)
    await store.write(block(1), frames.fill(block(1), RECORD))


def test_a_slow_answer_beside_a_living_server_is_waited_for(frames, config, proxy):
    """Uploads that take many times the silence: the server answers when asked, so none is cut, and it is not down."""

    async def scene(store):
        proxy.set(Faults(methods=["PUT"], delay_s=3 * SILENCE_S))
        await asyncio.gather(*(store.write(block(each), frames.fill(block(each), RECORD)) for each in range(3)))
        proxy.set(Faults())
        await assert_readable(store, frames, block(2), 0, RECORD)
        assert store.status()["retries"] == 0

    assert run_life(config, frames.arena, scene) == []


def test_what_is_odd_grows_with_the_silences_of_late():
    """Twice the longest silence that an answer ended, within limits; many quick answers forget it; a pause is none."""
    silence = Silence(1.0, 10.0)
    assert silence.odd_at_s is None
    silence.begin(100.0)
    assert silence.odd_at_s == 101.0
    silence.hear(103.0)
    assert silence.odd_at_s == 103.0 + 6.0
    silence.hear(110.0)
    assert silence.limit_s == 10.0
    for _ in range(400):
        silence.hear(110.0)
    assert silence.limit_s == 1.0
    silence.hear(400.0, late=True)
    assert silence.limit_s == 1.0
    silence.end()
    silence.begin(500.0)
    silence.begin(500.5)
    assert silence.odd_at_s == 501.0
    silence.end()
    assert silence.odd_at_s == 501.0
    silence.end()
    assert silence.odd_at_s is None
