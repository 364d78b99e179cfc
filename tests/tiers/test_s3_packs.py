"""Packs: names, the index's bytes, who waits for whom, and packs on the real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault
from flexkv_tiers.s3 import S3Store
from flexkv_tiers.s3.names import (
    PACK_RECORDS_MAX,
    DropMarks,
    PackName,
    marks_name,
    object_name,
    pack_name,
    parse_object_name,
    parse_pack_name,
)
from flexkv_tiers.s3.packing import Packer, Record
from flexkv_tiers.s3.packs import PackTable, check_index, index_bytes, pack_index
from tests.tiers.contract import SMALL, assert_readable, block, content, drain, fault_of_read, namespace, places_of
from tests.tiers.s3_backing import Heard, patient, shared_server
from tests.tiers.test_s3 import flip, run

KIB = 1024
NAME = PackName(namespace(), 3, 1_700_000_000_000, 77, 2)
NAMES = st.builds(
    PackName,
    st.binary(min_size=32, max_size=32),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 48) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(1, PACK_RECORDS_MAX),
)


@pytest.fixture
def config(tmp_path):
    return patient(tmp_path.name)


@pytest.fixture
def bucket():
    client = shared_server().client()
    yield client
    client.close()


# ---------------------------------------------------------- names and bytes


@given(NAMES, st.data())
def test_a_pack_name_tells_its_pack_and_marks_tell_what_is_dropped(name, data):
    """Both parse back under any prefix, fit a path's last part, and are no block's name."""
    marks = DropMarks(name, data.draw(st.integers(1, (1 << name.count) - 1)))
    for prefix in ("flexkv", "a/b", ""):
        for spelt, meant in ((pack_name(prefix, name), name), (marks_name(prefix, marks), marks)):
            assert parse_pack_name(prefix, spelt) == meant
            assert parse_object_name(prefix, spelt) is None
            assert len(spelt.rpartition("/")[2]) <= 255


def test_only_our_own_spelling_of_a_pack_parses():
    """Too many records, an empty or too wide mask, another case or tail: somebody else's object."""
    right, marked = pack_name("p", NAME), marks_name("p", DropMarks(NAME, 2))
    spoilt = [right.upper(), right + ".part", right[:-1] + "513", right[:-1] + "0", right[:-1], marked[:-1] + "0"]
    spoilt += [marked[:-1] + "4", marked[:-1] + "02", marked + "\n", right.replace("/3/", "/03/")]
    assert [name for name in spoilt if parse_pack_name("p", name) is not None] == []


def test_packs_sort_after_blocks_and_by_their_age():
    """A listing meets the blocks of a directory first, then its packs in the order they were written."""
    names = [pack_name("p", replace(NAME, time_ms=time_ms)) for time_ms in (1, 99, 1 << 40)]
    last_block = object_name("p", replace(block(1, shard=3), key=b"\xff" * 16))
    assert sorted([*names[::-1], last_block]) == [last_block, *names]


@pytest.mark.parametrize("count", [1, 2, 99, 100, PACK_RECORDS_MAX])
def test_an_index_comes_back_as_it_was_packed(count):
    """Every record with key, parent, offset and length, whole pages in front, and its places found again."""
    name, blocks = replace(NAME, count=count), [block(at, shard=3) for at in range(count)]
    lengths = [(at % 3 + 2) * 4 * KIB for at in range(count)]
    raw = pack_index(name, blocks, lengths)
    assert len(raw) == index_bytes(count)
    check_index(name, raw, len(raw) + sum(lengths))
    pack = PackTable().add(name, raw)
    assert [(each.key, each.parent, each.length) for each in pack.records()] == [
        (each.key, each.parent, length) for each, length in zip(blocks, lengths, strict=True)
    ]
    assert [pack.place_of(each, record.offset) for each, record in zip(blocks, pack.records(), strict=True)] == list(
        range(count)
    )
    assert pack.place_of(replace(blocks[0], shard=4), len(raw)) is None
    pack.drop(1)
    assert (pack.live, pack.place_of(blocks[0], len(raw))) == (count - 1, None)


def test_every_flipped_bit_of_an_index_is_noticed():
    """No byte of it can change, nor the object's size or name, and nothing is read from it."""
    lengths = [8 * KIB, 12 * KIB]
    raw = pack_index(NAME, [block(1, shard=3), block(2, shard=3)], lengths)
    size = len(raw) + sum(lengths)
    wrong = [(NAME, flip(raw, at), size) for at in range(len(raw))]
    wrong += [(NAME, raw, size + 4 * KIB), (replace(NAME, shard=4), raw, size), (replace(NAME, count=1), raw, size)]
    wrong += [(NAME, raw[:-1], size), (NAME, b"", size)]
    for name, spoilt, object_bytes in wrong:
        with pytest.raises(TierFault) as caught:
            check_index(name, spoilt, object_bytes)
        assert caught.value.fault is Fault.CORRUPT


# ------------------------------------------------------------------ packing


def record(number: int, length: int = 8 * KIB, space: int = 1) -> Record:
    return Record(block(number, space=space), b"", [], length)


def test_records_that_come_together_go_together():
    """One upload per directory and linger; what comes during as many uploads as may run waits for one to end."""
    uploads: list[list[int]] = []

    async def scene():
        ended = asyncio.Event()

        async def upload(records):
            uploads.append([each.length for each in records])
            await ended.wait()
            return range(len(records))

        packer = Packer(upload, 64 * KIB, 1)
        first = [asyncio.create_task(packer.write(record(at))) for at in range(3)]
        await asyncio.sleep(0.02)
        assert uploads == [[8 * KIB] * 3]
        second = [asyncio.create_task(packer.write(record(at))) for at in range(5)]
        other = asyncio.create_task(packer.write(record(9, space=2)))
        await asyncio.sleep(0.02)
        assert len(uploads) == 1
        ended.set()
        assert await asyncio.gather(*first) == [0, 1, 2]
        assert await asyncio.gather(*second, other) == [0, 1, 2, 3, 4, 0]
        assert uploads[1:] == [[8 * KIB] * 5, [8 * KIB]]
        await packer.settled()

    asyncio.run(scene())


def test_a_full_pack_goes_at_once():
    """Records go out before they would exceed the size of a pack, however many uploads run."""
    uploads: list[int] = []

    async def scene():
        async def upload(records):
            uploads.append(len(records))
            return [0] * len(records)

        packer = Packer(upload, 32 * KIB, 1)
        await asyncio.gather(*(packer.write(record(at)) for at in range(10)))
        assert uploads == [4, 4, 2]

    asyncio.run(scene())


def test_a_cancelled_write_keeps_its_frames_until_nobody_reads_them():
    """Cancelled while it lingers, a record is in no upload; cancelled later, its write ends with the upload."""
    uploads: list[int] = []

    async def scene():
        ended = asyncio.Event()

        async def upload(records):
            uploads.append(len(records))
            await ended.wait()
            return [7] * len(records)

        packer = Packer(upload, 64 * KIB, 1)
        early, late, kept = (asyncio.create_task(packer.write(record(at))) for at in range(3))
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.sleep(0.02)
        assert (early.cancelled(), uploads) == (True, [2])
        late.cancel()
        await asyncio.sleep(0.01)
        assert not late.done()
        ended.set()
        assert await kept == 7
        await asyncio.wait([late])
        assert late.cancelled()

    asyncio.run(scene())


# ---------------------------------------------------------------- real packs


async def write_pack(store, frames, names, lengths=SMALL):
    """Written together, so in one pack; locations by name."""
    places = await asyncio.gather(*(store.write(name, frames.fill(name, lengths)) for name in names))
    assert len({place >> 20 for place in places}) == 1
    return dict(zip(names, places, strict=True))


async def settled(store, sweeps=0):
    """Wait until the store has done so many sweeps more, and what it does beside its moves."""
    goal = store.status()["sweeps"] + sweeps
    for _ in range(2000):
        if store.status()["sweeps"] >= goal and not store._drops._running and not store._doubtful:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not settled: {store.status()}")


def names_in(bucket, config):
    listed = bucket.list_objects_v2(Bucket=config.bucket, Prefix=f"{config.prefix}/")
    return [entry["Key"] for entry in listed.get("Contents", [])]


def test_a_pack_is_one_object_and_is_read_in_parts(frames, config, bucket):
    """Twenty blocks, one object; reading one moves its own bytes only, from a later chunk on too."""
    store, names = S3Store(config, frames.arena), [block(at) for at in range(20)]

    async def scene():
        places = await write_pack(store, frames, names)
        [name] = names_in(bucket, config)
        assert parse_pack_name(config.prefix, name).count == 20
        for each in names:
            await assert_readable(store, frames, each, places[each])
        assert store.status()["bytes_read"] == 20 * sum(SMALL)
        assert await fault_of_read(store, frames, block(5), places[block(6)]) is Fault.MISSING

    run(store, scene)


def test_damage_in_a_pack_harms_one_block(frames, config, bucket):
    """A flipped bit in one record: that block is CORRUPT, its neighbours are not; a pack cut short is CORRUPT whole."""
    store, names = S3Store(config, frames.arena), [block(at) for at in range(3)]

    async def scene():
        places = await write_pack(store, frames, names)
        [name] = names_in(bucket, config)
        right = bucket.get_object(Bucket=config.bucket, Key=name)["Body"].read()
        middle = right.index(content(block(1), SMALL)[1])
        bucket.put_object(Bucket=config.bucket, Key=name, Body=flip(right, middle))
        assert await fault_of_read(store, frames, block(1), places[block(1)]) is Fault.CORRUPT
        for each in (block(0), block(2)):
            await assert_readable(store, frames, each, places[each])
        bucket.put_object(Bucket=config.bucket, Key=name, Body=right[:-4096])
        assert await fault_of_read(store, frames, block(0), places[block(0)]) is Fault.CORRUPT
        bucket.delete_object(Bucket=config.bucket, Key=name)
        assert await fault_of_read(store, frames, block(0), places[block(0)]) is Fault.MISSING

    run(store, scene)


def test_drops_are_written_beside_the_pack_and_the_last_takes_it_along(frames, config, bucket):
    """Dropped blocks stay dropped in the next life; with the last of them pack and marks are deleted."""
    first, second, third = (S3Store(config, frames.arena) for _ in range(3))
    names = [block(at) for at in range(6)]

    async def drop_some():
        places = await write_pack(first, frames, names)
        await asyncio.gather(*(first.drop(name, places[name]) for name in names[:3]))
        assert len(names_in(bucket, config)) == 2
        await first.drop(names[3], places[names[3]])
        assert len(names_in(bucket, config)) == 2

    async def drop_rest():
        found = places_of([batch async for batch in second.found()])
        assert set(found) == set(names[4:])
        for name, place in found.items():
            await assert_readable(second, frames, name, place)
        await asyncio.gather(*(second.drop(name, place) for name, place in found.items()))
        assert names_in(bucket, config) == []

    async def nothing():
        assert [batch async for batch in third.found()] == []

    run(first, drop_some)
    run(second, drop_rest)
    run(third, nothing)


def test_damaged_and_foreign_packs_are_counted(frames, config, bucket):
    """A pack without a right index is skipped whole and counted once, a half one too; the others are found."""
    first, second = S3Store(config, frames.arena), S3Store(config, frames.arena)

    async def write():
        await write_pack(first, frames, [block(at) for at in range(3)])

    async def look():
        [name] = names_in(bucket, config)
        right = bucket.get_object(Bucket=config.bucket, Key=name)["Body"].read()
        parsed = parse_pack_name(config.prefix, name)
        spoilt = {77: flip(right, 40), 78: right[:-4096], 79: right[:100], 80: right}
        for random, data in spoilt.items():
            other = pack_name(config.prefix, replace(parsed, random=random))
            bucket.put_object(Bucket=config.bucket, Key=other, Body=data)
        bucket.put_object(Bucket=config.bucket, Key=f"{name}.txt", Body=b"x")
        batches = [batch async for batch in second.found()]
        assert sorted(each.key for batch in batches for each in batch.blocks) == sorted(
            [block(at).key for at in range(3)] * 2
        )  # the right one and its twin: the planner takes one of them
        assert (second.status()["listed_foreign"], second.damaged_at_start) == (1, 3)

    run(first, write)
    run(second, look)


def test_a_pack_that_failed_is_never_served(frames, config):
    """The server hangs in mid-upload: every writer is told, and nothing of it is found, though the server goes on."""
    server, heard = shared_server(), Heard()
    store = S3Store(replace(config, read_timeout_s=0.5, operation_timeout_s=1.0, refresh_s=0.2), frames.arena, heard)
    other = S3Store(config, frames.arena)

    async def scene():
        assert [batch async for batch in store.found()] == []
        server.suspend()
        try:
            names = [block(at) for at in range(3)]
            writes = [store.write(name, frames.fill(name, SMALL)) for name in names]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
        finally:
            server.resume()
        assert all(isinstance(outcome, TierFault) for outcome in outcomes)
        await settled(store, sweeps=3)
        assert heard.news == []

    async def look():
        assert [batch async for batch in other.found()] == []

    run(store, scene)
    run(other, look)


def test_physical_bytes_stay_bounded(frames, config):
    """Packs that hold little more than dropped records are let go of before all objects exceed their share."""
    heard, record_bytes = Heard(), 4 * KIB + sum(SMALL)
    allowed = 20 * record_bytes
    store = S3Store(replace(config, bytes=allowed), frames.arena, heard)

    async def scene():
        kept = {}
        for group in range(8):
            names = [block(10 * group + at) for at in range(5)]
            places = await write_pack(store, frames, names)
            for name in names[1:]:
                await store.drop(name, places[name])
            kept[names[0]] = places[names[0]]
            await settled(store)
            assert store.status()["bytes"] <= allowed * 1.25
        lost = {record.block for record in heard.gone}
        assert 0 < len(lost) < 8
        assert store.status()["packs_let_go"] == len(lost)
        for name, place in kept.items():
            if name in lost:
                assert await fault_of_read(store, frames, name, place) is Fault.MISSING
            else:
                assert await drain(store, name, place, frames.take(SMALL)) == [0, 1]

    run(store, scene)
