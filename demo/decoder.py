"""A worker that decodes many requests at once: a process with its own model, all-resident or over the row path.

Reads `DecodeOrder`s as JSON lines from stdin and answers each with one `DecodeResult` line on stdout. Ends when
stdin ends. Started by `rows_run` and `sweep`.

    python -m demo.decoder --name d0 --socket /run/flexkvd/worker.sock --seed 1 --requests 8 --hbm-bytes 9000000
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from demo.batch import Member
from demo.cache import DaemonCache
from demo.decoding import Decoding, Job
from demo.dense import DenseStore
from demo.hbm import HotMemory
from demo.messages import DecodeOrder, DecodeResult, WorkerReady
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.row_figures import Arrivals
from demo.shape import CHUNK_TOKENS, SHAPES
from demo.tiered import TieredStore
from demo.topics import topic_prompt
from demo.weights import WEIGHTS
from flexkvd.selections.statistics import LAGS, WINDOWS, Statistics
from flexkvd.selections.workload import Selection

HOT_SLOTS = 256
"""H: four times what a step selects is the most that a request's hot buffer may grow to."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m demo.decoder", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--socket", required=True, help="the daemon's worker socket")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights: equal in all workers")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="rows")
    parser.add_argument("--weights", choices=sorted(WEIGHTS), default="clustered")
    parser.add_argument("--requests", type=int, required=True, help="most requests at once")
    parser.add_argument("--blocks", type=int, required=True, help="most blocks of a request")
    parser.add_argument("--hbm-bytes", type=int, default=0, help="budget; 0: whatever all requests need")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # part of the bit-exactness: see demo/model.py
    worker = _Worker(options)
    _say(WorkerReady(options.name))
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=DecodeOrder)
        _say(worker.tiered(order) if order.tiered else worker.dense(order))
    worker.close()


class _Worker:
    """A model, and the memory for one kind of run at a time, made when first needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        shape = SHAPES[options.shape]
        self.model = SparseTransformer(shape, options.seed, options.blocks * CHUNK_TOKENS, WEIGHTS[options.weights])
        self.geometry = shape.geometry(f"{options.shape}-{options.weights}-{options.seed}")
        self._tiered: TieredStore | None = None
        self._paged: PagedKV | None = None
        self._cache: DaemonCache | None = None

    def dense(self, order: DecodeOrder) -> DecodeResult:
        """All rows of a running request in pages; as many pages as the budget gives, or all need."""
        options = self._options
        if self._paged is None or self._cache is None:
            count = options.hbm_bytes // self.geometry.block_bytes or options.requests * options.blocks
            self._paged = PagedKV(self.geometry, CHUNK_TOKENS, count)
            self._cache = DaemonCache(options.socket, self._paged, f"{options.name}-dense")
        selections = _Selections()
        decoding = Decoding(
            self.model, DenseStore(self.model, self._paged, self._cache), selections.note if order.statistics else None
        )
        result = self._run(decoding, order)
        summary = selections.statistics.summary()
        result.overlaps = {lag: share for lag in LAGS if (share := summary.overlaps[lag]) is not None}
        result.pages_touched = {window: share for window in WINDOWS if (share := summary.pages_touched[window])}
        return result

    def tiered(self, order: DecodeOrder) -> DecodeResult:
        """Hot rows, over the daemon."""
        options = self._options
        if self._tiered is None:
            memory = HotMemory(
                self.model.shape, self.geometry, options.hbm_bytes, options.requests, options.blocks, HOT_SLOTS
            )
            self._tiered = TieredStore(memory, options.socket, options.name)
        store = self._tiered
        store.admissions, store.link.refusals = Counter(), []
        store.widened = store.warmed = 0
        store.link.arrivals = arrivals = Arrivals(self.geometry.chunk_count)
        result = self._run(Decoding(self.model, store), order)
        store.path.check()
        result.budget = store.memory.budget.describe()
        result.admissions, result.refusals = dict(store.admissions), dict(Counter(store.link.refusals))
        result.absent, result.on_demand = arrivals.absent, arrivals.on_demand
        result.ahead, result.ahead_used, result.revoked = arrivals.ahead, arrivals.ahead_used, arrivals.revoked
        result.hits, result.misses = arrivals.hits, arrivals.misses
        result.widened, result.warmed = store.widened, store.warmed
        row = self.model.shape.layers_per_group * self.geometry.planes[0].row_bytes
        result.row_bytes = (arrivals.misses + store.warmed) * row
        return result

    def close(self) -> None:
        if self._tiered is not None:
            self._tiered.close()
        if self._cache is not None:
            self._cache.close()

    def _run(self, decoding: Decoding, order: DecodeOrder) -> DecodeResult:
        jobs = [
            Job(
                order.first + place,
                place,
                topic_prompt(self.model.shape, order.blocks, place, order.seed),
                order.new_tokens,
                order.seed * 1000 + place,
            )
            for place in range(order.count)
        ]
        found = decoding.run(jobs)
        results = [found[job.request] for job in jobs]
        return DecodeResult(
            tokens=[each.tokens for each in results],
            logits_digests=[each.logits_digest for each in results],
            wall_s=decoding.wall_s,
            busy_s=decoding.busy_s,
            steps=decoding.steps,
            turns=decoding.turns,
            running_most=decoding.running_most,
            replays=sum(each.replays for each in results),
            handed_back=decoding.handed_back,
        )


class _Selections:
    """Statistics of what a run selects."""

    def __init__(self) -> None:
        self.statistics = Statistics([])

    def note(self, group: int, member: Member, selected: Tensor) -> None:
        positions = selected.numpy().astype(np.int32)
        self.statistics.add(Selection(member.position, member.request, group, member.position + 1, positions))


def _say(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
