"""`flexkv doctor`: whether this machine can run the daemon as configured, and how to mend what it cannot.

Owns the order of the checks and the report. It changes nothing but a probe file per disk and a probe object in the
bucket, which it removes. Each module beside this holds the checks of one part of the machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flexkv_py.errors import FlexKVError
from flexkvd.cli import output
from flexkvd.cli.connecting import add_command
from flexkvd.cli.cpu import owner_of
from flexkvd.cli.doctor import bucket, device, disks, kernel, sockets
from flexkvd.cli.doctor.finding import Check, Finding, Subject, Verdict
from flexkvd.cli.exits import ExitCode
from flexkvd.config import load_config

CONFIG_DEFAULT = Path("/etc/flexkvd/flexkvd.toml")

CHECKS: dict[str, Sequence[Check]] = {
    "configuration": (sockets.configuration, sockets.tokens),
    "kernel": (kernel.kernel, kernel.io_uring, kernel.huge_pages, kernel.shared_memory),
    "limits": (kernel.memory, kernel.locked_memory, kernel.open_files),
    "disk": (disks.disks,),
    "s3": (bucket.bucket,),
    "gpu": (device.device,),
    "service": (sockets.sockets, sockets.daemon, sockets.unit),
}
"""By the names that `--only` takes."""

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.SKIPPED: "dim"}
DESCRIPTION = (
    "Checks whether this machine can run flexkvd as a configuration says, and says how to mend what it finds. Run it "
    "as the user that runs the daemon: rights and limits are those of whoever asks, or of the daemon where one runs. "
    "Exit code 1 when a check failed.\n\n"
    "It writes one page to each directory of [ssd] and one object under the prefix of [s3], and removes them. Without "
    f"--config it reads {CONFIG_DEFAULT} where that is there, else it takes the built-in configuration. With --json "
    "{config, daemon_pid, checks: [{check, verdict, detail, cure}], counts}."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` to the commands of `flexkv`."""
    parser = add_command(
        commands,
        "doctor",
        "check this machine, and say how to mend it",
        DESCRIPTION,
        ("flexkv doctor --config /etc/flexkvd/flexkvd.toml", "flexkv doctor --only disk --only s3"),
        daemon=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the daemon's TOML file")
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(CHECKS),
        metavar="PART",
        help=f"one of: {', '.join(CHECKS)}; repeatable",
    )
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the command; 1 when a check failed. Raises FlexKVError for a configuration that cannot be read."""
    path = chosen.config or (CONFIG_DEFAULT if CONFIG_DEFAULT.exists() else None)
    config = load_config(path)
    subject = Subject(config, path, _running(config.daemon.socket))
    found = list(findings(subject, chosen.only or tuple(CHECKS)))
    counts = Counter(finding.verdict for finding in found)
    answer = {
        "config": str(path) if path else None,
        "daemon_pid": subject.daemon_pid,
        "checks": [
            {"check": each.check, "verdict": each.verdict.value, "detail": each.detail, "cure": each.cure}
            for each in found
        ],
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
    }
    output.emit(chosen, answer, view)
    return ExitCode.WRONG if counts[Verdict.FAILED] else ExitCode.DONE


def findings(subject: Subject, parts: Sequence[str]) -> Iterator[Finding]:
    """What the checks of these parts find, in the order of `CHECKS`. A check that trips over something says so."""
    for part, checks in CHECKS.items():
        for check in checks if part in parts else ():
            try:
                yield from check(subject)
            except FlexKVError as error:
                cure = "see the code in docs/errors.md; the sentence names what to change"
                yield Finding(part, Verdict.FAILED, str(error), cure)


def view(answer: Any) -> Iterator[Table | str]:
    """The report as people read it: one line for each check, its cure below it."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold", max_width=44)
    lines.add_column(overflow="fold")
    for each in answer["checks"]:
        verdict = Text(each["verdict"], style=_STYLES[Verdict(each["verdict"])])
        lines.add_row(verdict, each["check"], each["detail"])
        if each["cure"]:
            lines.add_row("", "", f"→ {each['cure']}")
    yield lines
    counts = answer["counts"]
    yield ", ".join(f"{counts[verdict.value]} {verdict.value}" for verdict in Verdict)


def _running(socket: str) -> int | None:
    """The process behind the worker socket, if there is one."""
    try:
        return owner_of(socket)
    except FlexKVError:
        return None
