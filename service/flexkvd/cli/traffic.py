"""Replays requests against a daemon with real bytes, as several workers would, and checks every byte.

Each client is one thread with a connection and a paged KV of its own. It takes the next request of the
trace whose session is free, loads the prefix that is cached, compares it, writes the rest as if computed,
and saves it. Owns no daemon and no output: `replay` gives it both.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from flexkv_py.client import Client, PagedLayout, create_memory
from flexkv_py.core.messages import Outcome, Tier
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.geometry import Geometry, Plane
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest, key_of_hash
from flexkv_py.traces import TraceRequest
from flexkvd.cli.ledger import Ledger
from flexkvd.cli.pattern import Pattern
from flexkvd.cli.turns import Turns

LAYERS = 8
PAGES = 256
HOLD_S = 30.0
DEADLINE_S = 30.0
_POISON = 0xA5


@dataclass(frozen=True)
class Target:
    """The daemon, and what a block looks like there."""

    socket: str
    block_bytes: int
    tokens_per_block: int
    token: str = ""
    pages: int = PAGES
    """Blocks a client can hold at a time. Requests beyond that are loaded and saved in slices, head first."""

    def geometry(self) -> Geometry:
        """One plane, eight layers. Raises FlexKVError (`bad_argument`) if the bytes do not come out even."""
        unit = LAYERS * self.tokens_per_block
        if self.block_bytes % unit or self.block_bytes % mmap.PAGESIZE:
            step = int(np.lcm(unit, mmap.PAGESIZE))
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"--block-bytes {self.block_bytes} cannot be spread over {LAYERS} layers of {self.tokens_per_block} "
                f"tokens: choose a multiple of {step}",
            )
        plane = Plane("kv", tuple(range(LAYERS)), self.block_bytes // unit)
        return Geometry((plane,), self.tokens_per_block, model="flexkv-replay", chunk_bytes_min=mmap.PAGESIZE)


def replay(requests: Iterator[TraceRequest], target: Target, client_count: int) -> Ledger:
    """Serve all requests, each by a free one of `client_count` clients, in its session's turn. Raises FlexKVError."""
    geometry, pattern = target.geometry(), Pattern(target.block_bytes)
    turns = Turns(requests)

    def serve() -> Ledger:
        try:
            with ReplayClient(target, geometry, pattern) as client:
                while True:
                    with turns.next() as request:
                        if request is None:
                            return client.ledger
                        client.serve(request.full_ids)
        except BaseException:
            turns.stop()  # the others would only fail likewise, one deadline after the other
            raise

    total = Ledger()
    with ThreadPoolExecutor(client_count) as pool:
        running = [pool.submit(serve) for _ in range(client_count)]
        for future in running:
            total.add(future.result())
    return total


def block_keys(namespace: NamespaceDigest, ids: Sequence[int]) -> list[BlockKey]:
    """Keys of a chain of blocks, taking a trace's id for the engine's own hash."""
    parent, keys = ROOT, []
    for block_id in ids:
        parent = key_of_hash(namespace, parent, block_id.to_bytes(8, "little"))
        keys.append(parent)
    return keys


class ReplayClient:
    """One worker: a connection, a paged KV with room for `target.pages` blocks, and what it has seen."""

    def __init__(self, target: Target, geometry: Geometry, pattern: Pattern) -> None:
        self.ledger = Ledger()
        self._pattern = pattern
        self._page_count = target.pages
        self._client = Client(target.socket, geometry, token=target.token, timeout_s=DEADLINE_S)
        layout = PagedLayout(geometry, self._page_count, geometry.tokens_per_block)
        descriptor = create_memory(layout.bytes, "flexkv-replay")
        try:
            flat = np.frombuffer(mmap.mmap(descriptor, layout.bytes), np.uint8)
            self._pages = flat.reshape(LAYERS, self._page_count, -1)  # uint8 [layer, page, bytes]
            self._client.connect()
            self._memory = self._client.register_memory(
                descriptor,
                bytes=layout.bytes,
                page_count=self._page_count,
                page_tokens=geometry.tokens_per_block,
                layout=layout.layers,
            )
        finally:
            os.close(descriptor)

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def serve(self, ids: Sequence[int]) -> None:
        """One request: match, load what is there, compute the rest, save it."""
        self.ledger.requests += 1
        self.ledger.blocks += len(ids)
        if not ids:
            return
        keys = block_keys(self._client.namespace, ids)
        started = time.perf_counter()
        found = self._client.match(keys, hold_s=HOLD_S)
        self.ledger.match_s.append(time.perf_counter() - started)
        self.ledger.matched += found.length
        loaded = self._load(keys[: found.length], ids) if found.length else 0
        if loaded < len(ids):
            self._save(keys, ids, loaded)
        if found.lease is not None:
            found.lease.release()  # only now: what was saved hangs on it, and must not stay longer than it

    def _load(self, keys: list[BlockKey], ids: Sequence[int]) -> int:
        """Load and compare; returns how many leading blocks arrived."""
        started = time.perf_counter()
        loaded = 0
        for first in range(0, len(keys), self._page_count):
            part = keys[first : first + self._page_count]
            self._pages[:, : len(part)] = _POISON  # what is not written must not pass for right
            progress = self._client.load(part, range(len(part)), self._memory, deadline_s=DEADLINE_S).wait()
            self.ledger.loads.update(progress.outcomes)
            for page, outcome in enumerate(progress.outcomes):
                if outcome is Outcome.LOADED:
                    self._compare(page, ids[first + page], Tier(progress.tiers[page]))
            loaded += progress.length
            if progress.length < len(part):
                break
        self.ledger.load_s.append(time.perf_counter() - started)
        return loaded

    def _compare(self, page: int, block_id: int, tier: Tier) -> None:
        self.ledger.hits[tier] += 1
        expected = self._pattern.block(block_id).reshape(LAYERS, -1)
        if not np.array_equal(self._pages[:, page], expected):
            self.ledger.found_wrong(block_id, tier)

    def _save(self, keys: list[BlockKey], ids: Sequence[int], done: int) -> None:
        started = time.perf_counter()
        for first in range(done, len(keys), self._page_count):
            part = keys[first : first + self._page_count]
            for page in range(len(part)):
                self._pages[:, page] = self._pattern.block(ids[first + page]).reshape(LAYERS, -1)
            parent = keys[first - 1] if first else ROOT
            pages = range(len(part))
            progress = self._client.save(part, pages, self._memory, parent, deadline_s=DEADLINE_S).wait()
            self.ledger.saves.update(progress.outcomes)
            if progress.length < len(part):
                break  # what follows a hole could not be matched
        self.ledger.save_s.append(time.perf_counter() - started)
