"""Events of the planner ↔ bytes. What an event consists of is read from its dataclass: a new type needs no line here.

Owns the numbers of types and the promise that what is read is an event of these types or raises BAD_RECORDING. Values
lose what only the sender had of them: a run of keys that came as one field of bytes is read as a list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec

from flexkv_py.core.messages import Event
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import KeyRun

MARK = 0
"""The number of what is no event: what the state was like before the next one. Types are numbered from 1."""

Shapes = list[tuple[str, list[str]]]
"""Name and fields of each type, in the order of their numbers."""


def bad_recording(message: str) -> FlexKVError:
    """What is no recording, or none of this program."""
    return FlexKVError(ErrorCode.BAD_RECORDING, message)


class EventCodec:
    """One per planner, for the types of events it handles."""

    def __init__(self, types: Sequence[type[Any]]) -> None:
        self.shapes: Shapes = [(each.__name__, [field.name for field in dataclasses.fields(each)]) for each in types]
        self._types = tuple(types)
        self._numbers = {each: number for number, each in enumerate(types, MARK + 1)}
        self._encode_into = msgspec.msgpack.Encoder(enc_hook=_plain).encode_into

    def put(self, event: Event, target: bytearray) -> None:
        """Append an event."""
        self._encode_into((self._numbers[type(event)], event), target, -1)

    def put_mark(self, mark: bytes, target: bytearray) -> None:
        """Append what the state is like now."""
        self._encode_into((MARK, mark), target, -1)


class EventReader:
    """Reads what a codec of `shapes` wrote, as events of `types`. Raises BAD_RECORDING where these have changed."""

    def __init__(self, shapes: Shapes, types: Sequence[type[Any]]) -> None:
        ours = {each.__name__: each for each in types}
        self._types: list[type[Any]] = []
        self._runs: list[list[str]] = []  # fields that may have come as one field of bytes
        for name, fields in shapes:
            known = ours.get(name)
            if known is None or fields != [field.name for field in dataclasses.fields(known)]:
                raise bad_recording(
                    f"the recording has events {name}({', '.join(fields)}), which this version does not know in that "
                    "form: replay it with the version of flexkv that wrote it"
                )
            hints = get_type_hints(known)
            self._types.append(known)
            self._runs.append([field for field, hint in hints.items() if get_origin(hint) is Sequence])

    def read(self, piece: bytes, count: int) -> Iterator[Event | bytes]:
        """The events of one piece, each mark as its bytes. Raises BAD_RECORDING."""
        try:
            records = msgspec.msgpack.decode(_array_of(count) + piece, type=list[tuple[_Number, Any]])
            for number, value in records:
                yield value if number == MARK else self._event(number, value)
        except (msgspec.MsgspecError, IndexError, TypeError, KeyError, ValueError, OverflowError, FlexKVError) as error:
            raise bad_recording(f"the recording holds what is no event ({error}): take another dump") from error

    def _event(self, number: int, value: dict[str, Any]) -> Event:
        for field in self._runs[number - 1]:
            if isinstance(value[field], bytes):
                value[field] = list(KeyRun(value[field]))
        event: Event = msgspec.convert(value, self._types[number - 1])
        return event


_Number = Annotated[int, msgspec.Meta(ge=MARK)]
_ARRAY_32 = b"\xdd"


def _array_of(count: int) -> bytes:
    """What msgpack has before an array of so many."""
    return _ARRAY_32 + count.to_bytes(4, "big")


def _plain(value: Any) -> bytes:
    """What msgspec does not know by itself."""
    assert isinstance(value, KeyRun), f"an event holds {type(value).__name__}, which nobody can write down"
    return value.raw
