"""The S3 tier's pure parts: names, what errors mean, when to try again, batched deletes, listing pages."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.core.messages import BlockName, Fault
from flexkv_py.errors import ErrorCode
from flexkv_tiers.base import TierFault
from flexkv_tiers.byteworkers.child import Call
from flexkv_tiers.s3 import objects, pages
from flexkv_tiers.s3.deletes import DeleteBatches
from flexkv_tiers.s3.faults import FAULT_OF, answer_trouble, start_error, tier_fault
from flexkv_tiers.s3.messages import DELETE_COUNT_MAX, Failed, ListPage, Page, Reply, Trouble
from flexkv_tiers.s3.names import SHARD_MAX, listing_prefix, object_name, parse_object_name
from tests.tiers.contract import Frames, block
from tests.tiers.s3_backing import patient, shared_server

BLOCKS = st.builds(
    BlockName,
    st.binary(min_size=32, max_size=32),
    st.integers(0, SHARD_MAX),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
)


@given(BLOCKS, st.sampled_from(["flexkv", "a/b", "/a/", ""]))
def test_a_name_tells_its_block(name, prefix):
    """Every block's object name parses back to that block, under any prefix."""
    assert parse_object_name(prefix, object_name(prefix, name)) == name


def test_only_our_own_spelling_parses():
    """Another prefix, case, number form, length or tail is somebody else's object."""
    right = object_name("p", block(1, shard=7))
    assert parse_object_name("p", right) is not None
    spoilt = [
        right.upper(),
        right.replace("/7/", "/07/"),
        right.replace("/7/", f"/{SHARD_MAX + 1}/"),
        right.replace("/7/", "/-7/"),
        right.replace("/7/", "/٧/"),
        right + "\n",
        right + ".part",
        right[:-1],
        "x" + right,
        right.replace("-", "_"),
        "p/",
        "p",
        "",
    ]
    assert [name for name in spoilt if parse_object_name("p", name) is not None] == []
    assert parse_object_name("q", right) is None


@given(st.text(max_size=200))
def test_any_name_at_all_is_parsed_or_ignored(name):
    """No spelling makes the parser raise."""
    parse_object_name("", name)


@pytest.mark.parametrize(
    ("code", "status", "trouble"),
    [
        ("NoSuchKey", 404, Trouble.MISSING),
        ("404", 404, Trouble.MISSING),
        ("NoSuchBucket", 404, Trouble.BUCKET_MISSING),
        ("SlowDown", 503, Trouble.THROTTLED),
        ("Strange", 503, Trouble.THROTTLED),
        ("InternalError", 500, Trouble.SERVER),
        ("SignatureDoesNotMatch", 403, Trouble.DENIED),
        ("InvalidRange", 416, Trouble.CORRUPT),
        ("EntityTooLarge", 400, Trouble.REFUSED),
        ("", 0, Trouble.REFUSED),
    ],
)
def test_error_answers_are_understood(code, status, trouble):
    """The code decides; one that is not known leaves it to the HTTP status."""
    assert answer_trouble(code, status) is trouble


def test_every_trouble_has_a_fault_and_a_start_error():
    """No trouble is without a meaning for the executor and for a person."""
    for trouble in Trouble:
        failure = Failed(trouble, "what happened")
        assert tier_fault(failure).fault is FAULT_OF[trouble]
        assert start_error(failure, "s3://b/p").message.startswith("s3://b/p cannot be used: what happened")
    assert start_error(Failed(Trouble.DENIED, ""), "s3://b/p").code is ErrorCode.S3_DENIED
    for trouble in (Trouble.EXPIRED, Trouble.SKEWED):  # these mend themselves, and end no start
        assert start_error(Failed(trouble, ""), "s3://b/p").code is ErrorCode.S3_EXPIRED


def test_deletes_gather_while_a_batch_runs():
    """The first delete goes alone, what comes meanwhile goes together, and never more than S3 takes."""
    sent: list[list[str]] = []

    async def scene():
        async def send(names):
            sent.append(names)
            await asyncio.sleep(0.01)
            if "bad" in names:
                raise TierFault(Fault.IO, "refused")
            if "bug" in names:
                raise RuntimeError("in the byte worker")

        batches = DeleteBatches(send)
        first = asyncio.create_task(batches.delete("first"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(first, *(batches.delete(f"{number}") for number in range(DELETE_COUNT_MAX + 1)))
        assert [len(names) for names in sent] == [1, DELETE_COUNT_MAX, 1]
        with pytest.raises(TierFault):
            await asyncio.gather(batches.delete("bad"), batches.delete("bad"))
        with pytest.raises(RuntimeError):
            await batches.delete("bug")
        await batches.delete("good")
        await batches.settled()

    asyncio.run(scene())


def test_a_listing_comes_in_pages(tmp_path, monkeypatch):
    """Five objects at two a page come in three pages, each once, every page after the last name of the one before."""
    monkeypatch.setattr(pages, "LIST_COUNT_MAX", 2)
    config, frames, client = patient(tmp_path.name), Frames(), shared_server().client()
    names = [block(number) for number in range(5)]
    for name in names:
        client.put_object(Bucket=config.bucket, Key=object_name(config.prefix, name), Body=bytes(8192))
    client.close()
    handler = objects.Objects(config, frames.arena)
    listed, after = [], ""
    while after or not listed:
        request = ListPage(listing_prefix(config.prefix), after)
        [raw] = handler(msgspec.msgpack.encode(request), Call(1))
        page = msgspec.msgpack.decode(raw, type=Reply)
        assert isinstance(page, Page)
        listed.append(page)
        after = page.after_next
    frames.arena.close()
    handler.close()
    assert len(listed) == 3
    keys = b"".join(group.keys for page in listed for group in page.groups)
    assert sorted(keys[at : at + 16] for at in range(0, len(keys), 16)) == sorted(name.key for name in names)
