"""Arguments that no daemon could understand: each client refuses them with a code, and works on."""

import asyncio

import pytest

from flexkv_py.client.aio import AsyncClient
from flexkv_py.errors import ErrorCode

from .conftest import GEOMETRY
from .test_aio import refusal_of
from .test_aio import register as register_async
from .test_client import refused, register

KEY = bytes(16)

BAD_KEYS = [["x" * 16], [None], None, 7, [b"short", bytes(27)], [memoryview(bytes(64)).cast("I")], "x" * 16]
BAD_PAGES = [["a"], [1.5] * 4, None, 7, b"abcd", [None] * 4, "abcd"]
BAD_TOKENS = [["a"] * 64, [1.5] * 64, None, 7, bytes(64), [-1] * 64, [2**32] * 64]


@pytest.mark.parametrize("keys", BAD_KEYS)
def test_keys_that_are_none_are_refused(client, keys):
    """Whatever is no list of 16 bytes each is a bad key to every call that takes keys."""
    memory = register(client)
    for call in (
        lambda: client.match(keys),
        lambda: client.prefetch(keys),
        lambda: client.load(keys, range(4), memory),
        lambda: client.save(keys, range(4), memory),
    ):
        with refused(ErrorCode.BAD_KEY) as refusal:
            call()
        assert "client.keys()" in refusal.value.message
    client.ping()


def test_a_parent_that_is_no_key_is_refused(client):
    """A parent is a key like the others."""
    with refused(ErrorCode.BAD_KEY):
        client.keys(range(64), parent="root")
    with refused(ErrorCode.BAD_KEY):
        client.save([KEY], range(4), register(client), parent=None)


@pytest.mark.parametrize("pages", BAD_PAGES)
def test_pages_that_are_no_numbers_are_refused(client, pages):
    """Pages of other types are a bad argument to load, save and fence."""
    memory = register(client)
    for call in (
        lambda: client.load([KEY], pages, memory),
        lambda: client.save([KEY], pages, memory),
        lambda: client.fence(memory, pages),
    ):
        with refused(ErrorCode.BAD_ARGUMENT) as refusal:
            call()
        assert "page numbers" in refusal.value.message
    client.ping()


@pytest.mark.parametrize("tokens", BAD_TOKENS, ids=lambda tokens: repr(tokens)[:20])
def test_tokens_that_are_no_numbers_are_refused(client, tokens):
    """Tokens of other types, negative or above 32 bits are a bad argument."""
    with refused(ErrorCode.BAD_ARGUMENT) as refusal:
        client.keys(tokens)
    assert "token ids" in refusal.value.message


def test_numbers_out_of_range_are_refused(client):
    """Times, chunks, shards, epochs and events that the wire or the wait cannot express are a bad argument."""
    ticket = client.prefetch([KEY])
    for call in (
        lambda: client.reset(2**70),
        lambda: client.match([KEY], shards=[2**70]),
        lambda: client.match([KEY], shards=3),
        lambda: client.match([KEY], hold_s=None),
        lambda: client.prefetch([KEY], deadline_s="soon"),
        lambda: client.prefetch([KEY], deadline_s=float("nan")),
        lambda: ticket.wait(timeout_s=-1),
        lambda: ticket.wait(timeout_s="soon"),
        lambda: ticket.wait(chunk="first"),
        lambda: ticket.wait(chunk=0.5),
        lambda: client.save([KEY], range(4), register(client), after=None),
        lambda: client.save([KEY], range(4), register(client), after="event"),
    ):
        with refused(ErrorCode.BAD_ARGUMENT):
            call()
    for descriptor in (-1, 2**70, "memfd", None):
        with refused(ErrorCode.BAD_MEMORY):
            client.register_memory(descriptor, bytes=1, page_count=1, page_tokens=16)
    client.ping()


def test_the_asyncio_client_refuses_the_same(daemon):
    """The twin has the same codes for the same mistakes."""

    async def main() -> None:
        async with AsyncClient(daemon.path, GEOMETRY) as client:
            memory = await register_async(client)
            assert await refusal_of(client.match(["x" * 16])) is ErrorCode.BAD_KEY
            assert await refusal_of(client.load([KEY], [1.5] * 4, memory)) is ErrorCode.BAD_ARGUMENT
            assert await refusal_of(client.reset(2**70)) is ErrorCode.BAD_ARGUMENT
            assert await refusal_of(client.save([KEY], range(4), memory, after=None)) is ErrorCode.BAD_ARGUMENT
            ticket = await client.prefetch([KEY])
            assert await refusal_of(ticket.wait(timeout_s=-1)) is ErrorCode.BAD_ARGUMENT
            await client.ping()

    asyncio.run(main())
