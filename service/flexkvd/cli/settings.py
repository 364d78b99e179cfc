"""`flexkv config`: the running configuration, where each value came from, and changing what may change live."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output
from flexkvd.cli.admin import path_of
from flexkvd.cli.connecting import add_command, client_of

Answer = Mapping[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `config` to the commands of `flexkv`."""
    about = (
        "Shows what the daemon runs with: each key's value, its default, and where the value came from. Given "
        "TABLE.KEY=VALUE, changes them until the next start; all of them or none. With --json the answer of GET "
        "/v1/config or PATCH /v1/config."
    )
    examples = (
        "flexkv config",
        "flexkv config planner",
        "flexkv config --changed",
        "flexkv config planner.policy=lru api.requests_per_s_max=50",
    )
    parser = add_command(commands, "config", "show or change the configuration", about, examples)
    parser.add_argument("words", nargs="*", metavar="TABLE[.KEY[=VALUE]]", help="what to show, or to change")
    parser.add_argument("--changed", action="store_true", help="only what is not the default")
    parser.add_argument("--live", action="store_true", help="only what may change without a restart")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Show, or change and show what changed."""
    client = client_of(chosen)
    changes = changes_of([word for word in chosen.words if "=" in word])
    if changes and any("=" not in word for word in chosen.words):
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, "some words have a = and some have none: show or change, not both")
    if changes:
        output.emit(chosen, client.call("PATCH", path_of("config"), changes), view_changed)
        return 0
    answer = client.call("GET", path_of("config"))
    tables = {
        table: kept for table, keys in answer["tables"].items() if (kept := _wanted(chosen, table, keys, chosen.words))
    }
    if not tables and chosen.words:
        why = f"there is no {' or '.join(chosen.words)} in the configuration: flexkv config lists what there is"
        raise FlexKVError(ErrorCode.NOT_FOUND, why)
    output.emit(chosen, {"tables": tables}, view_tables)
    return 0


def _wanted(chosen: argparse.Namespace, table: str, keys: Answer, named: list[str]) -> dict[str, Any]:
    return {
        name: key
        for name, key in keys.items()
        if (not named or table in named or f"{table}.{name}" in named)
        and not (chosen.changed and key["origin"] == "default")
        and not (chosen.live and not key["live"])
    }


def changes_of(changes: list[str]) -> dict[str, dict[str, object]]:
    """`planner.policy=lru` → {"planner": {"policy": "lru"}}; values as in TOML, quotes may be left out.

    The key is the last part, as in `tenants.team-a.dram_bytes`. Raises FlexKVError (`bad_argument`).
    """
    tables: dict[str, dict[str, object]] = {}
    for change in changes:
        place, _, word = change.partition("=")
        table, _, key = place.strip().rpartition(".")
        if not table or not key:
            why = f"{change!r} changes nothing: write TABLE.KEY=VALUE, as planner.policy=lru"
            raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
        tables.setdefault(table, {})[key] = _value(word.strip())
    return tables


def _value(word: str) -> object:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


def view_tables(answer: Answer) -> Iterator[RenderableType]:
    """Of {tables}."""
    made = output.table("key", "value", "default", "from", "live")
    for table, keys in answer["tables"].items():
        for name, key in keys.items():
            style = None if key["origin"] == "default" else "bold"
            cells = (value_words(key["value"]), value_words(key["default"]), key["origin"])
            made.add_row(f"{table}.{name}", *cells, "yes" if key["live"] else "", style=style)
    yield made


def view_changed(answer: Answer) -> Iterator[RenderableType]:
    """Of {changed, config}."""
    yield f"changed until the next start: {', '.join(map(str, answer['changed'])) or 'nothing, it was so already'}"


def value_words(value: object) -> str:
    """As in TOML, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value == "" else "–" if value is None else f"{value}"
