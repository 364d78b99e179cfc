"""`flexkv top`: a live view of the daemon in a terminal, or one frame of it.

Owns the screen, the keyboard and the asking; `frame` makes what is shown. It outlives restarts of the daemon: the
last frame stays, under a line that says what is wrong.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.live import Live

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output
from flexkvd.cli.admin import AdminClient, path_of
from flexkvd.cli.arguments import seconds
from flexkvd.cli.connecting import add_command, client_of
from flexkvd.cli.top.frame import SORTS, Mode, Snapshot, frame

INTERVAL_S_DEFAULT = 1.0
HISTORY_S = 300
RECENT_S = 10
"""Of history, asked for each time; after a longer pause all is asked for."""
FAULTS_SHOWN_MAX = 50
SIZE_DEFAULT = (80, 24)
"""Of a frame that goes to no terminal; COLUMNS and LINES say otherwise."""
KEY_S = 0.1
"""A key and a new size of the terminal are noticed within this."""
DESCRIPTION = (
    "Shows tiers, links, sessions, jobs and faults, once a second, until q. Keys: q quit, p pause, s sort sessions "
    "by another column. Rates are means over 5 s, the hit ratio is that of the last minute. From 120 columns on there "
    "are two columns and history.\n\n"
    "With --once one frame goes to standard output, as large as the terminal or as COLUMNS and LINES say. With --json "
    "{status, tiers, sessions, jobs, faults, samples} as the routes of these names answer."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `top` to the commands of `flexkv`."""
    examples = ("flexkv top", "flexkv top --once", "COLUMNS=160 LINES=48 flexkv top --once > frame.txt")
    parser = add_command(commands, "top", "live view in the terminal", DESCRIPTION, examples)
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--interval", type=seconds, default=INTERVAL_S_DEFAULT, metavar="TIME", help="time between looks (1s)"
    )
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """One frame, or frames until q. Raises FlexKVError when the first look fails, or without a terminal."""
    client = client_of(chosen)
    if chosen.json:
        output.emit(chosen, asdict(look(client)), lambda _: [])
        return 0
    if chosen.once:
        columns, rows = shutil.get_terminal_size(SIZE_DEFAULT)
        console = Console(width=columns, highlight=False, emoji=False, markup=False)
        console.print(frame(look(client), columns, rows, Mode()))
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        why = "top draws on a terminal, and here is none: use --once for one frame, or --json"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    look(client)  # what is wrong from the start ends it with its exit code
    _live(client, chosen.interval)
    return 0


def look(client: AdminClient, before: Snapshot | None = None) -> Snapshot:
    """Ask the daemon all that is shown; of history only what is new since `before`. Raises FlexKVError."""
    status = client.call("GET", path_of("status"))
    known = before.samples if before is not None and before.status["boot"] == status["boot"] else []
    return Snapshot(
        status,
        client.call("GET", path_of("tiers"))["tiers"],
        client.call("GET", path_of("sessions"))["sessions"],
        client.call("GET", path_of("jobs"))["jobs"],
        client.call("GET", path_of("faults", limit=FAULTS_SHOWN_MAX))["faults"],
        _history(client, known),
    )


def _history(client: AdminClient, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples of the last `HISTORY_S`: those known and what is new, or all of them where there is a gap between."""
    if known:
        recent = client.call("GET", path_of("samples", last_s=RECENT_S))["samples"]
        if recent and recent[0]["t"] <= known[-1]["t"]:
            new = [sample for sample in recent if sample["t"] > known[-1]["t"]]
            return [*known, *new][-HISTORY_S:]
    return list(client.call("GET", path_of("samples", last_s=HISTORY_S))["samples"])


def _live(client: AdminClient, interval_s: float) -> None:
    console = Console(highlight=False, emoji=False, markup=False)
    shown: Snapshot | None = None
    mode, due, drawn = Mode(), 0.0, None
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if not mode.paused and time.monotonic() >= due:
                shown, trouble = _next(client, shown)
                mode, due = replace(mode, trouble=trouble), time.monotonic() + interval_s
                drawn = None
            if drawn != (mode, console.size):
                live.update(frame(shown, console.size.width, console.size.height, mode), refresh=True)
                drawn = (mode, console.size)
            match _key():
                case "q" | "Q":
                    return
                case "p" | "P" | " ":
                    mode = replace(mode, paused=not mode.paused)
                case "s" | "S":
                    mode = replace(mode, sort=SORTS[(SORTS.index(mode.sort) + 1) % len(SORTS)])


def _next(client: AdminClient, shown: Snapshot | None) -> tuple[Snapshot | None, str]:
    """A new look, or the last one and what is wrong."""
    try:
        return look(client, shown), ""
    except FlexKVError as error:
        return shown, str(error)


def _key() -> str:
    """A key that was pressed meanwhile, or none after a moment."""
    ready, _, _ = select.select([sys.stdin], [], [], KEY_S)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come at once and are not echoed; Ctrl-C still interrupts. The terminal is left as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
