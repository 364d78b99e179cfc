"""`flexkv replay` with real bytes: against a running daemon, or one started for the run.

Owns the run from the first metrics to the printed result. Exit code 1 if a byte was wrong or the daemon
counted otherwise than the run itself.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flexkv_py.core.messages import Tier
from flexkv_py.traces import TraceRequest
from flexkvd.api.table import ApiTable
from flexkvd.cli.admin import AdminClient, Samples, by_label
from flexkvd.cli.cpu import cpu_by_part, owner_of
from flexkvd.cli.ledger import Ledger
from flexkvd.cli.reference import LruReference
from flexkvd.cli.spawn import Sizes, SpawnedDaemon
from flexkvd.cli.traffic import Target, replay
from flexkvd.config import read_token

EXIT_WRONG = 1
_MS = 1000
RECORD_HEADER_BYTES = 4096
_BUCKET = "flexkv"


@dataclass(slots=True)
class Run:
    """One finished run: what it saw, how long it took, and what the daemon counted meanwhile."""

    ledger: Ledger
    differences: list[str]
    link_bytes: dict[str, int]
    seconds: float
    own_cpu_s: float
    loop_cpu_s: float
    """Of the daemon's own process: loop, lanes, disk threads."""
    workers_cpu_s: float
    """Of its byte workers, which move what goes to S3."""
    reference: LruReference

    @property
    def daemon_cpu_s(self) -> float:
        return self.loop_cpu_s + self.workers_cpu_s

    @property
    def cpu_s_per_gb(self) -> dict[str, float]:
        """CPU seconds of each of both per GB that went over its links."""
        s3 = sum(count for link, count in self.link_bytes.items() if "s3" in link)
        rest = sum(self.link_bytes.values()) - s3
        return {
            "worker and ssd links": self.loop_cpu_s * 1e9 / max(rest, 1),
            "s3 links": self.workers_cpu_s * 1e9 / max(s3, 1),
        }

    @property
    def ok(self) -> bool:
        return not self.ledger.wrong_count and not self.differences


def run_real(chosen: argparse.Namespace, requests: Iterator[TraceRequest]) -> tuple[int, dict[str, object]]:
    """Replay, print, and return the exit code and the result for JSON. Raises FlexKVError."""
    with ExitStack() as stack:
        socket, admin, pid = _daemon(chosen, stack)
        token = read_token(chosen.token_file or "", "--token-file")
        target = Target(socket, chosen.block_bytes, chosen.tokens_per_block, token)
        stored_bytes = target.geometry().block_bytes
        before, cpu_before = admin.metrics(), cpu_by_part(pid)
        reference = LruReference(_room_blocks(before, stored_bytes))
        started, own_cpu_s = time.perf_counter(), time.process_time()
        ledger = replay(_also_served(requests, reference), target, chosen.clients)
        seconds, own_cpu_s = time.perf_counter() - started, time.process_time() - own_cpu_s
        loop_cpu_s, workers_cpu_s = (after - before for after, before in zip(cpu_by_part(pid), cpu_before, strict=True))
        after = admin.metrics()
    links = by_label(before, "flexkv_link_bytes_total", "link")
    moved = by_label(after, "flexkv_link_bytes_total", "link")
    link_bytes = {link: int(count - links.get(link, 0)) for link, count in moved.items()}
    differences = ledger.differences(before, after, stored_bytes)
    run = Run(ledger, differences, link_bytes, seconds, own_cpu_s, loop_cpu_s, workers_cpu_s, reference)
    _print(Console(), run)
    return 0 if run.ok else EXIT_WRONG, _as_json(run)


def _room_blocks(metrics: Samples, block_bytes: int) -> int | None:
    """Blocks that fit all tiers of the daemon together; None: no limit."""
    capacities = by_label(metrics, "flexkv_tier_capacity_bytes", "tier")
    if not all(capacities.values()):
        return None
    return sum(
        int(room // (block_bytes + (0 if tier == "dram" else RECORD_HEADER_BYTES))) for tier, room in capacities.items()
    )


def _also_served(requests: Iterator[TraceRequest], reference: LruReference) -> Iterator[TraceRequest]:
    """The requests, each also served by the reference, in the order in which they are taken."""
    for request in requests:
        reference.serve(request.full_ids)
        yield request


def _daemon(chosen: argparse.Namespace, stack: ExitStack) -> tuple[str, AdminClient, int]:
    """Worker socket, admin API and process of the daemon to replay against."""
    if chosen.socket:
        return chosen.socket, AdminClient(chosen.admin or _admin_beside(chosen.socket)), owner_of(chosen.socket)
    environment, s3_url = None, chosen.s3_url
    if s3_url == "auto":
        from flexkvd.cli.s3server import S3Server  # noqa: PLC0415 - brings boto3, which only this run needs

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(S3Server(folder, buckets=(_BUCKET,)))
        environment, s3_url = os.environ | server.environment, f"{server.endpoint_url}/{_BUCKET}/replay"
    sizes = Sizes(chosen.dram_bytes, chosen.ssd_bytes, s3_url, chosen.admission, chosen.policy)
    daemon = stack.enter_context(SpawnedDaemon(sizes, environment))
    daemon.wait_ready()
    return daemon.socket, daemon.admin, daemon.pid


def _admin_beside(socket: str) -> str:
    """The admin socket in the worker socket's folder, or where it is by default."""
    beside = Path(socket).with_name(Path(ApiTable.socket).name)
    return str(beside) if beside.exists() else ApiTable.socket


def _percentiles(latencies_s: list[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds."""
    ordered = sorted(latencies_s)
    if not ordered:
        return {}
    return {f"p{percent}_ms": ordered[len(ordered) * percent // 100] * _MS for percent in (50, 95, 99)}


def _as_json(run: Run) -> dict[str, object]:
    ledger = run.ledger
    return {
        "requests": ledger.requests,
        "blocks": ledger.blocks,
        "hit_ratio_blocks": _share(sum(ledger.hits.values()), ledger.blocks),
        "lru_reference": run.reference.ratio,
        "lru_reference_blocks": run.reference.capacity_blocks or "inf",
        "hit_blocks": {tier.name.lower(): ledger.hits[tier] for tier in (Tier.DRAM, Tier.SSD, Tier.S3)},
        "load_outcomes": {outcome.value: count for outcome, count in ledger.loads.items()},
        "save_outcomes": {outcome.value: count for outcome, count in ledger.saves.items()},
        "wrong_blocks": ledger.wrong_count,
        "wrong": ledger.wrong,
        "ledger_equal": not run.differences,
        "ledger_differences": run.differences,
        "link_bytes": run.link_bytes,
        "latency": {
            "match": _percentiles(ledger.match_s),
            "load": _percentiles(ledger.load_s),
            "save": _percentiles(ledger.save_s),
        },
        "seconds": run.seconds,
        "own_cpu_s": run.own_cpu_s,
        "daemon_cpu_s": run.daemon_cpu_s,
        "workers_cpu_s": run.workers_cpu_s,
        "cpu_s_per_gb": run.cpu_s_per_gb,
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _print(console: Console, run: Run) -> None:
    ledger = run.ledger
    console.print(f"{ledger.requests:,} requests, {ledger.blocks:,} full blocks in {run.seconds:.1f} s")
    tiers = Table("hits from", "blocks", "share of all blocks")
    for tier in (Tier.DRAM, Tier.SSD, Tier.S3):
        tiers.add_row(tier.name.lower(), f"{ledger.hits[tier]:,}", f"{_share(ledger.hits[tier], ledger.blocks):.2%}")
    total = sum(ledger.hits.values())
    tiers.add_row("all tiers", f"{total:,}", f"{_share(total, ledger.blocks):.2%}")
    console.print(tiers)
    room = run.reference.capacity_blocks
    console.print(f"LRU of {'unlimited room' if room is None else f'{room:,} blocks'}: {run.reference.ratio:.2%}")
    steps = Table("latency of one request's", "p50", "p95", "p99")
    for name, latencies in (("match", ledger.match_s), ("load", ledger.load_s), ("save", ledger.save_s)):
        if latencies:
            steps.add_row(name, *(f"{each:.2f} ms" for each in _percentiles(latencies).values()))
    console.print(steps)
    moved = ", ".join(f"{link} {count / 1e6:,.0f} MB" for link, count in sorted(run.link_bytes.items()))
    console.print(f"moved: {moved or 'nothing'}")
    for what, outcomes in (("loads", ledger.loads), ("saves", ledger.saves)):
        words = ", ".join(f"{outcome.value} {count:,}" for outcome, count in sorted(outcomes.items()))
        console.print(f"{what}: {words or 'none'}")
    console.print(f"CPU: daemon {run.daemon_cpu_s:.1f} s, this run {run.own_cpu_s:.1f} s")
    for links, cpu_s in run.cpu_s_per_gb.items():
        console.print(f"  {cpu_s:.2f} CPU-s per GB over the {links}")
    compared = sum(ledger.hits.values())
    console.print(f"wrong bytes: {ledger.wrong_count} of {compared:,} blocks compared {' '.join(ledger.wrong[:3])}")
    verdict = "the same as" if not run.differences else "OTHER THAN"
    console.print(f"this run counted {verdict} the daemon")
    for difference in run.differences:
        console.print(f"  {difference}")
