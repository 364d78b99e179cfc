"""Decoding with less HBM and less DRAM than the KV of the running requests: `scripts/demo --rows`.

Owns what is run and compared: an all-resident run, which also computes and saves the prompts, then the same
requests over the row path, with weights whose selections cluster and, as the bad case, random ones. Figures and
verdict are `rows_report`'s. Called by `run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from demo.fleet import Daemon, Worker
from demo.messages import DecodeOrder, DecodeResult
from demo.meter import LinkMeter
from demo.rows_report import RowsCase
from demo.shape import CHUNK_TOKENS, SHAPES
from demo.show import Show

HBM_SHARE, DRAM_SHARE = 0.25, 0.6
"""Of the running requests' KV."""

_SSD_SHARE = 4
_ANSWER_S_MAX = 600.0
_SHAPE = "rows"


async def run_rows(work: Path, seed: int, show: Show, *, quick: bool) -> list[RowsCase]:
    """Both kinds of weights, one after the other."""
    requests, blocks, new_tokens = (4, 32, 16) if quick else (8, 32, 96)
    order = DecodeOrder(tiered=False, count=requests, first=0, blocks=blocks, new_tokens=new_tokens, seed=seed)
    kv_bytes = requests * (blocks * CHUNK_TOKENS + new_tokens) * token_bytes(_SHAPE)
    cases = []
    for weights in ("clustered", "random"):
        case = RowsCase(weights, order, kv_bytes, round(HBM_SHARE * kv_bytes), round(DRAM_SHARE * kv_bytes))
        directory = work / weights
        directory.mkdir()
        await _run_case(case, directory, show)
        cases.append(case)
    return cases


def token_bytes(shape: str) -> int:
    """KV bytes of one token, index keys included."""
    return SHAPES[shape].geometry("").block_bytes // CHUNK_TOKENS


async def _run_case(case: RowsCase, work: Path, show: Show) -> None:
    order, blocks_max = case.order, case.order.blocks + -(-case.order.new_tokens // CHUNK_TOKENS) + 1
    sizes = ["--requests", str(order.count), "--blocks", str(blocks_max), "--weights", case.weights]
    async with daemon_of(work, case.dram_bytes, _SSD_SHARE * case.kv_bytes) as daemon, _two(work) as (dense, tiered):
        await dense.begin("demo.decoder", daemon.socket, order.seed, *sizes)
        await tiered.begin("demo.decoder", daemon.socket, order.seed, *sizes, "--hbm-bytes", str(case.hbm_bytes))
        await daemon.begin()
        await dense.ready()
        await tiered.ready()
        show.say(f"{case.weights} weights: {order.count} requests, all-resident")
        order.statistics = True
        case.resident = await dense.ask(order, DecodeResult, _ANSWER_S_MAX)
        show.say(f"{case.weights} weights: the same over the row path")
        meter = LinkMeter(daemon)
        await meter.open_life(fresh=False)
        over_rows = DecodeOrder(True, order.count, 0, order.blocks, order.new_tokens, order.seed)
        case.tiered = await tiered.ask(over_rows, DecodeResult, _ANSWER_S_MAX)
        await meter.close_life()
        case.link_bytes = dict(meter.bytes)


@contextlib.asynccontextmanager
async def daemon_of(work: Path, dram_bytes: int, ssd_bytes: int) -> AsyncIterator[Daemon]:
    """A daemon with two tiers, to be begun; ended at the end, its log shown when that is no good one."""
    daemon = Daemon(work)
    daemon.configure_tiers(dram_bytes, ssd_bytes)
    try:
        yield daemon
    finally:
        await daemon.stop()


@contextlib.asynccontextmanager
async def _two(work: Path) -> AsyncIterator[tuple[Worker, Worker]]:
    workers = Worker("all-resident", work), Worker("row-path", work)
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.stop()
