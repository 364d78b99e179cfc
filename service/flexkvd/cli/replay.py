"""`flexkv replay`: a trace against the planner alone (`--dry`) or against a daemon with real bytes.

Owns the command line, the progress bar and the printed result; `dry` and `traffic` do the work.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flexkv_py.core.policies import POLICIES
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces import TraceRequest, count_requests, open_trace
from flexkvd.cli.arguments import block_count, positive, writable_file
from flexkvd.cli.dry import DryRun, HitCount

DESCRIPTION = """\
Replays a request trace (Mooncake or WEKA form, plain or gzip).

With --dry the planner is asked alone: no daemon, no bytes, one DRAM tier. The hit ratio counts every
listed block, the partial last one of a request too, and only the leading run of cached blocks is a hit.
"""
EPILOG = """\
examples:
  flexkv replay trace.jsonl.gz --dry --dram-blocks 30000
  flexkv replay trace.jsonl.gz --dry --dram-blocks inf --json result.json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `replay` to the commands of `flexkv`."""
    parser = commands.add_parser(
        "replay",
        help="replay a request trace and report hit ratios",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the trace file")
    parser.add_argument(
        "--tokens-per-block",
        type=positive,
        default=512,
        metavar="N",
        help="block size, a multiple of the trace's own (%(default)s)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="stop after N requests")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="also write the result as JSON")
    dry = parser.add_argument_group("against the planner alone")
    dry.add_argument("--dry", action="store_true", help="no daemon, no bytes")
    dry.add_argument("--dram-blocks", type=block_count, default=None, metavar="N|inf", help="room in DRAM (inf)")
    dry.add_argument("--policy", choices=sorted(POLICIES), default="lru", help="eviction order (%(default)s)")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises FlexKVError for bad input."""
    if not chosen.dry:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, "say what to replay against: --dry")
    return _run_dry(chosen)


def _run_dry(chosen: argparse.Namespace) -> int:
    started = time.perf_counter()
    count, partial = _dry_pass(chosen, full_only=False)
    full = _dry_pass(chosen, full_only=True)[0] if partial else count
    seconds = time.perf_counter() - started
    room = "inf" if chosen.dram_blocks is None else chosen.dram_blocks
    console = Console()
    console.print(
        f"{chosen.trace.name}: {count.requests:,} requests, {chosen.policy}, {room} DRAM blocks, {seconds:.1f} s"
    )
    console.print(f"  every listed block  {count.ratio:7.2%}  ({count.hits:,} of {count.blocks:,})")
    console.print(f"  full blocks only    {full.ratio:7.2%}  ({full.hits:,} of {full.blocks:,})")
    _write_json(
        chosen.json,
        {
            "trace": chosen.trace.name,
            "tokens_per_block": chosen.tokens_per_block,
            "policy": chosen.policy,
            "dram_blocks": room,
            "requests": count.requests,
            "blocks": count.blocks,
            "hit_blocks": count.hits,
            "hit_ratio_blocks": count.ratio,
            "full_blocks": full.blocks,
            "hit_full_blocks": full.hits,
            "hit_ratio_full_blocks": full.ratio,
            "seconds": seconds,
        },
    )
    return 0


def _dry_pass(chosen: argparse.Namespace, *, full_only: bool) -> tuple[HitCount, bool]:
    """Hits of the whole trace, and whether any request ended in a partial block.

    Counting full blocks only takes a pass of its own: a partial block takes room from others.
    """
    dry = DryRun(chosen.dram_blocks, chosen.policy)
    partial = False
    for request in _shown(chosen, "full blocks" if full_only else "planner"):
        partial |= request.partial
        dry.serve(request.full_ids if full_only else request.ids)
    return dry.count, partial


def _shown(chosen: argparse.Namespace, what: str) -> Iterator[TraceRequest]:
    """The chosen requests, with a progress bar on stderr while they are taken."""
    total = count_requests(chosen.trace)
    requests: Iterable[TraceRequest] = open_trace(chosen.trace, chosen.tokens_per_block)
    if chosen.limit:
        requests, total = islice(requests, chosen.limit), min(total, chosen.limit)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(requests, total=total, description=what)


def _write_json(path: Path | None, result: dict[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
