"""`flexkv verify`: re-reads what a tier holds and says what is damaged: of a running daemon, or of SSD directories.

With DIR it reads the disks itself while no daemon uses them; with --tier it asks the daemon, as a job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.admin import path_of
from flexkvd.cli.connecting import add_command, client_of
from flexkvd.cli.following import add_detach, start

if TYPE_CHECKING:
    from flexkv_tiers.ssd.verify import SegmentReport

DESCRIPTION = (
    "Reads every record again and verifies every checksum. Damaged records are no danger: a daemon never serves them. "
    "Exit status: 0 all is whole, 1 something is damaged, 2 a directory could not be checked; the others were.\n\n"
    "With --tier the running daemon does it in the background, as a job. With DIR this command does it, while no "
    "daemon uses the directory; nothing in it is changed, and no right to write is needed. With --json the job at its "
    "end (GET /v1/jobs/ID), or {segments, unchecked, total}."
)
VERIFIED_TIERS = ("dram", "ssd", "s3")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    examples = ("flexkv verify --tier ssd", "flexkv verify /var/lib/flexkvd/ssd")
    parser = add_command(commands, "verify", "re-read a tier and check it", DESCRIPTION, examples)
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR", help="a directory of [ssd], offline")
    parser.add_argument(
        "--tier", choices=VERIFIED_TIERS, metavar="TIER", help=f"of the running daemon: {', '.join(VERIFIED_TIERS)}"
    )
    add_detach(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the command; 1 when anything is damaged, 2 when a directory could not be checked."""
    if bool(chosen.directories) == bool(chosen.tier):
        why = "name what to check: --tier of the running daemon, or directories while no daemon uses them"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    if chosen.tier:
        return start(chosen, client_of(chosen), path_of("verify"), {"tier": chosen.tier})
    return _run_offline(chosen)


def _run_offline(chosen: argparse.Namespace) -> int:
    once: dict[str, Path] = {}
    for directory in chosen.directories:
        once.setdefault(os.path.realpath(directory), directory)
    reports, refused = asyncio.run(_verify(list(once.values()), show=sys.stderr.isatty()))
    totals = _totals(reports)
    if chosen.json:
        unchecked = [{"directory": str(directory), "error": str(error)} for directory, error in refused.items()]
        segments = [report.as_dict() for report in reports]
        print(json.dumps({"segments": segments, "unchecked": unchecked, "total": totals}, indent=2))
    elif reports or not refused:
        for report in reports:
            print(_line(report))
        print(
            f"{totals['segments']} segments: {totals['whole']} records whole ({totals['whole_bytes']} bytes), "
            f"{totals['dead']} dropped, {_words(totals['damaged'])}"
        )
    for error in refused.values():
        print(f"flexkv: {error}", file=sys.stderr)
    if refused:
        return 2
    return 1 if totals["damaged"] else 0


async def _verify(directories: list[Path], *, show: bool) -> tuple[list[SegmentReport], dict[Path, FlexKVError]]:
    """What was found, and which directories could not be checked; a disk may fail halfway through one."""
    from flexkv_tiers.ssd.verify import verify_directory  # noqa: PLC0415 - other commands need no disk I/O

    reports, refused = [], {}
    for directory in directories:
        try:
            async for report in verify_directory(directory):
                reports.append(report)
                if show:
                    print(f"\r{directory}: segment {report.number} checked", end="", file=sys.stderr, flush=True)
        except FlexKVError as error:
            refused[directory] = error
        if show:
            print(file=sys.stderr)
    return reports, refused


def _totals(reports: list[SegmentReport]) -> dict[str, object]:
    damaged: Counter[str] = Counter()
    for report in reports:
        damaged += report.damaged
    return {
        "segments": len(reports),
        "whole": sum(report.whole for report in reports),
        "whole_bytes": sum(report.whole_bytes for report in reports),
        "dead": sum(report.dead for report in reports),
        "damaged": dict(damaged),
    }


def _line(report: SegmentReport) -> str:
    head = f"{report.directory}: segment {report.number:06d}: {report.state}"
    surplus = f", {report.surplus_bytes} bytes behind its end, never read" if report.surplus_bytes else ""
    return f"{head}, {report.whole} whole, {report.dead} dropped, {_words(report.damaged)}{surplus}"


def _words(damaged: object) -> str:
    assert isinstance(damaged, dict)
    if not damaged:
        return "nothing damaged"
    return "damaged: " + ", ".join(f"{cause} {count}" for cause, count in sorted(damaged.items()))
