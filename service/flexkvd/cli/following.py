"""Long work: a job of the daemon is followed to its end, its progress shown, and cancelled by Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import output, words
from flexkvd.cli.admin import AdminClient, path_of
from flexkvd.cli.exits import ExitCode

ENDED = ("done", "failed", "cancelled")
POLL_S_MIN, POLL_S_MAX = 0.05, 1.0
"""Asked often at first, for short jobs, then once a second."""
CANCEL_S_MAX = 30.0

Job = dict[str, Any]


def add_detach(parser: argparse.ArgumentParser) -> None:
    """The option of every command that starts a job."""
    parser.add_argument(
        "--detach", action="store_true", help="do not wait: print the job, `flexkv jobs` shows how far it is"
    )


def start(chosen: argparse.Namespace, client: AdminClient, path: str, body: Mapping[str, object]) -> int:
    """Start a job, and follow it unless `--detach` was given; the exit code."""
    job = client.call("POST", path, body)
    if chosen.detach:
        output.emit(chosen, job, lambda started: [f"job {started['id']}: {started['kind']} is {started['state']}"])
        return ExitCode.DONE
    return follow(chosen, client, job)


def follow(chosen: argparse.Namespace, client: AdminClient, job: Job) -> int:
    """Show a job until it has ended and print it; 1 if it failed or was cancelled, or its result says damaged.

    Ctrl-C asks the daemon to cancel it, and waits for that.
    """
    latest = job
    try:
        with _Bar() as bar:
            bar.show(job)
            for latest in _states(client, job):
                bar.show(latest)
    except KeyboardInterrupt:
        return _cancel(client, latest)
    output.emit(chosen, latest, view_end)
    damaged = (latest["result"] or {}).get("damaged")
    return ExitCode.DONE if latest["state"] == "done" and not damaged else ExitCode.WRONG


def _states(client: AdminClient, job: Job) -> Iterator[Job]:
    pause_s = POLL_S_MIN
    while job["state"] not in ENDED:
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, POLL_S_MAX)
        job = client.call("GET", path_of("jobs", job["id"]))
        yield job


def _cancel(client: AdminClient, job: Job) -> int:
    output.note(f"interrupted: the daemon is asked to cancel job {job['id']}")
    try:
        client.call("DELETE", path_of("jobs", job["id"]))
        end = time.monotonic() + CANCEL_S_MAX
        while job["state"] not in ENDED and time.monotonic() < end:
            time.sleep(POLL_S_MIN)
            job = client.call("GET", path_of("jobs", job["id"]))
    except FlexKVError as error:
        if error.code is not ErrorCode.CONFLICT:  # else it had ended already
            output.note(f"{error}")
    output.note(f"job {job['id']} is {job['state']}" + ("" if job["state"] in ENDED else ": see flexkv jobs"))
    return ExitCode.INTERRUPTED


class _Bar:
    """A bar on a terminal's stderr; nothing elsewhere."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[amount]}"),
        )
        self._bar = Progress(
            *columns,
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, job: Job) -> None:
        if self._task is None:
            self._task = self._bar.add_task(f"{job['kind']} (job {job['id']})", total=None, amount="")
        self._bar.update(self._task, completed=job["done"], total=job["total"] or None, amount=amount_words(job))


def amount_words(job: Mapping[str, Any]) -> str:
    """How much of how much, in the job's own unit."""
    said = words.size if job["unit"] == "bytes" else words.count
    unit = "" if job["unit"] == "bytes" else f" {job['unit']}"
    return f"{said(job['done'])}/{said(job['total'])}{unit}" if job["total"] else f"{said(job['done'])}{unit}"


def view_end(job: Mapping[str, Any]) -> Iterator[RenderableType]:
    """How a job ended, and its result."""
    yield f"{job['kind']} {job['state']} in {words.span(job['took_s'])} (job {job['id']})"
    if job["error"]:
        yield f"[{job['error']['code']}] {job['error']['message']}"
    yield output.facts(result_pairs(job["result"] or {}))


def result_pairs(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A result's fields in words, by the unit each name ends with."""
    for name, each in result.items():
        if isinstance(each, Mapping):
            text = ", ".join(f"{key} {value}" for key, value in each.items()) or "none"
        elif name.endswith("bytes") and isinstance(each, int):
            text = words.size(each)
        else:
            text = f"{each}"
        if text:
            yield name.replace("_", " "), text
