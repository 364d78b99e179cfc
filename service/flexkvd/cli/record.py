"""`flexkv record`: what the flight recorder of a running daemon holds, as a file or in a few words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output, words
from flexkvd.cli.admin import path_of
from flexkvd.cli.connecting import add_command, client_of
from flexkvd.recorder.dumps import write_private
from flexkvd.recorder.file import unpack

ABOUT = (
    "Asks the daemon for a dump of its flight recorder: everything its planner was told, as far back as [recorder] "
    "bytes reach. The file names the blocks of every tenant, so only you may read it, and an admin's token is needed. "
    "With more than 50,000 blocks it holds no digest of the state, which costs the daemon up to half a second.\n\n"
    "`flexkv replay-record FILE` plays it. With --facts nothing is written, and the answer of GET /v1/recorder shown."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `record` to the commands of `flexkv`."""
    examples = ("flexkv record", "flexkv record --output before-restart.record", "flexkv record --facts")
    parser = add_command(commands, "record", "dump the flight recorder", ABOUT, examples)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--output", type=Path, metavar="FILE", help="where to (flexkvd-TIME.record, here)")
    what.add_argument("--facts", action="store_true", help="only say what it holds")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Fetch a dump and write it down."""
    client = client_of(chosen)
    if chosen.facts:
        output.emit(chosen, client.call("GET", path_of("recorder")), view_facts)
        return 0
    data = client.download("POST", path_of("recorder", "dump"))
    recording = unpack(data)
    file: Path = chosen.output or Path(f"flexkvd-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.record")
    try:
        write_private(file, data)
    except OSError as error:
        why = f"{file} cannot be written ({error.strerror}): name a place with room by --output"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why) from error
    answer = {
        "file": str(file),
        "bytes": len(data),
        "events": recording.events,
        "complete": recording.complete,
        "digest": recording.digest or None,
    }
    output.emit(chosen, answer, view_written)
    return 0


def view_written(answer: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of {file, bytes, events, complete, digest}."""
    yield f"{answer['file']}: {answer['events']} events in {words.size(answer['bytes'])}"
    if not answer["complete"]:
        yield "older ones had to make room: it can be read with --print, not replayed; raise [recorder] bytes"


def view_facts(answer: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of GET /v1/recorder."""
    yield output.facts(
        (
            ("events", f"{answer['events']}" if answer["complete"] else f"the last {answer['events']}"),
            ("bytes", f"{words.size(answer['bytes'])} of {words.size(answer['capacity_bytes'])}"),
            ("since", f"{words.span(answer['since_s'])} ago"),
            ("dumps", str(answer["dumps"])),
        )
    )
