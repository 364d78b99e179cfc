"""One inference worker: a process with its own model and paged KV, serving requests one at a time.

Reads `WorkRequest`s as JSON lines from stdin and answers each with one `WorkResult` line on stdout.
Ends when stdin ends. Started by `fleet`.

    python -m demo.worker --name w0 --socket /run/flexkvd/worker.sock --seed 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec
import torch

from demo.cache import CacheAccount, DaemonCache, NoCache
from demo.engine import Engine, Generation
from demo.messages import WorkerReady, WorkRequest, WorkResult
from demo.model import SparseTransformer
from demo.paged import PagedKV
from demo.shape import ModelShape
from demo.workload import POSITIONS_MAX

_PAGE_TOKENS = 32
"""Smaller than a block, as in many engines: a block is two pages, which need not be neighbours."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m demo.worker", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--socket", required=True, help="the daemon's worker socket")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights: equal in all workers")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # part of the bit-exactness: see demo/model.py
    shape = ModelShape()
    model = SparseTransformer(shape, options.seed, POSITIONS_MAX)
    memory = PagedKV(shape.geometry(f"weights-{options.seed}"), _PAGE_TOKENS, POSITIONS_MAX // _PAGE_TOKENS)
    engine = Engine(model, memory)
    daemon = DaemonCache(options.socket, memory, instance=options.name)
    _say(WorkerReady(options.name))
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=WorkRequest)
        cache = daemon if request.use_cache else NoCache()
        generation = engine.generate(request.prompt, request.new_tokens, request.seed, cache)
        _say(_result(generation, daemon.account if request.use_cache else CacheAccount()))
    daemon.close()


def _result(generation: Generation, account: CacheAccount) -> WorkResult:
    return WorkResult(
        tokens=generation.tokens,
        logits_digest=generation.logits_digest,
        ttft_s=generation.ttft_s,
        total_s=generation.total_s,
        blocks=generation.blocks,
        hits=dict(account.hits),
        recomputed=generation.recomputed,
        saved=dict(account.saved),
        errors=account.errors,
    )


def _say(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
