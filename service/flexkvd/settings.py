"""The running configuration: where each value came from, and how those that may change do, without a restart.

Owns which values are in force. A value is the key's default, what the file says, or what was set live; the last
wins, until the file says something new of that key. Who acts on a value that is `live` asks `config` each time, or
listens. Made by `parts`; called by the REST API and, on SIGHUP, by `daemon`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flexkvd.config import TABLES, TENANTS, Config, KeyDescription, describe, load_config, parse_config
from flexkvd.toml_tables import Kind, bad_config, nearest

log = logging.getLogger(__name__)

Listener = Callable[[Config], None]
"""Is told what is configured from now on; a FlexKVError of its vetoes the change."""
Values = Mapping[str, Mapping[str, object]]
"""Of each table the keys that are given, as TOML or JSON has them."""

NAMED_CHARS_MAX = 40
"""So much of a name that is none is said again."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class Name(NamedTuple):
    """A key of the configuration."""

    table: str
    key: str

    def __str__(self) -> str:
        return f"{self.table}.{self.key}"


@dataclass(frozen=True)
class Reload:
    """What a reload came to: the keys that changed, and those of the file that wait for a restart."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]

    def __str__(self) -> str:
        changed, waiting = ", ".join(self.changed) or "nothing", ", ".join(self.needs_restart)
        return f"{changed} changed" + (f"; only a restart changes {waiting}" if waiting else "")


class Settings:
    """What is configured now. `needs_restart` names what the file says and this life of the daemon does not do."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs_restart: tuple[str, ...] = ()
        self._started = config
        self._live = dict.fromkeys(_live_names(config))
        self._file = config  # as it was last read
        self._set: dict[Name, object] = {}  # what stands over the file, for no longer than the file says the same
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call it with every configuration to come; should another listener veto that, again with the one before."""
        self._listeners.append(listener)

    def describe(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Of each table and key `value`, `default`, `origin`, `live` and `doc`; no secret is among them."""
        tables: dict[str, dict[str, dict[str, Any]]] = {}
        for each in _keys(self.config):
            name = Name(each.table, each.name)
            tables.setdefault(each.table, {})[each.name] = {
                "value": _shown(_value(self.config, name), each.kind),
                "default": _shown(each.default, each.kind),
                "origin": self._origin(name),
                "live": each.live,
                "doc": each.doc,
            }
        return tables

    def change(self, changes: Values) -> list[str]:
        """Set keys, all or none; None gives a key back to the file. Returns those whose value is another now.

        Raises FlexKVError(BAD_CONFIG): a value is not accepted, or the key may only change with a restart.
        """
        wanted = dict(self._set)
        for name, value in _flat(changes):
            self._check_live(name)
            wanted[name] = value
        return self._adopt(self._file, {name: value for name, value in wanted.items() if value is not None})

    async def reload(self) -> Reload:
        """Read the file again and do what may change; what was set live stays where the file says nothing new.

        Raises FlexKVError(BAD_CONFIG), and nothing has changed.
        """
        if self.config.path is None:
            raise bad_config("there is no file to read again: start flexkvd with --config FILE, or set keys by the API")
        file = await asyncio.to_thread(load_config, self.config.path)
        kept = {name: value for name, value in self._set.items() if _given(self._file, name) == _given(file, name)}
        changed = self._adopt(file, kept)
        return Reload(tuple(changed), self.needs_restart)

    def _adopt(self, file: Config, wanted: dict[Name, object]) -> list[str]:
        """Be configured by this file and what is set over it, or by neither: whoever listens may refuse."""
        before = self.config
        config = parse_config(self._merged(file, wanted), before.path)
        told: list[Listener] = []
        try:
            for listener in self._listeners:
                told.append(listener)
                listener(config)
        except Exception:
            for listener in told:
                listener(before)
            raise
        self.config, self._file, self._set = config, file, wanted
        self.needs_restart = tuple(_differences(config, file))
        changed = [name for name in _live_names(config) if _value(before, name) != _value(config, name)]
        for each in changed:
            log.info("configuration: %s = %r, it was %r", each, _value(config, each), _value(before, each))
        quotas = [f"{TENANTS}.{name}" for name in _changed_quotas(before, config)]
        return [*(str(name) for name in changed), *quotas]

    def _merged(self, file: Config, wanted: Mapping[Name, object]) -> dict[str, dict[str, object]]:
        """What the daemon was started with, under what of the file may change live, under what is set live."""
        live = self._live
        merged: dict[str, dict[str, object]] = {table: dict(keys) for table, keys in self._started.given.items()}
        for name in live:
            keys = merged.setdefault(name.table, {})
            keys.pop(name.key, None)
            if (value := wanted.get(name, _given(file, name))) is not None:
                keys[name.key] = value
        merged[TENANTS] = dict(file.given.get(TENANTS, {}))  # quotas are live, all of them
        return merged

    def _origin(self, name: Name) -> str:
        if name in self._set:
            return "live"
        written = self._file if name in self._live else self._started
        return "default" if _given(written, name) is None else "file"

    def _check_live(self, name: Name) -> None:
        live = self._live
        if name in live:
            return
        if name.table == TENANTS:
            raise bad_config("a quota is set by PUT /v1/tenants/NAME/quota, or in the file and read again (reload)")
        if name.table not in TABLES:
            raise bad_config(f"there is no table [{name.table[:NAMED_CHARS_MAX]}]{nearest(name.table, TABLES)}")
        if getattr(self._started, name.table) is None:
            raise bad_config(f"[{name.table}] is not configured: write that table into the file and restart")
        known = {each.name for each in describe() if each.table == name.table}
        if name.key not in known:
            raise bad_config(
                f"[{name.table}] has no key {name.key[:NAMED_CHARS_MAX]!r}{nearest(name.key, sorted(known))}"
            )
        raise bad_config(
            f"{name} changes only with a restart: write it into the file; live are {', '.join(map(str, live))}"
        )


def _keys(config: Config) -> Iterator[KeyDescription]:
    """The keys of every table that is configured."""
    return (each for each in describe() if getattr(config, each.table, None) is not None)


def _live_names(config: Config) -> Iterator[Name]:
    return (Name(each.table, each.name) for each in _keys(config) if each.live)


def _value(config: Config, name: Name) -> object:
    return getattr(getattr(config, name.table), name.key)


def _changed_quotas(before: Config, after: Config) -> list[str]:
    names = {**before.tenants, **after.tenants}
    return [name for name in names if before.tenants.get(name) != after.tenants.get(name)]


def _given(config: Config, name: Name) -> object | None:
    return config.given.get(name.table, {}).get(name.key)


def _flat(changes: Values) -> Iterator[tuple[Name, object]]:
    for table, keys in changes.items():
        if not isinstance(keys, Mapping):
            raise bad_config(f"{table[:NAMED_CHARS_MAX]} is no table: give its keys and their values")
        for key, value in keys.items():
            yield Name(table, key), value


def _differences(running: Config, file: Config) -> Iterator[str]:
    """What a restart would change: tables that come or go, and keys that are not live."""
    for table in TABLES:
        if (getattr(running, table) is None) != (getattr(file, table) is None):
            yield table
    for each in _keys(file):
        name = Name(each.table, each.name)
        if not each.live and getattr(running, each.table) is not None and _value(running, name) != _value(file, name):
            yield str(name)


def _shown(value: object, kind: str) -> object:
    """A value as JSON has it; credentials within a URL are left out."""
    match value:
        case str():
            return _CREDENTIALS.sub("…@", value)
        case tuple():
            return dict(value) if kind == Kind.CHOICES.value else list(value)
        case _:
            return value
