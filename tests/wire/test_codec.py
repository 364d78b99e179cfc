"""Codec: a body is a message of the protocol, or one coded error."""

import tracemalloc
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.wire import codec, messages
from flexkv_py.wire.framing import PREFIX_BYTES

GEOMETRY = Geometry(planes=(Plane("kv", (0, 1), 576), Plane("index", (0, 1), 132)), layer_groups=((0, 1),))
CLIENT_TYPES = typing.get_args(messages.ClientMessage)
DAEMON_TYPES = typing.get_args(messages.DaemonMessage)

numbers = st.integers(-(2**63), 2**64 - 1)
special = {Geometry: st.just(GEOMETRY)}


def messages_of(kind: type) -> st.SearchStrategy:
    """Any message of one type, from its own annotations."""
    fields = typing.get_type_hints(kind)
    plain = {int: numbers, str: st.text(max_size=20), bytes: st.binary(max_size=64), bool: st.booleans(), **special}
    listed = {list[int]: plain[int], list[str]: plain[str]}
    values = {}
    for name, annotation in fields.items():
        if name.startswith("__"):
            continue
        if annotation in plain:
            values[name] = plain[annotation]
        elif annotation in listed:
            values[name] = st.lists(listed[annotation], max_size=5)
        elif type(None) in typing.get_args(annotation):
            values[name] = st.none() | messages_of(typing.get_args(annotation)[0])
        else:
            values[name] = st.lists(messages_of(typing.get_args(annotation)[0]), max_size=5)
    return st.builds(kind, **values)


def body_of(message: messages.ClientMessage | messages.DaemonMessage) -> bytes:
    return bytes(codec.encode(message)[PREFIX_BYTES:])


@given(st.one_of([messages_of(kind) for kind in CLIENT_TYPES]))
def test_every_client_message_survives_the_wire(message):
    """Encoded and decoded, a client's message is equal to itself."""
    assert codec.decode_client(body_of(message)) == message


@given(st.one_of([messages_of(kind) for kind in DAEMON_TYPES]))
def test_every_daemon_message_survives_the_wire(message):
    """Encoded and decoded, a daemon's message is equal to itself."""
    assert codec.decode_daemon(body_of(message)) == message


def test_tags_are_apart():
    """Tags are unique; clients' lie below 60, the daemon's above, and those it sends of itself from 128 on."""
    tags = {kind: kind.__struct_config__.tag for kind in (*CLIENT_TYPES, *DAEMON_TYPES)}
    assert len(set(tags.values())) == len(tags)
    assert all(0 < tags[kind] < 60 for kind in CLIENT_TYPES)
    assert all(65 <= tags[kind] < 160 for kind in DAEMON_TYPES)
    assert all(tags[kind] >= 128 for kind in (messages.GoingAway, messages.Pages, messages.ReplayRefused))


def test_fields_of_a_later_version_are_ignored_and_missing_ones_have_defaults():
    """A longer array from a newer peer and a shorter one from an older peer are both understood."""
    assert codec.decode_client(msgspec.msgpack.encode([14, 5, "new", {"a": 1}])) == messages.Ping(5)
    assert codec.decode_client(msgspec.msgpack.encode([4, 5, b"k"])) == messages.Match(5, b"k")


BROKEN = {
    "nothing": b"",
    "no array": msgspec.msgpack.encode({"tag": 14}),
    "an unknown tag": msgspec.msgpack.encode([39, 1]),
    "half an attach": msgspec.msgpack.encode([41, 1, 2]),
    "a daemon's tag": msgspec.msgpack.encode([70, 1]),
    "no id": msgspec.msgpack.encode([14]),
    "a wrong type": msgspec.msgpack.encode([4, 1, "keys"]),
    "trailing bytes": msgspec.msgpack.encode([14, 1]) + b"\0",
    "cut short": msgspec.msgpack.encode([4, 1, b"keys"])[:-1],
    "a lying array": b"\x95\x04\x01\xc4\x01a\xdd\xff\xff\xff\xff\x00",
    "a lying byte string": b"\x93\x04\x01\xc6\xff\xff\xff\xff",
    "text that is no UTF-8": b"\x94\x0c\x01\xa2\xff\xff\x00",
    "a hundred thousand arrays": b"\x96\x04\x01\xc4\x01a\x90\x00" + b"\x91" * 100_000,
    "a hundred thousand arrays in a geometry": b"\x94\x01\x01\x01\x81\xa1x" + b"\x91" * 100_000,
    "a lying list of planes": b"\x94\x01\x01\x01\x81\xa6planes\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_one_coded_error(name):
    """Whatever is wrong, the refusal is BAD_MESSAGE, short, and costs no memory to speak of."""
    tracemalloc.start()
    with pytest.raises(FlexKVError) as refusal:
        codec.decode_client(BROKEN[name])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal.value.code is ErrorCode.BAD_MESSAGE
    assert len(refusal.value.message) < 600
    assert peak_bytes < 1 << 20


def test_a_refusal_names_the_field():
    """The sender learns which field is wrong."""
    with pytest.raises(FlexKVError, match=r"Expected `bytes`, got `int` - at `\$\[2\]`"):
        codec.decode_client(msgspec.msgpack.encode([4, 1, 7]))


def test_a_nonsense_geometry_keeps_its_own_code():
    """A hello whose geometry is refused says so as BAD_GEOMETRY."""
    body = msgspec.msgpack.encode([1, 9, 1, {"planes": []}])
    with pytest.raises(FlexKVError) as refusal:
        codec.decode_client(body)
    assert refusal.value.code is ErrorCode.BAD_GEOMETRY
    assert codec.request_id(body) == 9


def test_the_id_of_a_refused_body_can_still_be_read():
    """The daemon can answer a request it does not understand; where there is no id, it reads 0."""
    assert codec.request_id(msgspec.msgpack.encode([99, 7, "?"])) == 7
    for body in (b"", b"\xc0", msgspec.msgpack.encode([14, -5]), b"\x92\x0e\xa2\xff\xff", b"\x91" * 100_000):
        assert codec.request_id(body) == 0
