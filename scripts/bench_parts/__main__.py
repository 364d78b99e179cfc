"""`scripts/bench`: runs the parts, prints one table and what peers reach, writes JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PARTS = ("core", "socket", "load", "moves", "copy", "device", "ssd", "s3", "codec", "idle", "start", "hot")
PEERS = (
    ("FlexKV", "match of 512 blocks, 1 M-block C++ index", "10.5 µs"),
    ("FlexKV", "match and insert of 512 new blocks", "18.7 µs"),
    ("FlexKV", "evict one of 250,000 leaves", "47 ms"),
    ("LMCache daemon", "ping p50 / p99", "211 / 395 µs"),
    ("LMCache daemon", "one-chunk lookup p50 / p99", "987 / 5,026 µs"),
    ("LMCache daemon", "store, CPU and speed", "1.33 CPU-s per GB at 0.91 GB/s"),
    ("LMCache daemon", "retrieve, CPU and speed", "0.61 CPU-s per GB at 1.64 GB/s"),
    ("LMCache daemon", "start", "10 s"),
)
FILE_WIDTH = 110
"""Columns of the tables where they do not go to a terminal."""


def main() -> int:
    """Measure, print, write; the exit code is 1 if any figure misses its bar."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part only; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    chosen = parser.parse_args()
    console, progress = Console(width=None if sys.stdout.isatty() else FILE_WIDTH), Console(stderr=True)
    rows: list[dict[str, Any]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what is measured by then is told
    failed = False
    try:
        for name in chosen.only or PARTS:
            with progress.status(f"measuring: {name}"):
                failed |= not _measure(name, rows)
    finally:
        console.print(_figures(rows))
        console.print(_peers())
        if chosen.json:
            chosen.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if not failed and all(row["ok"] for row in rows) else 1


def _measure(name: str, rows: list[dict[str, Any]]) -> bool:
    """Add the rows of a part, as it gives them; False where it fails: the others are measured all the same."""
    try:
        for row in importlib.import_module(f"scripts.bench_parts.{name}").rows():
            rows.append(row)  # noqa: PERF402 - one by one: what came before a failure is kept
    except Exception:
        traceback.print_exc()
        return False
    return True


def _figures(rows: list[dict[str, Any]]) -> Table:
    table = Table("what", "value", "unit", "bar", "", title="flexkvd on this machine")
    table.columns[0].no_wrap = True
    table.columns[1].justify = "right"
    for row in rows:
        verdict = "" if not row["bar"] else "[green]met[/]" if row["ok"] else "[red]missed[/]"
        table.add_row(row["name"], f"{row['value']:,.4g}", row["unit"], row["bar"], verdict)
    return table


def _peers() -> Table:
    table = Table("system", "what", "value", title="peers, on the same class of machine (2 cores, no GPU)")
    table.columns[1].no_wrap = True
    for peer in PEERS:
        table.add_row(*peer)
    return table


sys.exit(main())
