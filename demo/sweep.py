"""Tokens per second by requests at once, all-resident beside tiered: `scripts/demo --concurrency-sweep`.

Owns what is run. Both ways have the same bytes of HBM, as much as `FILLS_AT` requests have KV, and the same
daemon, which has every prompt. All-resident, a request whose pages are not free waits until another has ended.
Figures, table and plot are `sweep_report`'s. Called by `run`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from demo.fleet import Worker
from demo.messages import DecodeOrder, DecodeResult
from demo.rows_run import daemon_of, token_bytes
from demo.shape import CHUNK_TOKENS
from demo.show import Show
from demo.sweep_report import Point

FILLS_AT = 12
"""Requests whose KV the HBM budget is as large as: with so many the all-resident pool is full."""

COUNTS = (1, 2, 4, 8, FILLS_AT, 16, 32)

_ROUNDS = 3
"""Runs of each count, of which the fastest counts."""

_BLOCKS, _NEW_TOKENS = 24, 24
_SHAPE = "wide"
_DRAM_SHARE, _SSD_SHARE = 1.25, 2.0
"""Of the KV of most requests: this run is about HBM."""

_ANSWER_S_MAX = 1800.0


async def run_sweep(work: Path, seed: int, show: Show) -> list[Point]:
    """Every count, both ways in turn."""
    most = max(COUNTS)
    blocks_max = _BLOCKS + -(-_NEW_TOKENS // CHUNK_TOKENS) + 1
    request_bytes = (_BLOCKS * CHUNK_TOKENS + CHUNK_TOKENS) * token_bytes(_SHAPE)
    sizes = ["--shape", _SHAPE, "--requests", str(most), "--blocks", str(blocks_max)]
    sizes += ["--hbm-bytes", str(FILLS_AT * request_bytes)]
    dram, ssd = (round(share * most * request_bytes) for share in (_DRAM_SHARE, _SSD_SHARE))
    points: list[Point] = []
    async with contextlib.AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(daemon_of(work, dram, ssd))
        workers = Worker("all-resident", work), Worker("tiered", work)
        for worker in workers:
            stack.push_async_callback(worker.stop)
            await worker.begin("demo.decoder", daemon.socket, seed, *sizes)
        await daemon.begin()
        for worker in workers:
            await worker.ready()
        show.say(f"{most} prompts are computed and saved")
        await workers[0].ask(DecodeOrder(False, most, 0, _BLOCKS, 1, seed), DecodeResult, _ANSWER_S_MAX)
        first = most
        with show.step("requests at once", len(COUNTS)) as advance:
            for count in COUNTS:
                runs: tuple[list[DecodeResult], list[DecodeResult]] = [], []
                for _ in range(_ROUNDS):
                    for tiered in (False, True):
                        order = DecodeOrder(tiered, count, first, _BLOCKS, _NEW_TOKENS, seed)
                        runs[tiered].append(await workers[tiered].ask(order, DecodeResult, _ANSWER_S_MAX))
                    first += count
                points.append(Point(count, count >= FILLS_AT, *runs))
                advance()
    return points
