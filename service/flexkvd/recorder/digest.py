"""Whether two planners are in one state: a digest of all that a state holds, and a witness that costs next to nothing.

The digest walks whatever can be reached from the state, so what a new part keeps there counts without a line here. An
object is known by the order in which the walk meets it, never by its address; what has an order (eviction orders,
queues, heaps, dicts) counts with it, what has none (sets) is sorted. So it depends on no hash seed, and two equal
planners of one version have equal digests. Values that cannot change are compared by what they say, for nobody can
tell whether two events once shared them. Pure; called by `ring`, `replay` and tests.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from itertools import count
from operator import attrgetter
from struct import Struct
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import msgspec

from flexkv_py.core.state import Level, State

DIGEST_BYTES = 16
_ATOMS = {int, str, bytes, bytearray, float, bool, type(None)}
_encode = msgspec.msgpack.Encoder(enc_hook=lambda value: value).encode


def digest_of(state: State) -> str:
    """32 hex digits for the whole state. Takes some 10 µs per block."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    walk = _Walk()
    walk.refer(state)
    for entity in walk.met():
        hasher.update(_encode([type(entity).__name__, *map(walk.plain, _values_of(entity))]))
    return hasher.hexdigest()


def witness_of(state: State) -> bytes:
    """8 bytes that follow from what was counted, numbered, told and filled so far: different for most differences."""
    said = (
        state.now_ns,
        repr(state.numbers),
        state.frames.used_pages,
        [(level.used_bytes, *_in_order(level)) for level in state.levels.values()],
        [len(kept) for kept in (state.transfers, state.tickets, state.leases, state.timers, state.relink)],
        list(state.counters.items()),
        state.story[-1] if state.story else None,
    )
    return hashlib.blake2b(_encode(said), digest_size=8).digest()


def _in_order(level: Level) -> tuple[int, int]:
    """Copies in the orders of all tenants, and those of them that may go at once."""
    return sum(shelf.count for shelf in level.shelves), sum(shelf.reclaimable.count for shelf in level.shelves)


class _Walk:
    """Gives each object that can change its number, and plain words for every value."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._waiting: deque[Any] = deque()
        self._met: list[Any] = []  # keeps every address taken

    def met(self) -> Iterator[Any]:
        """Every object that was referred to, once, also those referred to meanwhile."""
        while self._waiting:
            yield self._waiting.popleft()

    def refer(self, entity: object) -> int:
        """The number of an object."""
        number = self._numbers.get(id(entity))
        if number is None:
            number = self._numbers[id(entity)] = len(self._numbers)
            self._waiting.append(entity)
            self._met.append(entity)
        return number

    def plain(self, value: Any) -> Any:
        """The value, in words msgpack knows."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        words = _WORDS.get(kind)
        if words is None:
            words = _WORDS[kind] = _words_for(kind)
        return words(self, value)


def _sequence(walk: _Walk, value: Any) -> Any:
    return [*map(walk.plain, value)]


def _mapping(walk: _Walk, value: Any) -> Any:
    plain = walk.plain
    return [(plain(key), plain(each)) for key, each in value.items()]


def _unordered(walk: _Walk, value: Any) -> Any:
    known = len(walk._numbers)
    words = sorted(_encode(walk.plain(each)) for each in value)
    assert len(walk._numbers) == known, "a set of objects has no order that two runs share"
    return words


def _fields(walk: _Walk, value: Any) -> Any:
    return [type(value).__name__, *map(walk.plain, _values_of(value))]


def _entity(walk: _Walk, value: Any) -> Any:
    return ("@", walk.refer(value))


_Words = Callable[[_Walk, Any], Any]
_WORDS: dict[type, _Words] = {
    list: _sequence,
    tuple: _sequence,
    deque: _sequence,
    dict: _mapping,
    set: _unordered,
    frozenset: _unordered,
    array: lambda _, value: (value.typecode, value.tobytes()),
    count: lambda _, value: repr(value),
    Struct: lambda _, value: value.format,
    FunctionType: lambda _, value: value.__qualname__,
    BuiltinFunctionType: lambda _, value: value.__qualname__,
    MethodType: lambda walk, value: (value.__func__.__qualname__, walk.plain(value.__self__)),
    partial: lambda walk, value: [*map(walk.plain, (value.func, value.args, value.keywords))],
}
"""How each type is put, those that were met besides."""
_SLOTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def _words_for(kind: type) -> _Words:
    """How values of a type that is not in the table are put."""
    if issubclass(kind, Enum):
        return lambda _, value: value.name
    if issubclass(kind, tuple):
        return _sequence
    if issubclass(kind, dict):
        return _mapping
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return _fields if frozen else _entity


def _values_of(value: Any) -> Iterator[Any]:
    """All attributes: those of slots by class, the base first, then the others as they were set."""
    kind = type(value)
    if kind not in _SLOTS:
        _SLOTS[kind] = _slots_of(kind)
    yield from _SLOTS[kind](value)
    yield from getattr(value, "__dict__", {}).values()


def _slots_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = [name for base in reversed(kind.__mro__) for name in base.__dict__.get("__slots__", ())]
    names = [name for name in names if not name.startswith("__")]
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)
