"""How a command says what it found: text for people, or one JSON object; errors; progress on stderr.

Owns where things are printed and how wide. What is printed is the commands' own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from flexkv_py.errors import FlexKVError

PIPE_COLUMNS = 10_000
"""Width where there is no terminal: a line is a line, and nothing is folded that a `grep` would look for."""

STANDARD_OUTPUT = Path("-")
"""As a file for results."""

ItemT = TypeVar("ItemT")

View = Callable[[Mapping[str, Any]], Iterable[RenderableType]]
"""From an answer of the daemon to what people see of it. Pure."""


def console() -> Console:
    """Standard output, as wide as it takes where it is no terminal."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(width=width, highlight=False, emoji=False, markup=False)


def emit(chosen: argparse.Namespace, answer: Mapping[str, Any], view: View) -> None:
    """Print the answer: as it is with `--json`, else as its view."""
    if chosen.json:
        print(json.dumps(answer, indent=2))
        return
    show(view(answer))


def show(parts: Iterable[RenderableType]) -> None:
    """Print for people; without a terminal no line ends in blanks."""
    screen = console()
    if screen.is_terminal:
        for part in parts:
            screen.print(part)
        return
    with screen.capture() as captured:
        for part in parts:
            screen.print(part)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextmanager
def results(path: Path | None) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """A way to write a result as JSON to a file; None: not at all.

    `-` is standard output: what is printed for people goes to stderr meanwhile.
    """
    if path != STANDARD_OUTPUT:
        yield lambda result: None if path is None else _write(path, result)
        return
    screen = sys.stdout
    with redirect_stdout(sys.stderr):
        yield lambda result: print(json.dumps(result, indent=2), file=screen)


def _write(path: Path, result: Mapping[str, object]) -> None:
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def watched() -> bool:
    """Whether somebody sees what progress is shown: counting ahead how much there is to do is for nobody else."""
    return Console(stderr=True).is_terminal


def shown(items: Iterable[ItemT], what: str, total: int | None) -> Iterator[ItemT]:
    """The items, with a progress bar on stderr while they are taken. Numbers are how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not watched()) as progress:
        task = progress.add_task(what, total=total)
        for number, item in enumerate(items, start=1):
            progress.update(task, completed=item if isinstance(item, int) else number)
            yield item


def note(sentence: str) -> None:
    """One line for people on stderr, beside whatever the command prints."""
    print(f"flexkv: {sentence}", file=sys.stderr)


def say_error(error: FlexKVError, *, as_json: bool) -> None:
    """The error as a line on stderr; for `--json` also as the one object on standard output."""
    note(str(error))
    if as_json:
        print(json.dumps({"error": {"code": error.code.value, "message": error.message}}, indent=2))


def table(*columns: str, right: Iterable[int] = (), gap: int = 2) -> Table:
    """A plain table; the columns numbered in `right` hold numbers. These and the first are never folded."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    numbers = set(right)
    for position, name in enumerate(columns):
        justify: JustifyMethod = "right" if position in numbers else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=position == 0 or position in numbers)
    return made


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and values, one pair a line."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in pairs:
        made.add_row(name, text)
    return made


def state_text(state: str) -> Text:
    """A word of state in its colour: the word alone says it too."""
    good, bad = {"ready", "up", "done", "ok", "closed"}, {"down", "failed", "open"}
    return Text(state, style="green" if state in good else "red" if state in bad else "yellow")
