"""What a hostile worker may say: well-formed messages with impossible values, and streams that are no messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import msgspec

from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import KEY_BYTES
from flexkv_py.wire.codec import encode
from flexkv_py.wire.messages import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    Cancel,
    ClientMessage,
    Done,
    Fence,
    Flush,
    LayerLayout,
    Load,
    Match,
    Ping,
    Prefetch,
    RegisterMemory,
    Release,
    Reset,
    Save,
    UnregisterMemory,
    Wait,
)
from tests.service.conftest import GEOMETRY, PAGE_TOKENS, PAGES_PER_BLOCK
from tests.wire.test_garbage import random_stream

EXTREMES = (
    -(2**63),
    -(2**31),
    -2,
    -1,
    0,
    1,
    2,
    255,
    2**16,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
WORDS = ("", "dram", "ssd", "s3", "hbm", "tape", "DRAM", "x" * 5000, "\0", "\N{SNOWMAN}" * 300)

Make = Callable[[Random, int], ClientMessage]


def extreme(chance: Random) -> int:
    return chance.choice(EXTREMES)


def some_keys(chance: Random) -> bytes:
    """None, too many, cut, twice the same, or plausible ones that nobody has saved."""
    kind = chance.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return chance.randbytes(chance.randrange(1, 100))
    if kind == 2:
        return 2 * chance.randbytes(KEY_BYTES)
    if kind == 3:
        return bytes(KEY_BYTES * chance.choice((1, 2, 40_000)))
    return chance.randbytes(KEY_BYTES * chance.randrange(1, 5))


def some_pages(chance: Random, keys: bytes) -> bytes:
    """None, out of range, a wrong number, cut, or right ones."""
    kind, count = chance.randrange(5), len(keys) // KEY_BYTES * PAGES_PER_BLOCK
    if kind == 0:
        return chance.randbytes(chance.randrange(40))
    if kind == 1:
        return b"\xff" * 4 * count
    if kind == 2:
        return bytes(4 * (count + 1))
    if kind == 3:
        return bytes(max(0, 4 * count - 1))
    return b"".join(chance.randrange(4).to_bytes(4, "little") for _ in range(count))


def some_number(chance: Random) -> int:
    """A memory, ticket or lease: sometimes one that may exist."""
    return chance.randrange(1, 4) if chance.random() < 0.4 else extreme(chance)


def some_layout(chance: Random) -> list[LayerLayout]:
    layers = [(plane, layer) for plane, each in enumerate(GEOMETRY.planes) for layer in each.layers]
    if chance.random() < 0.5:
        return [LayerLayout(plane, layer, *(extreme(chance) for _ in range(3))) for plane, layer in layers]
    return [LayerLayout(*(extreme(chance) for _ in range(5))) for _ in range(chance.randrange(12))]


def _load(chance: Random, number: int) -> ClientMessage:
    keys = some_keys(chance)
    return Load(number, keys, some_pages(chance, keys), some_number(chance), chance.choice((0, 1, extreme(chance))))


def _save(chance: Random, number: int) -> ClientMessage:
    keys = some_keys(chance)
    return Save(
        number,
        keys,
        some_pages(chance, keys),
        some_number(chance),
        chance.choice((b"", bytes(KEY_BYTES), chance.randbytes(KEY_BYTES), chance.randbytes(chance.randrange(40)))),
        chance.choice((0, 1, extreme(chance))),
        chance.choice(WORDS),
        chance.random() < 0.5,
        chance.random() < 0.5,
    )


def _register(chance: Random, number: int) -> ClientMessage:
    kind = chance.choice(("paged", "window", *WORDS))
    tokens = chance.choice((PAGE_TOKENS, GEOMETRY.tokens_per_block, extreme(chance)))
    return RegisterMemory(number, extreme(chance), extreme(chance), tokens, some_layout(chance), kind)


def _match(chance: Random, number: int) -> ClientMessage:
    shards = [extreme(chance) for _ in range(chance.choice((0, 1, 2, 2000)))]
    return Match(number, some_keys(chance), shards, chance.choice((0, 1, extreme(chance))))


def _wait(chance: Random, number: int) -> ClientMessage:
    return Wait(number, some_number(chance), extreme(chance), chance.choice((0, 1, 50)))


def _flush(chance: Random, number: int) -> ClientMessage:
    return Flush(number, chance.choice(WORDS), chance.choice((1, extreme(chance))))


MAKERS: tuple[Make, ...] = (
    _load,
    _save,
    _register,
    _match,
    _wait,
    _flush,
    lambda chance, number: Prefetch(number, some_keys(chance), extreme(chance), chance.choice(WORDS)),
    lambda chance, number: UnregisterMemory(number, some_number(chance)),
    lambda chance, number: Cancel(number, some_number(chance)),
    lambda chance, number: Release(number, some_number(chance)),
    lambda chance, number: Fence(number, some_number(chance), some_pages(chance, bytes(KEY_BYTES))),
    lambda chance, number: Reset(number, 7 if chance.random() < 0.1 else -abs(extreme(chance)) - 1),
    lambda _chance, number: Ping(number),
)


def well_formed(chance: Random, number: int) -> ClientMessage:
    """A message that decodes; whether it can be served is for the daemon to say."""
    message = chance.choice(MAKERS)(chance, number)
    try:
        msgspec.msgpack.encode(message)
    except OverflowError:  # below -2**63, which nobody could have sent
        return Ping(number)
    return message


def _hello(chance: Random) -> bytes:
    """A greeting with something wrong in it, or a second one that is right."""
    bad_plane = Plane("kv", tuple(range(chance.choice((0, 1, 600)))), chance.choice((0, 1, 2**31)))
    fields = {
        "version": chance.choice((PROTOCOL_VERSION, extreme(chance))),
        "shard": extreme(chance),
        "epoch": extreme(chance),
        "role": chance.choice(("worker", "scheduler", *WORDS)),
        "tenant": chance.choice(WORDS),
    }
    geometry = msgspec.to_builtins(GEOMETRY)
    geometry["planes"] = chance.choice((geometry["planes"], [msgspec.to_builtins(bad_plane)]))
    geometry["tokens_per_block"] = chance.choice((GEOMETRY.tokens_per_block, extreme(chance)))
    hello = [1, 1, fields["version"], geometry, fields["role"], "", fields["shard"], fields["tenant"], fields["epoch"]]
    return framed(msgspec.msgpack.encode(hello))


def _not_a_number(chance: Random) -> bytes:
    """Floats, and among them none that is a number, where whole numbers belong."""
    value = chance.choice((math.nan, math.inf, -math.inf, 1.5, 1e300))
    return framed(
        msgspec.msgpack.encode([chance.randrange(1, 15), *chance.choice(([value], [1, value], [1, b"", value]))])
    )


def _nested(chance: Random) -> bytes:
    """Arrays in arrays, thousands deep."""
    return framed(b"\x93\x04\x01" + b"\x91" * chance.choice((100, 5000, 100_000)))


def _announced(chance: Random) -> bytes:
    """A length over the limit, or one whose bytes never come."""
    return chance.choice((MESSAGE_BYTES_MAX + 1, 2**32 - 1, MESSAGE_BYTES_MAX, 1000)).to_bytes(4, "little") + bytes(10)


def _cut(chance: Random) -> bytes:
    frame = bytes(encode(well_formed(chance, 5)))
    return frame[: chance.randrange(1, len(frame))]


def _of_the_daemon(_chance: Random) -> bytes:
    return bytes(encode(Done(3)))


STREAMS = (random_stream, _hello, _not_a_number, _nested, _announced, _cut, _of_the_daemon)


def garbage(chance: Random) -> bytes:
    """Bytes after which a session is over."""
    return chance.choice(STREAMS)(chance)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def wide_geometry() -> Geometry:
    """One of chunks that no segment of a small arena can hold."""
    return Geometry((Plane("kv", (0,), 1 << 20),), tokens_per_block=16)
