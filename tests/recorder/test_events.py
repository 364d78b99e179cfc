"""Every event the planner handles, as bytes and back."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Sequence
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest

from flexkv_py.core.config import PlannerConfig
from flexkv_py.core.messages import MatchAsked, TimePassed
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KeyRun
from flexkvd.planning import make_planner
from flexkvd.recorder.events import EventCodec, EventReader
from flexkvd.recorder.words import event_line, plain_event

TYPES = make_planner(PlannerConfig()).event_types


def examples(hint: Any) -> list[Any]:
    """Values of an annotation: each kind of value it allows, and the largest numbers."""
    if isinstance(hint, NewType):
        return examples(hint.__supertype__)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [each for argument in arguments for each in examples(argument)]
    if origin in (list, Sequence):
        return [[], examples(arguments[0])]
    if origin is tuple:
        inner = [examples(each) for each in arguments if each is not ...]
        return [tuple(inner[0])] if ... in arguments else [tuple(each[-1] for each in inner)]
    if origin is dict:
        return [{}, dict(zip(examples(arguments[0]), examples(arguments[1]), strict=False))]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return examples_of(hint)
    return {
        int: [0, -1, (1 << 64) - 1],
        bool: [False, True],
        str: ["", "a name ‖"],
        bytes: [b"", bytes(range(16))],
        float: [0.25, 1e300],
        types.NoneType: [None],
    }[hint]


def examples_of(kind: type) -> list[Any]:
    """Instances of a dataclass or named tuple, in which every field has each of its examples once."""
    by_field = {name: examples(hint) for name, hint in get_type_hints(kind).items() if name in _names(kind)}
    count = max(map(len, by_field.values()))
    return [kind(**{name: each[at % len(each)] for name, each in by_field.items()}) for at in range(count)]


def _names(kind: Any) -> Sequence[str]:
    return kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_type_the_planner_handles_comes_back_as_it_was(kind: type) -> None:
    """All types of its handler table, whoever added them: what is read equals what was written, in every field."""
    events = examples_of(kind)
    codec, records = EventCodec(TYPES), bytearray()
    for event in events:
        codec.put(event, records)
    assert list(EventReader(codec.shapes, TYPES).read(bytes(records), len(events))) == events
    for event in events:
        assert kind.__name__ in event_line(1, event)
        assert plain_event(event)["event"] == kind.__name__


def test_keys_that_came_as_one_field_are_written_as_one_and_read_as_a_list() -> None:
    """A match of 1,000 keys costs 16 bytes a key, and is the same match when it is read."""
    raw = bytes(range(16)) * 1000
    codec, records = EventCodec(TYPES), bytearray()
    codec.put(MatchAsked(1, 2, KeyRun(raw), (0,), 0, 3), records)
    assert len(records) < len(raw) + 100
    [event] = EventReader(codec.shapes, TYPES).read(bytes(records), 1)
    assert event == MatchAsked(1, 2, list(KeyRun(raw)), (0,), 0, 3)


def test_an_event_of_another_version_is_refused_by_name() -> None:
    """A type that is unknown here, or has other fields, is named with the cure; nothing is read."""
    for shape in (("Vanished", ["now_ns"]), ("TimePassed", ["now_ns", "moon"])):
        with pytest.raises(FlexKVError, match=f"{shape[0]}.*version") as refused:
            EventReader([shape], TYPES)
        assert refused.value.code is ErrorCode.BAD_RECORDING


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x92\x01\xc0", b"\x92\xff\x80", b"\x92\x7f\x80", b"\xc1"])
def test_garbage_in_a_piece_is_refused(garbage: bytes) -> None:
    """Whatever the bytes, they are events or BAD_RECORDING."""
    with pytest.raises(FlexKVError) as refused:
        list(EventReader([("TimePassed", ["now_ns"])], [TimePassed]).read(garbage, 1))
    assert refused.value.code is ErrorCode.BAD_RECORDING
