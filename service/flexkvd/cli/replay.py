"""`flexkv replay`: a trace against the planner alone (`--dry`) or a daemon, or selections against row policies.

Owns the command line, the progress bar and the result of a dry run; `dry`, `real` and `rows` do the work.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console

from flexkv_py.core.messages import Tier
from flexkv_py.core.policies import POLICIES
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces import TraceRequest, count_requests, open_trace
from flexkvd.cli.arguments import block_count, byte_size, positive, tier_blocks, writable_file
from flexkvd.cli.dry import DryRun, HitCount, Room, planner_config
from flexkvd.cli.output import results, shown
from flexkvd.cli.reference import LruReference
from flexkvd.cli.rows import add_options, given_options, run_rows
from flexkvd.rowreplay.run import ROW_POLICIES

OPTIONS: dict[str, tuple[tuple[str, ...], object]] = {
    "tokens_per_block": (("--dry", "--socket", "--spawn"), 512),
    "dram_blocks": (("--dry",), None),
    "ssd_blocks": (("--dry",), 0),
    "s3_blocks": (("--dry",), 0),
    "policy": (("--dry", "--spawn", "--selections"), "adaptive"),
    "admin": (("--socket",), None),
    "token_file": (("--socket",), None),
    "block_bytes": (("--socket", "--spawn"), 64 << 10),
    "clients": (("--socket", "--spawn"), 4),
    "dram_bytes": (("--spawn",), 256 << 20),
    "ssd_bytes": (("--spawn",), None),
    "s3_url": (("--spawn",), None),
    "admission": (("--dry", "--spawn"), "always"),
}
"""Options that not every run heeds: with what they do something, and their defaults."""

TIER_NAMES = ("dram", "ssd", "s3")

DESCRIPTION = """\
Replays a request trace (Mooncake or WEKA form, plain or gzip), or with --selections what indexers select.

With --dry the planner is asked alone: no daemon, no bytes. The hit ratio counts every listed block, the
partial last one of a request too, and only the leading run of cached blocks is a hit.

Beside it stands what a plain LRU cache of the size of all tiers together hits on the same requests.

With --socket or --spawn several clients load and save real bytes, compare every byte they get back, and
count on their own what the daemon's metrics must say at the end. Only full blocks are saved. Calls of one
session (WEKA form) go one after another, as an agent makes them. The exit code is 1 if a byte was wrong or
the counts differ (another client on the same daemon makes them differ).

With --selections nothing but row policies is asked: requests decode over hot buffers, a DRAM that is too small
and a link to SSD, and each policy is told what a daemon would be told. The table says what that costs per step.
"""
EPILOG = """\
examples:
  flexkv replay trace.jsonl.gz --dry --dram-blocks 30000
  flexkv replay trace.jsonl.gz --dry --dram-blocks inf --json result.json
  flexkv replay trace.jsonl.gz --dry --dram-blocks 1000 --ssd-blocks 8000 --s3-blocks inf
  flexkv replay trace.jsonl.gz --socket /run/flexkvd/worker.sock --limit 2000
  flexkv replay trace.jsonl.gz --spawn --dram-bytes 64MiB --ssd-bytes 256MiB --s3-url auto --limit 2000
  flexkv replay --selections mid --cluster 256 --requests 4 --groups 4 --steps 320
  flexkv replay --selections recording.jsonl.gz --dram 50% --policy lru,sparse --json result.json
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
    parser.add_argument("trace", type=Path, nargs="?", metavar="TRACE", help="the trace file; none with --selections")
    parser.add_argument(
        "--tokens-per-block",
        type=positive,
        metavar="N",
        help="block size, a multiple of the trace's own (512)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="stop after N requests")
    parser.add_argument(
        "--json", type=writable_file, metavar="FILE", help="write the result as JSON, too; -: to stdout"
    )
    dry = parser.add_argument_group("against the planner alone")
    dry.add_argument("--dry", action="store_true", help="no daemon, no bytes")
    dry.add_argument("--dram-blocks", type=block_count, metavar="N|inf", help="room in DRAM (inf)")
    dry.add_argument("--ssd-blocks", type=tier_blocks, metavar="N|inf", help="room on SSD; 0: no SSD tier (0)")
    dry.add_argument("--s3-blocks", type=tier_blocks, metavar="N|inf", help="room in S3; 0: no S3 tier (0)")
    real = parser.add_argument_group("against a daemon, with real bytes")
    real.add_argument("--socket", metavar="PATH", help="worker socket of a running daemon")
    real.add_argument("--admin", metavar="ADDRESS", help="its admin API: a socket, or host:port (admin.sock beside it)")
    real.add_argument("--token-file", metavar="FILE", help="first line: the token of its worker socket (none)")
    real.add_argument("--block-bytes", type=byte_size, metavar="SIZE", help="per block (64KiB)")
    real.add_argument("--clients", type=positive, metavar="N", help="workers at a time (4)")
    spawned = parser.add_argument_group("a daemon of its own, on temporary folders")
    spawned.add_argument("--spawn", action="store_true", help="start a daemon for this run")
    spawned.add_argument("--dram-bytes", type=byte_size, metavar="SIZE", help="(256MiB)")
    spawned.add_argument("--ssd-bytes", type=byte_size, metavar="SIZE", help="(no SSD tier)")
    spawned.add_argument("--s3-url", metavar="URL", help="http://host:port/bucket/prefix, or auto (no S3 tier)")
    rules = parser.add_argument_group("rules of the planner alone, and of a daemon of its own")
    names = f"{', '.join(sorted(POLICIES))} (adaptive); with --selections: {','.join(ROW_POLICIES)} (all)"
    rules.add_argument("--policy", metavar="NAME", help=names)
    rules.add_argument("--admission", choices=("always", "second-use"), help="what may go below DRAM (always)")
    add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Raises FlexKVError for bad input."""
    with results(chosen.json) as write:
        code, result = _run(chosen)
        write(result)
    return code


def _run(chosen: argparse.Namespace) -> tuple[int, dict[str, object]]:
    if chosen.selections is not None:
        return _run_selections(chosen)
    _check_trace(chosen)
    _fill_in(chosen, _mode(chosen))
    if chosen.spawn and chosen.block_bytes > chosen.dram_bytes:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"a block of --block-bytes {chosen.block_bytes} is larger than all of --dram-bytes {chosen.dram_bytes}: "
            "choose a smaller block, or more DRAM",
        )
    if chosen.dry:
        return _run_dry(chosen)
    from flexkvd.cli.real import run_real  # noqa: PLC0415 - a dry run needs neither numpy nor sockets

    return run_real(chosen, _shown(chosen, "requests"))


def _run_selections(chosen: argparse.Namespace) -> tuple[int, dict[str, object]]:
    if chosen.trace is not None or chosen.dry or chosen.spawn or chosen.socket or chosen.limit:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            "--selections is a replay of its own: leave TRACE, --dry, --spawn, --socket and --limit out",
        )
    policies = chosen.policy.split(",") if chosen.policy else list(ROW_POLICIES)
    _fill_in(chosen, "--selections")
    return 0, run_rows(chosen, policies)


def _check_trace(chosen: argparse.Namespace) -> None:
    """Refuse what only selections heed. Raises FlexKVError."""
    if chosen.trace is None:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, "nothing to replay: name a trace file, or --selections PRESET|FILE")
    given = given_options(chosen)
    if given:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"{given[0]} does nothing for a trace: use it with --selections")
    if chosen.policy is not None and chosen.policy not in POLICIES:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"--policy {chosen.policy} orders no blocks: choose from {', '.join(sorted(POLICIES))}",
        )


def _mode(chosen: argparse.Namespace) -> str:
    given = [mode for mode in ("--dry", "--spawn", "--socket") if getattr(chosen, mode[2:])]
    if len(given) != 1:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, "say what to replay against: exactly one of --dry, --spawn and --socket PATH"
        )
    return given[0]


def _fill_in(chosen: argparse.Namespace, mode: str) -> None:
    """Give every option that is not given its default. Raises FlexKVError for one that does nothing in this mode."""
    for name, (modes, default) in OPTIONS.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, default)
        elif mode not in modes:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"--{name.replace('_', '-')} does nothing with {mode}: leave it out, or use {' or '.join(modes)}",
            )


def _run_dry(chosen: argparse.Namespace) -> tuple[int, dict[str, object]]:
    started = time.perf_counter()
    ssd, s3 = (None if math.isinf(blocks) else int(blocks) for blocks in (chosen.ssd_blocks, chosen.s3_blocks))
    room = Room(chosen.dram_blocks, ssd, s3)
    count, reference, partial = _dry_pass(chosen, room, full_only=False)
    full = _dry_pass(chosen, room, full_only=True)[0] if partial else count
    seconds = time.perf_counter() - started
    rooms = {tier: "inf" if blocks is None else blocks for tier, blocks in zip(TIER_NAMES, room.of_tiers, strict=True)}
    console = Console()
    words = ", ".join(f"{tier} {blocks}" for tier, blocks in rooms.items() if blocks)
    console.print(
        f"{chosen.trace.name}: {count.requests:,} requests, {chosen.policy}, blocks: {words}, {seconds:.1f} s"
    )
    console.print(f"  every listed block  {count.ratio:7.2%}  ({count.hits:,} of {count.blocks:,})")
    for tier in (Tier.SSD, Tier.S3):
        if rooms[tier.name.lower()]:
            console.print(f"    of them from {tier.name.lower():6} {_share(count.tiers[tier], count.blocks):7.2%}")
    console.print(f"  LRU of all this room {reference.ratio:6.2%}")
    console.print(f"  full blocks only    {full.ratio:7.2%}  ({full.hits:,} of {full.blocks:,})")
    return 0, {
        "trace": chosen.trace.name,
        "tokens_per_block": chosen.tokens_per_block,
        "policy": chosen.policy,
        "admission": chosen.admission,
        **{f"{tier}_blocks": blocks for tier, blocks in rooms.items()},
        "requests": count.requests,
        "blocks": count.blocks,
        "hit_blocks": count.hits,
        "hit_blocks_by_tier": {tier.name.lower(): count.tiers[tier] for tier in (Tier.DRAM, Tier.SSD, Tier.S3)},
        "hit_ratio_blocks": count.ratio,
        "lru_reference": reference.ratio,
        "full_blocks": full.blocks,
        "hit_full_blocks": full.hits,
        "hit_ratio_full_blocks": full.ratio,
        "seconds": seconds,
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _dry_pass(chosen: argparse.Namespace, room: Room, *, full_only: bool) -> tuple[HitCount, LruReference, bool]:
    """Hits of the whole trace, those of a plain LRU, and whether any request ended in a partial block.

    Counting full blocks only takes a pass of its own: a partial block takes room from others.
    """
    hits_min = 2 if chosen.admission == "second-use" else 1
    config = planner_config(room, policy=chosen.policy, ssd_hits_min=hits_min, s3_hits_min=hits_min)
    dry, reference, partial = DryRun(config), LruReference(room.total), False
    for request in _shown(chosen, "full blocks" if full_only else "planner"):
        partial |= request.partial
        ids = request.full_ids if full_only else request.ids
        dry.serve(ids)
        reference.serve(ids)
    return dry.count, reference, partial


def _shown(chosen: argparse.Namespace, what: str) -> Iterator[TraceRequest]:
    """The chosen requests, with a progress bar on stderr while they are taken."""
    total = count_requests(chosen.trace)
    requests: Iterable[TraceRequest] = open_trace(chosen.trace, chosen.tokens_per_block)
    if chosen.limit:
        requests, total = islice(requests, chosen.limit), min(total, chosen.limit)
    return shown(requests, what, total)
