"""`flexkv bench`: how fast this daemon serves a worker on this machine, in a few seconds and with real bytes.

Owns the run and its figures. What it saves goes no further than DRAM, has a namespace of its own that is reset at
the end, and is bounded, so that a daemon in use loses few blocks to it. `scripts/bench` is for developers.
"""

from __future__ import annotations

import argparse
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType

from flexkv_py.client import Client, Outcome, PagedLayout, create_memory
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import ROOT, BlockKey, key_of_hash
from flexkvd.cli import output, words
from flexkvd.cli.arguments import byte_size
from flexkvd.cli.connecting import add_command, read_token_file
from flexkvd.cli.cpu import cpu_seconds, owner_of
from flexkvd.cli.exits import ExitCode
from flexkvd.cli.pattern import Pattern
from flexkvd.config import DaemonTable

MIB = 1 << 20
LAYERS, TOKENS_PER_BLOCK = 8, 64
BLOCK_BYTES = 2560 * 1024
"""Of a 64-token block of DeepSeek-V3.2 without its indexer rows."""
BATCH_BLOCKS = 8
TOTAL_BYTES_DEFAULT = 256 * MIB
PINGS, MATCHES, MATCH_KEYS, BARE_COPIES = 1000, 50, 512, 25
LOAD_S = 2.0
DEADLINE_S = 10.0
TENANT = "flexkv-bench"
DESCRIPTION = (
    "Measures the worker socket of a running daemon, or of one started for this (--spawn): round trips, matches, saves "
    "and loads of blocks of 2.5 MiB through shared memory, with every byte compared, beside bare copies of the same "
    "pieces by one thread. It takes some seconds. Exit code 1 if a byte was wrong.\n\n"
    "What it saves stays in DRAM, where up to --bytes of other blocks make room for it, and is forgotten at the end; "
    "its calls count in the daemon's metrics. With --json {seconds, rows, wrong_blocks}."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of `flexkv`."""
    examples = ("flexkv bench", "flexkv bench --socket /run/flexkvd/worker.sock --bytes 1GiB", "flexkv bench --spawn")
    parser = add_command(commands, "bench", "measure this daemon in seconds", DESCRIPTION, examples, daemon=False)
    parser.add_argument(
        "--socket", default=DaemonTable.socket, metavar="PATH", help=f"its worker socket ({DaemonTable.socket})"
    )
    parser.add_argument("--worker-token-file", metavar="FILE", help="file with the token of the worker socket (none)")
    parser.add_argument("--spawn", action="store_true", help="start a daemon for this run, in DRAM alone")
    parser.add_argument(
        "--bytes", type=byte_size, default=TOTAL_BYTES_DEFAULT, metavar="SIZE", help="saved at most (256MiB)"
    )
    parser.set_defaults(run=run)


@dataclass(slots=True)
class Row:
    """One kind of call: how long each took, and what was moved."""

    what: str
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    cpu_s: float = 0.0
    """Of the daemon and of us, together."""

    def as_dict(self) -> dict[str, object]:
        """Times in seconds, rates in bytes per second; None where nothing was moved."""
        ordered, moved_s = sorted(self.seconds), sum(self.seconds)
        return {
            "what": self.what,
            "count": len(ordered),
            "p50_s": ordered[len(ordered) // 2] if ordered else None,
            "p99_s": ordered[len(ordered) * 99 // 100] if ordered else None,
            "bytes_per_s": self.bytes / moved_s if self.bytes and moved_s else None,
            "cpu_s_per_gb": self.cpu_s * 1e9 / self.bytes if self.bytes else None,
        }


def run(chosen: argparse.Namespace) -> int:
    """Measure and print; 1 if a byte was wrong. Raises FlexKVError."""
    if chosen.bytes < BATCH_BLOCKS * BLOCK_BYTES:
        why = f"--bytes {words.size(chosen.bytes)} is less than one save of {BATCH_BLOCKS} blocks: give 20MiB or more"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, why)
    started = time.perf_counter()
    with ExitStack() as stack:
        path = chosen.socket
        if chosen.spawn:
            from flexkvd.cli.spawn import Sizes, SpawnedDaemon  # noqa: PLC0415 - only this run starts one

            daemon = stack.enter_context(SpawnedDaemon(Sizes(dram_bytes=2 * -(-chosen.bytes // MIB) * MIB)))
            daemon.wait_ready()
            path = daemon.socket
        token = read_token_file(chosen.worker_token_file) if chosen.worker_token_file else ""
        worker = stack.enter_context(BenchWorker(path, token))
        rows = [worker.pings(), worker.matches(), worker.saves(chosen.bytes), worker.loads(), worker.bare_copies()]
    answer = {
        "seconds": time.perf_counter() - started,
        "rows": [row.as_dict() for row in rows],
        "wrong_blocks": worker.wrong_count,
    }
    output.emit(chosen, answer, view)
    return ExitCode.WRONG if worker.wrong_count else ExitCode.DONE


class BenchWorker:
    """One client with paged KV for `BATCH_BLOCKS` blocks, and what it has saved."""

    def __init__(self, path: str, token: str) -> None:
        """Raises FlexKVError when nobody listens, or does not let us in."""
        self._pid = owner_of(path)
        plane = Plane("kv", tuple(range(LAYERS)), BLOCK_BYTES // LAYERS // TOKENS_PER_BLOCK)
        geometry = Geometry((plane,), TOKENS_PER_BLOCK, model="flexkv-bench")
        self._epoch = secrets.randbits(31)
        self._client = Client(path, geometry, tenant=TENANT, epoch=self._epoch, token=token, timeout_s=DEADLINE_S)
        self._pattern = Pattern(BLOCK_BYTES)
        self._layout = PagedLayout(geometry, BATCH_BLOCKS, TOKENS_PER_BLOCK)
        self._chain: list[BlockKey] = []
        self.wrong_count = 0

    def __enter__(self) -> BenchWorker:
        self._client.connect()
        descriptor = create_memory(self._layout.bytes, "flexkv-bench")
        try:
            flat = np.frombuffer(mmap.mmap(descriptor, self._layout.bytes), np.uint8)
            self._memory = self._client.register_memory(
                descriptor,
                bytes=self._layout.bytes,
                page_count=BATCH_BLOCKS,
                page_tokens=TOKENS_PER_BLOCK,
                layout=self._layout.layers,
            )
        finally:
            os.close(descriptor)
        self._pages = flat.reshape(LAYERS, BATCH_BLOCKS, -1)  # uint8 [layer, page, bytes]
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._client.reset(self._epoch)
        finally:
            self._client.close()

    def pings(self) -> Row:
        """Round trips that ask nothing."""
        return _timed("ping", (self._client.ping for _ in range(PINGS)))

    def matches(self) -> Row:
        """Of keys that nobody has."""
        keys = self._keys(ROOT, range(1 << 40, (1 << 40) + MATCH_KEYS))
        return _timed(f"match of {MATCH_KEYS}", (lambda: self._client.match(keys) for _ in range(MATCHES)))

    def saves(self, bytes_max: int) -> Row:
        """Batch by batch, each after the one before. What is throttled is not counted as moved."""
        row = Row(f"save of {BATCH_BLOCKS} blocks")
        for batch in range(bytes_max // BLOCK_BYTES // BATCH_BLOCKS):
            first, parent = batch * BATCH_BLOCKS, self._chain[-1] if self._chain else ROOT
            keys = self._keys(parent, range(first, first + BATCH_BLOCKS))
            for page in range(BATCH_BLOCKS):
                self._pages[:, page] = self._block(first + page)
            with self._clock(row):
                pages = range(BATCH_BLOCKS)
                ticket = self._client.save(keys, pages, self._memory, parent, deadline_s=DEADLINE_S, skip_below=True)
                progress = ticket.wait()
            row.bytes += sum(outcome is Outcome.STORED for outcome in progress.outcomes) * BLOCK_BYTES
            self._chain += keys[: progress.length]
            if progress.length < BATCH_BLOCKS:
                break
        return row

    def loads(self) -> Row:
        """Over and over what was saved, for a while; each block is compared."""
        row, end = Row(f"load of {BATCH_BLOCKS} blocks"), time.perf_counter() + LOAD_S
        while self._chain and time.perf_counter() < end:
            for first in range(0, len(self._chain), BATCH_BLOCKS):
                keys = self._chain[first : first + BATCH_BLOCKS]
                self._pages[:] = 0xA5  # what is not written must not pass for right
                with self._clock(row):
                    progress = self._client.load(keys, range(len(keys)), self._memory, deadline_s=DEADLINE_S).wait()
                for page, outcome in enumerate(progress.outcomes):
                    if outcome is Outcome.LOADED:
                        row.bytes += BLOCK_BYTES
                        self.wrong_count += not np.array_equal(self._pages[:, page], self._block(first + page))
        return row

    def bare_copies(self) -> Row:
        """The same pieces by one thread of ours: what no daemon can beat with one lane."""
        row, target = Row(f"bare copy of {BATCH_BLOCKS} blocks"), np.empty_like(self._pages)
        for _ in range(BARE_COPIES):
            with self._clock(row):
                for layer in range(LAYERS):
                    for page in range(BATCH_BLOCKS):
                        np.copyto(target[layer, page], self._pages[layer, page])
            row.bytes += self._pages.nbytes
        return row

    def _block(self, number: int) -> npt.NDArray[np.uint8]:
        """uint8 [layer, bytes]."""
        return self._pattern.block(number).reshape(LAYERS, -1)

    def _keys(self, parent: BlockKey, numbers: range) -> list[BlockKey]:
        keys: list[BlockKey] = []
        for number in numbers:
            parent = key_of_hash(self._client.namespace, parent, number.to_bytes(8, "little"))
            keys.append(parent)
        return keys

    def _clock(self, row: Row) -> _Clock:
        return _Clock(row, self._pid)


class _Clock:
    """Adds the time of a `with` block to a row, and the CPU that the daemon and we spent in it."""

    def __init__(self, row: Row, pid: int) -> None:
        self._row, self._pid = row, pid

    def __enter__(self) -> None:
        self._cpu_s = time.process_time() + cpu_seconds(self._pid)
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._row.seconds.append(time.perf_counter() - self._started)
        self._row.cpu_s += time.process_time() + cpu_seconds(self._pid) - self._cpu_s


def _timed(what: str, calls: Iterator[Callable[[], object]]) -> Row:
    row = Row(what)
    for call in calls:
        started = time.perf_counter()
        call()
        row.seconds.append(time.perf_counter() - started)
    return row


def view(answer: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of {seconds, rows, wrong_blocks}."""
    made = output.table("", "times", "p50", "p99", "rate", "CPU-s per GB", right=range(1, 6))
    for row in answer["rows"]:
        cpu = words.NONE if row["cpu_s_per_gb"] is None else f"{row['cpu_s_per_gb']:.2f}"
        times = (words.latency(row["p50_s"]), words.latency(row["p99_s"]))
        made.add_row(row["what"], f"{row['count']}", *times, words.rate(row["bytes_per_s"]), cpu)
    yield made
    wrong = answer["wrong_blocks"]
    yield f"every byte was right, in {answer['seconds']:.1f} s" if not wrong else f"{wrong} blocks had wrong bytes"
