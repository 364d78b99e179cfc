"""The S3 tier through the fault proxy: never a wrong byte, a breaker that opens and closes again, no restart."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from tests.s3proxy import FaultProxy, Faults
from tests.tiers.contract import assert_readable, block, content, fault_of_read
from tests.tiers.s3_backing import patient, run_life, shared_server

KIB = 1024
RECORD = (64 * KIB,) * 4
RECORD_BYTES = 4096 + sum(RECORD)


@pytest.fixture(scope="module")
def proxy():
    with FaultProxy(shared_server().endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def config(tmp_path, proxy):
    proxy.set(Faults())
    return replace(
        patient(tmp_path.name),
        endpoint_url=proxy.endpoint_url,
        connect_timeout_s=0.5,
        read_timeout_s=0.5,
        operation_timeout_s=1.2,
        pack_bytes=0,
    )


async def until_well(store, frames, name):
    """It serves again by itself."""
    end = time.monotonic() + 15.0
    while time.monotonic() < end:
        try:
            await assert_readable(store, frames, name, 0, RECORD)
        except TierFault:
            await asyncio.sleep(0.1)
        else:
            return
    await assert_readable(store, frames, name, 0, RECORD)


LASTING = {
    "refused": (Faults(refuse=True), "s3.endpoint_url"),
    "silent": (Faults(silent=True), "s3.read_timeout_s"),
    "slow down": (Faults(status=503, code="SlowDown"), "s3.threads"),
    "latency beyond the timeout": (Faults(delay_s=5.0), "s3.read_timeout_s"),
    "expired credentials": (Faults(status=403, code="ExpiredToken"), "credentials"),
    "clock skew": (Faults(status=403, code="RequestTimeTooSkewed"), "clock"),
    "bucket removed": (Faults(status=404, code="NoSuchBucket"), "s3.bucket"),
    "moved elsewhere": (Faults(status=301, code="PermanentRedirect"), "s3.region"),
}


def test_outages_open_the_breaker_and_their_ends_close_it(frames, config, proxy):
    """One life through them all: moves fail in time, then at once, the reason names the cure, it comes back."""

    async def outage(store, faults, cure):
        proxy.set(faults)
        end = time.monotonic() + 10.0
        while store.status()["up"]:
            assert time.monotonic() < end, "the breaker did not open"
            begun = time.monotonic()
            assert await fault_of_read(store, frames, block(1), 0, RECORD) is not None
            assert time.monotonic() - begun < config.operation_timeout_s + 2 * config.read_timeout_s + 0.5
        assert cure in str(store.status()["down_because"])
        begun = time.monotonic()
        assert await fault_of_read(store, frames, block(1), 0, RECORD) is Fault.DOWN
        assert time.monotonic() - begun < 0.2
        assert store.status()["breaker"] in ("open", "half-open")
        proxy.set(Faults())
        await until_well(store, frames, block(1))
        assert store.status()["breaker"] == "closed"

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), RECORD))
        for faults, cure in LASTING.values():
            await outage(store, faults, cure)
            frames.rewind()

    heard = run_life(config, frames.arena, scene)
    assert heard[:2] == [False, True]
    assert len(heard) >= 2 * len(LASTING)
    assert heard[-1]


SPOILT = {
    "cut in mid-body": Faults(methods=["GET"], cut_answer=30_000),
    "cut in the header": Faults(methods=["GET"], cut_answer=100),
    "length too small": Faults(methods=["GET"], length_off_by=-4096),
    "length too large": Faults(methods=["GET"], length_off_by=4096),
    "truncated": Faults(methods=["GET"], truncate=RECORD_BYTES - 65536),
    "flipped bit": Faults(methods=["GET"], flip=20_000),
    "flipped bit in the header": Faults(methods=["GET"], flip=50),
    "another object's body": Faults(methods=["GET"], other_body=True),
}


def test_a_spoilt_answer_is_never_served(frames, config, proxy):
    """Chunks that were yielded are right, the rest is a fault; afterwards the same object reads right."""

    async def spoilt(store, what, faults):
        proxy.set(faults)
        target, landed = frames.take(RECORD), []

        async def read():
            async for chunk in store.read(block(1), 0, target):
                landed.append(chunk)  # noqa: PERF401 - what landed before the fault counts

        with pytest.raises(TierFault):
            await read()
        right = content(block(1), RECORD)
        assert all(frames.bytes_of(target)[chunk] == right[chunk] for chunk in landed), what
        assert len(landed) < len(RECORD)
        assert proxy.set(Faults()) >= 1
        await until_well(store, frames, block(1))

    async def scene(store):
        for number in (1, 2):
            await store.write(block(number), frames.fill(block(number), RECORD))
        await assert_readable(store, frames, block(2), 0, RECORD)  # the proxy keeps its bytes
        for what, faults in SPOILT.items():
            await spoilt(store, what, faults)
            frames.rewind()

    run_life(config, frames.arena, scene)


def test_a_read_goes_on_where_it_was_cut(frames, config, proxy):
    """Every answer is cut after a chunk and a half: the record lands over several attempts, each chunk once."""

    async def scene(store):
        await store.write(block(1), frames.fill(block(1), RECORD))
        proxy.set(Faults(methods=["GET"], cut_answer=100_000))
        await assert_readable(store, frames, block(1), 0, RECORD)
        assert store.status()["failed_cut"] >= 2
        assert store.status()["up"]

    run_life(config, frames.arena, scene)


@pytest.mark.parametrize("name", ["flipped bit", "truncated", "another object's body"])
def test_what_was_spoilt_on_its_way_once_is_read_again(frames, config, proxy, name):
    """A good object is not given up for one bad answer."""

    async def scene(store):
        for number in (1, 2):
            await store.write(block(number), frames.fill(block(number), RECORD))
        await assert_readable(store, frames, block(2), 0, RECORD)
        proxy.set(replace(SPOILT[name], count_max=1))
        await assert_readable(store, frames, block(1), 0, RECORD)
        assert store.status()["failed_corrupt"] == 1

    run_life(config, frames.arena, scene)


def test_some_failing_requests_are_retried(frames, config, proxy):
    """A share of cut uploads and 503 answers: writes go through by retries, and what was written reads right."""

    async def scene(store):
        for faults in (Faults(methods=["PUT"], cut_request=9_000, share=0.3), Faults(status=503, share=0.3)):
            proxy.set(faults)
            written = []
            for number in range(12):
                name = block(100 * faults.status + number)
                try:
                    await store.write(name, frames.fill(name, (16 * KIB,)))
                except TierFault:
                    continue
                written.append(name)
            assert len(written) >= 4
            proxy.set(Faults())
            await until_well_small(store, frames, written[0])
            for name in written:
                await assert_readable(store, frames, name, 0, (16 * KIB,))
        assert store.status()["retries"] >= 1

    run_life(config, frames.arena, scene)


async def until_well_small(store, frames, name):
    for _ in range(100):
        if await fault_of(store, frames, name) is None:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come back")


async def fault_of(store, frames, name):
    try:
        await assert_readable(store, frames, name, 0, (16 * KIB,))
    except TierFault as fault:
        return fault
    return None


def test_latency_below_the_timeout_is_only_latency(frames, config, proxy):
    """A slow server is no broken one: every move goes through, nothing is retried."""

    async def scene(store):
        proxy.set(Faults(delay_s=0.2))
        await asyncio.gather(*(store.write(block(n), frames.fill(block(n), RECORD)) for n in range(4)))
        for number in range(4):
            await assert_readable(store, frames, block(number), 0, RECORD)
        proxy.set(Faults(bytes_per_s=1e6))
        await assert_readable(store, frames, block(1), 0, RECORD)
        assert store.status()["retries"] == 0

    assert run_life(config, frames.arena, scene) == []
