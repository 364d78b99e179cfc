"""TOML tables as frozen dataclasses: kinds of value, ranges, and errors that name the cure.

Owns how a value is read and refused; owns no key of its own (those are in `config`). A table is a
frozen dataclass whose fields are made by `key()`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from flexkv_py.errors import ErrorCode, FlexKVError

SIZE_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")
INTEGERS_MAX = 1024
NAMES_MAX = 64


class Kind(Enum):
    """How the text of a value is read."""

    SIZE = "size"
    COUNT = "count"
    NUMBER = "number"
    SWITCH = "switch"
    TEXT = "text"
    INTEGERS = "list of integers"
    CHOICES = "table of choices"
    TEXTS = "string or list of strings"


@dataclass(frozen=True)
class Key:
    """What is accepted for one key, and what it means."""

    kind: Kind
    doc: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    live: bool = False  # may change while the daemon runs

    @property
    def accepted(self) -> str:
        """The accepted range in words."""
        if self.kind is Kind.CHOICES:
            words = ", ".join(f'"{choice}"' for choice in self.choices)
            return f"a table of at most {NAMES_MAX} names, each with one of {words}"
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        match self.kind:
            case Kind.SIZE:
                return f'{format_size(int(self.low))} to {format_size(int(self.high))}, as bytes or like "4GiB"'
            case Kind.COUNT:
                return f"a whole number from {int(self.low)} to {int(self.high)}"
            case Kind.NUMBER:
                return f"a number from {self.low:g} to {self.high:g}"
            case Kind.SWITCH:
                return "true or false"
            case Kind.TEXT:
                return "a string that is not empty" if self.low else "a string"
            case Kind.TEXTS:
                return f"a string that is not empty, or a list of at most {int(self.high)} different ones"
            case Kind.INTEGERS | Kind.CHOICES:
                return f"a list of at most {INTEGERS_MAX} whole numbers from {int(self.low)} to {int(self.high)}"


class Table(Protocol):
    """A frozen dataclass whose fields were made by `key()`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


TableT = TypeVar("TableT", bound=Table)


def key(
    kind: Kind,
    doc: str,
    default: Any = MISSING,
    *,
    low: float = 0,
    high: float = 0,
    choices: tuple[str, ...] = (),
    live: bool = False,
) -> Any:
    """A dataclass field that is read from TOML; without `default` the key must be given. Of a text, `low` is its
    least length. What is `live` may change while the daemon runs: readers ask `settings` each time, or listen to it.
    """
    return field(default=default, metadata={"key": Key(kind, doc, low, high, choices, live)})


def keys_of(table: type[Table]) -> Iterable[tuple[Field[Any], Key]]:
    """The fields of a table with what is accepted for each, in order."""
    return [(each, each.metadata["key"]) for each in fields(table)]


def read_table(table: type[TableT], name: str, values: Mapping[str, object]) -> TableT:
    """Build a table from parsed TOML. Raises FlexKVError(BAD_CONFIG) for anything not accepted."""
    known = {each.name: accepted for each, accepted in keys_of(table)}
    for given in values:
        if given not in known:
            raise bad_config(f"[{name}] has no key {given!r}{nearest(given, known)}")
    for each, accepted in keys_of(table):
        if each.name not in values and each.default is MISSING:
            raise bad_config(f"[{name}] needs {each.name}: {accepted.doc} Give {accepted.accepted}.")
    return table(**{given: _read(known[given], name, given, value) for given, value in values.items()})


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the known word closest to `word`, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else f": known are {', '.join(names)}"


def bad_config(why: str) -> FlexKVError:
    """A refusal of the configuration; `why` names cause and cure."""
    return FlexKVError(ErrorCode.BAD_CONFIG, why)


def format_size(count: int) -> str:
    """A size with the largest unit that divides it."""
    units = ("TiB", "GiB", "MiB", "KiB", "") if count else ("",)
    unit = next(unit for unit in units if count % SIZE_UNITS[unit] == 0)
    return f"{count // SIZE_UNITS[unit]}{unit}"


def _read(accepted: Key, table: str, name: str, value: object) -> Any:
    read = _READERS[accepted.kind](value)
    in_range = read is not None and _in_range(accepted, read)
    if not in_range:
        raise bad_config(f"[{table}] {name} = {value!r} is not accepted: give {accepted.accepted}")
    return read


def _in_range(accepted: Key, value: Any) -> bool:
    if accepted.kind is Kind.CHOICES:
        return len(value) <= NAMES_MAX and all(choice in accepted.choices for _, choice in value)
    if accepted.choices:
        return value in accepted.choices
    match accepted.kind:
        case Kind.SIZE | Kind.COUNT | Kind.NUMBER:
            return bool(accepted.low <= value <= accepted.high)
        case Kind.INTEGERS:
            return len(value) <= INTEGERS_MAX and all(accepted.low <= each <= accepted.high for each in value)
        case Kind.TEXT:
            return len(value) >= accepted.low
        case Kind.TEXTS:
            return accepted.low <= len(value) <= accepted.high and all(value) and len(set(value)) == len(value)
        case Kind.SWITCH | Kind.CHOICES:
            return True


def _size(value: object) -> int | None:
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)) and found[2] in SIZE_UNITS:
        return int(found[1]) * SIZE_UNITS[found[2]]
    return _count(value)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and "\0" not in value else None


def _integers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(_count(each) is None for each in value):
        return None
    return tuple(value)


def _choices(value: object) -> tuple[tuple[str, str], ...] | None:
    """A table of names, as pairs: a value of configuration is frozen."""
    if not isinstance(value, Mapping) or not all(_text(choice) for choice in value.values()):
        return None
    return tuple(value.items())


def _texts(value: object) -> tuple[str, ...] | None:
    """One string stands for a list of one."""
    texts = [_text(each) for each in (value if isinstance(value, list) else [value])]
    return None if None in texts else tuple(text for text in texts if text is not None)


_READERS: dict[Kind, Callable[[object], Any]] = {
    Kind.SIZE: _size,
    Kind.COUNT: _count,
    Kind.NUMBER: _number,
    Kind.SWITCH: _switch,
    Kind.TEXT: _text,
    Kind.INTEGERS: _integers,
    Kind.CHOICES: _choices,
    Kind.TEXTS: _texts,
}
