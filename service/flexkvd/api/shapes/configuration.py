"""Shapes of the running configuration: what is in force, and what may change. Made from the tables' own keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from flexkvd.api.shapes.base import EXACT_MAX, Body, Shape, said
from flexkvd.config import TABLES
from flexkvd.toml_tables import SIZE_UNITS, Key, Kind, keys_of

_SIZE_PATTERN = rf"^\d+ ?({'|'.join(SIZE_UNITS)})$"


class Setting(Shape):
    """One key of the configuration."""

    value: Any = said(20.0, "In force now.")
    default: Any = said(20.0, "Of a file that does not name it; null where it must be given.")
    origin: Literal["default", "file", "live"] = said("file", "Where the value came from.")
    live: bool = said(True, "Whether it may change without a restart.")
    doc: str = said("Time SIGTERM leaves running tickets.", "What it means.")


class Configuration(Shape):
    """Everything configured; no secret is among it."""

    tables: dict[str, dict[str, Setting]] = said({}, "By table, then by key.")


class ConfigurationChange(Shape):
    """What a change came to."""

    changed: list[str] = said(["daemon.drain_s"], "Keys whose value is another now.")
    config: Configuration = said({}, "What is in force now.")


class _Named(Body):
    """Other keys are refused too, by `Settings`, which says of each why: a misprint, or one that needs a restart."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})


def _accepted(key: Key) -> Any:
    """A key's type with its limits; null gives the key back to the file."""
    if key.choices:
        return Literal[key.choices] | None
    match key.kind:
        case Kind.SIZE:
            whole = Annotated[int, Field(ge=int(key.low), le=min(int(key.high), EXACT_MAX))]
            return whole | Annotated[str, Field(pattern=_SIZE_PATTERN)] | None
        case Kind.COUNT:
            return Annotated[int, Field(ge=int(key.low), le=int(key.high))] | None
        case Kind.NUMBER:
            return Annotated[float, Field(ge=key.low, le=key.high)] | None
        case Kind.SWITCH:
            return bool | None
        case _:
            return str | None


def _table(name: str, table: type) -> Any:
    """The live keys of one table; None when it has none."""
    fields: dict[str, Any] = {
        each.name: (_accepted(key), Field(default=None, description=key.doc, examples=[each.default]))
        for each, key in keys_of(table)
        if key.live
    }
    title = f"{name.title().replace('_', '')}Keys"
    return (
        create_model(title, __base__=_Named, __doc__=f"What of [{name}] may change live.", **fields) if fields else None
    )


_TABLES = {name: shape for name, table in TABLES.items() if (shape := _table(name, table)) is not None}
_FIELDS: dict[str, Any] = {
    name: (shape, Field(default_factory=dict, description=f"Keys of [{name}].", validate_default=False))
    for name, shape in _TABLES.items()
}
ConfigurationBody: Any = create_model(
    "ConfigurationBody", __base__=_Named, __doc__="Keys to set, by table; null gives a key back to the file.", **_FIELDS
)
