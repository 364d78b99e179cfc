"""Garbage through framing and codec: a message or a coded error, nothing else, and no growth."""

import random
import tracemalloc
import typing

import msgspec
import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire import codec, messages
from flexkv_py.wire.framing import FrameDecoder

from .test_codec import BROKEN, GEOMETRY, body_of

REFUSALS = {ErrorCode.BAD_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.BAD_GEOMETRY}
WHOLE = [
    body_of(messages.Hello(1, 1, GEOMETRY)),
    body_of(messages.RegisterMemory(2, 1, 1, 64, [messages.LayerLayout(0, 0, 0, 1, 1)])),
    body_of(messages.Match(3, bytes(64), [0, 1], 5)),
    body_of(messages.Save(4, bytes(64), bytes(16), 1, bytes(16), 9, "ssd")),
    body_of(messages.Progress(5, 1, True, 3, 1, ["loaded", "miss"], "why")),
    body_of(messages.Failed(6, "bad_key", "why")),
    *(body for name, body in BROKEN.items() if len(body) < 1000),
]


def random_stream(chance: random.Random) -> bytes:
    """One message gone wrong: random bytes, a damaged real one, or random msgpack; some lengths lie."""
    kind = chance.randrange(3)
    if kind == 0:
        body = chance.randbytes(chance.randrange(60))
    elif kind == 1:
        damaged = bytearray(chance.choice(WHOLE))
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        body = bytes(damaged[: chance.randrange(len(damaged) + 1)] if chance.random() < 0.3 else damaged)
    else:
        body = msgspec.msgpack.encode([chance.randrange(160), *(random_value(chance, 3) for _ in range(5))])
    length = len(body)
    if chance.random() < 0.05:
        length = chance.choice([chance.randrange(2**32), length + chance.randrange(40), chance.randrange(length + 1)])
    return length.to_bytes(4, "little") + body


def random_value(chance: random.Random, depth: int) -> object:
    """Any msgpack value, nested a little."""
    match chance.randrange(8 if depth else 6):
        case 0:
            return chance.randrange(-(2**31), 2**33)
        case 1:
            return chance.randbytes(chance.randrange(40))
        case 2:
            return "keys" * chance.randrange(3)
        case 3:
            return chance.random()
        case 4:
            return None
        case 5:
            return chance.random() < 0.5
        case 6:
            return [random_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return {chance.choice(["planes", "name", "x"]): random_value(chance, depth - 1)}


def survive(count: int, seed: int) -> tuple[int, int]:
    """Feed `count` messages; returns how many were understood and refused. A refusal drops the stream."""
    chance, decoder, understood, refused = random.Random(seed), FrameDecoder(), 0, 0
    decoders: list[typing.Callable[[memoryview], object]] = [codec.decode_client, codec.decode_daemon]
    for number in range(count):
        try:
            for body in decoder.feed(random_stream(chance)):
                decoders[number % 2](body)
                understood += 1
        except FlexKVError as error:
            if error.code not in REFUSALS:
                raise AssertionError(f"seed {seed}, message {number}") from error
            refused += 1
            decoder = FrameDecoder()
        if decoder.pending_bytes > 1 << 16:  # a length that lies within the limit waits for its bytes for ever
            decoder = FrameDecoder()
    return understood, refused


def test_twenty_thousand_garbage_messages():
    """Each is understood or refused with a code; both happen, and nothing is kept of them."""
    survive(2000, seed=0)
    tracemalloc.start()
    understood, refused = survive(20_000, seed=1)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert understood > 200
    assert refused > 10_000
    assert kept_bytes < 1 << 20


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_garbage_messages(seed):
    """The same over ten seeds of a hundred thousand."""
    understood, refused = survive(100_000, seed)
    assert understood + refused > 50_000
