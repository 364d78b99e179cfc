"""Several stores on one prefix: what one writes the others hear of, who may delete, and what is too old."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from flexkv_py.core.messages import Fault
from flexkv_py.errors import FlexKVError
from flexkv_tiers.s3 import S3Config, S3Store
from flexkv_tiers.s3.names import object_name
from tests.tiers.contract import SMALL, assert_readable, block, fault_of_read, places_of
from tests.tiers.s3_backing import Heard, patient, shared_server
from tests.tiers.test_s3_packs import names_in, write_pack

REFRESH_S = 0.1


@pytest.fixture
def config(tmp_path):
    return replace(patient(tmp_path.name), refresh_s=REFRESH_S)


@pytest.fixture
def bucket():
    client = shared_server().client()
    yield client
    client.close()


class Node:
    """One daemon's store, listed to its end, and what its planner would have heard."""

    def __init__(self, config, frames):
        self.heard = Heard()
        self.store = S3Store(config, frames.arena, self.heard)
        self.found = {}

    def places(self):
        """What it knows from others by now."""
        return self.found | places_of(self.heard.news)

    def lost(self):
        return {record.block for record in self.heard.gone}


def share(frames, configs, scene):
    """Run `scene` with one started node per configuration."""

    async def life():
        async with AsyncExitStack() as stack:
            nodes = [Node(config, frames) for config in configs]
            for node in nodes:
                await node.store.start()
                stack.push_async_callback(node.store.close)
                node.found = places_of([batch async for batch in node.store.found()])
            await scene(*nodes)

    asyncio.run(life())


async def until(reached):
    for _ in range(2000):
        if reached():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def sweeps(node, count=2):
    """Wait for whole sweeps that began after this call."""
    goal = node.store.status()["sweeps"] + count
    await until(lambda: node.store.status()["sweeps"] >= goal)


def test_what_one_writes_the_others_find_and_read(frames, config):
    """Single blocks and packs appear once, with parents, and read right; a node is not told of its own."""

    async def scene(first, second):
        alone, together = block(1), [block(at) for at in range(2, 6)]
        await first.store.write(alone, frames.fill(alone, SMALL))
        await write_pack(first.store, frames, together)
        await until(lambda: set(second.places()) == {alone, *together})
        await sweeps(second)
        assert sum(len(batch.blocks) for batch in second.heard.news) == 5
        for name, place in second.places().items():
            await assert_readable(second.store, frames, name, place)
        assert first.heard.news == first.heard.gone == []

    share(frames, [config, config], scene)


def test_what_is_gone_is_told_and_is_missing(frames, config, bucket):
    """Drops of the owner, and objects deleted behind everybody's back, are lost to the other node within two sweeps."""

    async def scene(owner, other):
        names = [block(at) for at in range(6)]
        places = await write_pack(owner.store, frames, names[:4])
        for name in names[4:]:
            places[name] = await owner.store.write(name, frames.fill(name, SMALL))
        await until(lambda: set(other.places()) == set(names))
        theirs = other.places()
        await owner.store.drop(names[0], places[names[0]])
        await owner.store.drop(names[4], places[names[4]])
        await until(lambda: other.lost() == {names[0], names[4]})
        assert {record.location for record in other.heard.gone} == {theirs[names[0]], theirs[names[4]]}
        await assert_readable(other.store, frames, names[1], theirs[names[1]])
        for name in names_in(bucket, config):
            bucket.delete_object(Bucket=config.bucket, Key=name)
        await until(lambda: other.lost() == set(names))
        await until(lambda: owner.lost() == set(names) - {names[0], names[4]})
        for name in names:
            assert await fault_of_read(other.store, frames, name, theirs[name]) is Fault.MISSING

    share(frames, [config, replace(config, owner=False)], scene)


def test_two_writers_of_one_block_harm_nobody(frames, config, bucket):
    """The same blocks, alone and in packs, by two nodes at once: each reads its own; a third finds good ones."""

    async def scene(first, second, third):
        alone, together = block(1), [block(at) for at in range(2, 6)]
        for_both = [first, second]
        await asyncio.gather(*(node.store.write(alone, frames.fill(alone, SMALL)) for node in for_both))
        places = await asyncio.gather(*(write_pack(node.store, frames, together) for node in for_both))
        assert len(names_in(bucket, config)) == 3
        await until(lambda: set(third.places()) == {alone, *together})
        for node, known in zip(for_both, places, strict=True):
            for name, place in known.items():
                await assert_readable(node.store, frames, name, place)
        for name, place in third.places().items():
            await assert_readable(third.store, frames, name, place)

    share(frames, [config, config, config], scene)


def test_who_does_not_own_the_prefix_only_forgets(frames, config, bucket):
    """Its drops leave the bucket as it is, are not met again as news, and the owner serves on."""

    async def scene(owner, guest):
        names = [block(at) for at in range(5)]
        places = await write_pack(owner.store, frames, names[:4])
        places[names[4]] = await owner.store.write(names[4], frames.fill(names[4], SMALL))
        await until(lambda: set(guest.places()) == set(names))
        theirs, before = guest.places(), names_in(bucket, config)
        for name in names:
            await guest.store.drop(name, theirs[name])
        told = len(guest.heard.news)
        await sweeps(guest)
        assert (names_in(bucket, config), len(guest.heard.news)) == (before, told)
        for name in names:
            await assert_readable(owner.store, frames, name, places[name])
        assert owner.heard.gone == []

    share(frames, [config, replace(config, owner=False)], scene)


def test_what_is_older_than_its_time_goes(frames, config, bucket):
    """The owner's sweep deletes singles and packs past ttl_s, and only ours; everybody hears of it."""

    async def scene(owner, guest):
        names = [block(at) for at in range(4)]
        await write_pack(owner.store, frames, names[:3])
        await owner.store.write(names[3], frames.fill(names[3], SMALL))
        bucket.put_object(Bucket=config.bucket, Key=f"{config.prefix}/readme.txt", Body=b"x")
        await until(lambda: owner.lost() == set(names))
        await until(lambda: names_in(bucket, config) == [f"{config.prefix}/readme.txt"])
        await until(lambda: guest.lost() >= set(guest.places()))
        assert owner.store.status()["expired"] == 2

    share(frames, [replace(config, ttl_s=1.5), replace(config, owner=False, ttl_s=1.5)], scene)


def test_a_replaced_object_is_a_miss(frames, config, bucket):
    """What another put under a block's name is judged by header and checksums, never by its name."""

    async def scene(first, second):
        await first.store.write(block(1), frames.fill(block(1), SMALL))
        await first.store.write(block(2), frames.fill(block(2), SMALL))
        await until(lambda: set(second.places()) == {block(1), block(2)})
        foreign = bucket.get_object(Bucket=config.bucket, Key=object_name(config.prefix, block(2)))["Body"].read()
        bucket.put_object(Bucket=config.bucket, Key=object_name(config.prefix, block(1)), Body=foreign)
        assert await fault_of_read(second.store, frames, block(1), 0) is Fault.CORRUPT

    share(frames, [config, config], scene)


def test_time_to_live_needs_listings():
    """`ttl_s` without `refresh_s` would never be kept, and is refused; so is a pack too small to be one."""
    for bad in ({"ttl_s": 60.0, "refresh_s": 0.0}, {"pack_bytes": 4096}):
        with pytest.raises(FlexKVError, match=f"s3.{next(iter(bad))}"):
            S3Config("b", **bad)


def test_a_reset_leaves_nothing_whoever_wrote_it(frames, config, bucket):
    """What this node knows, dropped locally or never met is deleted; what is written after stays; others hear of it."""

    async def scene(owner, guest):
        old, alone, kept = [block(at) for at in range(4)], block(4), block(5, space=2)
        await write_pack(owner.store, frames, old)
        await owner.store.write(alone, frames.fill(alone, SMALL))
        await owner.store.write(kept, frames.fill(kept, SMALL))
        await until(lambda: set(guest.places()) == {*old, alone, kept})
        unmet, late, new = block(6), block(7), [block(at) for at in range(8, 11)]
        await owner.store.write(unmet, frames.fill(unmet, SMALL))
        writing = asyncio.create_task(guest.store.write(late, frames.fill(late, SMALL)))
        await asyncio.sleep(0)
        wiping = guest.store.reset(block(1).namespace)
        await asyncio.wait([writing])  # in time for the reset or not, but whole if it says so
        new_places = await write_pack(guest.store, frames, new)
        await wiping
        for name, place in guest.places().items():
            if name != kept:
                assert await fault_of_read(guest.store, frames, name, place) is Fault.MISSING
        await until(lambda: owner.lost() == {*old, alone, unmet})
        for name, place in new_places.items():
            await assert_readable(guest.store, frames, name, place)
        await assert_readable(guest.store, frames, kept, guest.places()[kept])
        survivors = 2 if writing.exception() else 3
        assert len(names_in(bucket, config)) == survivors
        told = len(guest.heard.news)
        await sweeps(guest)
        assert len(guest.heard.news) == told

    share(frames, [config, replace(config, owner=False)], scene)
