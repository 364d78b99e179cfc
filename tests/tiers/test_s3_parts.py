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
from flexkv_tiers.s3.health import (
    OUTAGE_COUNT_MAX,
    PROBE_DELAY_S_MAX,
    RETRY_DELAY_S_MAX,
    RETRY_TOKENS_MAX,
    Health,
)
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


def test_the_breaker_opens_after_a_row_of_outages_and_on_hopeless_ones():
    """A row of timeouts opens it, a success in between starts the row anew, a denial opens it at once."""
    health = Health(retry_count_max=3)
    for _ in range(OUTAGE_COUNT_MAX - 1):
        health.failed(Trouble.TIMEOUT, "slow")
    health.failed(Trouble.MISSING, "an answer all the same")
    for _ in range(OUTAGE_COUNT_MAX - 1):
        health.failed(Trouble.TIMEOUT, "slow")
    assert health.up
    health.failed(Trouble.TIMEOUT, "slow")
    assert health.down_because == "slow"
    health.close()
    assert health.up
    health.failed(Trouble.THROTTLED, "again")
    assert not health.up, "after a probe one outage is enough"
    other = Health(retry_count_max=3)
    other.failed(Trouble.DENIED, "no rights")
    assert not other.up


def test_probes_slow_down_until_a_move_succeeds():
    """Probe delays double to their limit and stay there when the breaker flaps; a success resets them."""
    health = Health(retry_count_max=0)
    first = health.probe_delay_s()
    delays = [health.probe_delay_s() for _ in range(10)]
    assert delays[0] == 2 * first
    assert delays[-1] == PROBE_DELAY_S_MAX
    health.close()
    assert health.probe_delay_s() == PROBE_DELAY_S_MAX
    health.succeeded()
    assert health.probe_delay_s() == first


def test_retries_are_bounded_in_number_time_and_budget():
    """No retry beyond the count, beyond the deadline, for an answer that will not change, or without budget."""
    health = Health(retry_count_max=3)
    assert health.retry_delay_s(Trouble.THROTTLED, 0, 10.0, 0.5) is not None
    assert health.retry_delay_s(Trouble.THROTTLED, 3, 10.0, 0.5) is None
    assert health.retry_delay_s(Trouble.THROTTLED, 2, 0.01, 0.9) is None
    assert health.retry_delay_s(Trouble.CORRUPT, 0, 10.0, 0.5) is None
    delays = [health.retry_delay_s(Trouble.SERVER, 0, 10.0, 0.99) for _ in range(100)]
    assert sum(delay is not None for delay in delays) == RETRY_TOKENS_MAX - 1
    for _ in range(10):
        health.succeeded()
    assert health.retry_delay_s(Trouble.SERVER, 0, 10.0, 0.0) == 0.0
    assert Health(1000).retry_delay_s(Trouble.SERVER, 999, 10.0, 0.99) <= RETRY_DELAY_S_MAX


def test_deletes_gather_while_a_batch_runs():
    """The first delete goes alone, what comes meanwhile goes together, and never more than S3 takes."""
    sent: list[list[str]] = []

    async def scene():
        async def send(names):
            sent.append(names)
            await asyncio.sleep(0.01)
            if "bad" in names:
                raise TierFault(Fault.IO, "refused")

        batches = DeleteBatches(send)
        first = asyncio.create_task(batches.delete("first"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(first, *(batches.delete(f"{number}") for number in range(DELETE_COUNT_MAX + 1)))
        assert [len(names) for names in sent] == [1, DELETE_COUNT_MAX, 1]
        with pytest.raises(TierFault):
            await asyncio.gather(batches.delete("bad"), batches.delete("bad"))
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
    handler._client.close()
    assert len(listed) == 3
    keys = b"".join(group.keys for page in listed for group in page.groups)
    assert sorted(keys[at : at + 16] for at in range(0, len(keys), 16)) == sorted(name.key for name in names)


def record_of(*lengths: int) -> objects._Record:
    return objects._Record([memoryview(bytes([at]) * length) for at, length in enumerate(lengths)], Call(1))


def test_small_parts_of_a_record_are_sent_together():
    """Reads give whole parts, joined up to a limit; a rewind begins anew, and the end is told by nothing."""
    large = objects.SEND_BYTES_MAX + 1
    record = record_of(4096, 4096, large, 4096, objects.SEND_BYTES_MAX - 4096, 4096)
    expected = [8192, large, objects.SEND_BYTES_MAX, 4096, 0, 0]
    assert [len(record.read()) for _ in expected] == expected
    assert record.tell() == len(record)
    record.seek(0)
    assert (record.tell(), bytes(record.read())) == (0, bytes(4096) + b"\x01" * 4096)


@pytest.mark.parametrize("record_bytes", [4096, objects.ASK_BYTES_MIN])
def test_only_large_uploads_ask_first(record_bytes):
    """A round trip before a small body costs more than the body."""
    client = objects._open_client(patient("ask"))
    seen = []
    client.meta.events.register("request-created.s3.PutObject", lambda request, **_: seen.append(request.headers))
    record = record_of(record_bytes)
    client.put_object(Bucket="flexkv", Key="ask", Body=record, ContentLength=len(record))
    assert client.get_object(Bucket="flexkv", Key="ask")["ContentLength"] == record_bytes
    client.close()
    assert [headers.get("Expect") for headers in seen] == ["100-continue" if record_bytes > 4096 else None]
