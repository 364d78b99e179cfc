"""Two tenants on one daemon, one of them flooding: the other hits as if it were alone, and no quota is ever exceeded.

The yardstick is the same requests served by a daemon that nobody else uses, with the same quota. The control is the
same flood under the victim's own name: it must hurt, or the trial would show nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from flexkv_py.client import Client
from flexkv_py.core.messages import Outcome
from flexkv_tiers.codec import HEADER_BYTES

from .blocks import BLOCK_BYTES, GEOMETRY, Pages, chain
from .fleet import DaemonProcess

QUIET, FLOOD = "quiet", "flood"
MIB = 1 << 20
SEGMENT_BYTES = MIB
RECORD_BYTES = BLOCK_BYTES + HEADER_BYTES
WORKING_SETS = 6
"""Blocks that the quiet tenant asks for, in quotas of DRAM."""
FLOOD_BLOCKS = 32
FLOOD_FIRST = 1 << 20
FLOOD_PER_REQUEST = 8
"""Blocks of the flood for each that the quiet tenant asks for: as many on any machine, however busy."""
SAMPLE_S = 0.05
HIT_LOSS_MAX = 0.05
CONTROL_LOSS_MIN = 0.15


@dataclass
class Run:
    """What one daemon did for the quiet tenant, and what was seen of both."""

    hits: int = 0
    asked: int = 0
    samples: int = 0
    most: Counter[str] = field(default_factory=Counter)
    flooded: Counter[Outcome] = field(default_factory=Counter)
    answers: dict[str, int] = field(default_factory=dict)
    paces: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # requests the flood may follow

    @property
    def ratio(self) -> float:
        return self.hits / self.asked


Tables = dict[str, dict[str, object]]


def tenants(folder: Path, *, requests: int = 3000, quota_blocks: int = 256, seed: int = 1) -> dict[str, float]:
    """Quotas in DRAM and SSD, then fair shares of DRAM without any quota, then the control."""
    figures = quotas(folder, requests=requests, quota_blocks=quota_blocks, seed=seed)
    return figures | shares(folder, requests=requests, quota_blocks=quota_blocks, seed=seed, control=True)


def quotas(folder: Path, *, requests: int, quota_blocks: int, seed: int = 1) -> dict[str, float]:
    """Two tenants with equal quotas of DRAM and SSD, in tiers with room for more."""
    quota = {"dram_bytes": quota_blocks * BLOCK_BYTES, "ssd_bytes": 2 * quota_blocks * RECORD_BYTES}
    below = {"directory": str(folder / "ssd"), "bytes": max(64 * MIB, 32 * quota["ssd_bytes"])}
    tables: Tables = {"dram": _dram(4 * quota_blocks), "ssd": below}
    tables |= {f"tenants.{name}": dict(quota) for name in (QUIET, FLOOD)}
    alone = _run(folder, "alone with quotas", tables, requests, quota_blocks, seed, flood="")
    beside = _run(folder, "beside a flood with quotas", tables, requests, quota_blocks, seed, flood=FLOOD)
    return _compare("quotas", alone, beside)


def shares(folder: Path, *, requests: int, quota_blocks: int, seed: int = 1, control: bool = False) -> dict[str, float]:
    """Two tenants without quotas in DRAM for twice as much: each has at least half of it."""
    half: Tables = {"dram": _dram(quota_blocks), f"tenants.{QUIET}": {"dram_bytes": quota_blocks * BLOCK_BYTES}}
    alone = _run(folder, "alone in half of DRAM", half, requests, quota_blocks, seed, flood="")
    both: Tables = {"dram": _dram(2 * quota_blocks)}
    beside = _run(folder, "beside a flood without quotas", both, requests, quota_blocks, seed, flood=FLOOD)
    figures = _compare("shares", alone, beside)
    if control:
        same = _run(folder, "flooded under its own name", both, requests, quota_blocks, seed, flood=QUIET)
        assert same.ratio < (1 - CONTROL_LOSS_MIN) * alone.ratio, (
            f"the flood does no harm even in one tenant ({same.ratio:.3f}, {alone.ratio:.3f} alone): it shows nothing"
        )
        figures["control: hit ratio in one tenant with the flood"] = same.ratio
    return figures


def _dram(blocks: int) -> dict[str, object]:
    return {"bytes": blocks * BLOCK_BYTES, "segment_bytes": SEGMENT_BYTES}


def _compare(what: str, alone: Run, beside: Run) -> dict[str, float]:
    lost = 1 - beside.ratio / alone.ratio
    assert lost <= HIT_LOSS_MAX, (
        f"{what}: beside a flood the hit ratio is {beside.ratio:.3f}, alone it is {alone.ratio:.3f}; "
        f"the flood came to {dict(beside.flooded)}, saves of the quiet one to {beside.answers}"
    )
    return {
        f"{what}: hit ratio alone": alone.ratio,
        f"{what}: hit ratio beside the flood": beside.ratio,
        f"{what}: blocks of the flood stored": beside.flooded[Outcome.STORED],
        f"{what}: blocks of the flood throttled": beside.flooded[Outcome.THROTTLED],
        f"{what}: samples": beside.samples,
        **{f"{what}: most bytes of {at}": used for at, used in sorted(beside.most.items())},
    }


def _run(folder: Path, name: str, tables: Tables, requests: int, blocks: int, seed: int, *, flood: str) -> Run:
    run = Run()
    (place := folder / str(len(list(folder.iterdir())))).mkdir()  # short: a socket's path has 107 bytes at most
    if "ssd" in tables:
        tables = tables | {"ssd": tables["ssd"] | {"directory": str(place / "ssd")}}
    with DaemonProcess(place, tables) as daemon, _watched(daemon, run), _flooded(daemon, run, flood):
        with Client(daemon.socket, GEOMETRY, tenant=QUIET, timeout_s=60) as client:
            pages = Pages(client, 1)
            for number in _popular(requests, WORKING_SETS * blocks, seed):
                _ask(client, pages, number, run)
                run.paces.release()
        daemon.recount()
    return run


def _popular(requests: int, blocks: int, seed: int) -> list[int]:
    """Numbers of blocks, some of them asked for far more often than others (Zipf, exponent 0.9)."""
    chance = random.Random(seed)
    weights = list(accumulate((at + 1) ** -0.9 for at in range(blocks)))
    return chance.choices(range(blocks), cum_weights=weights, k=requests)


def _ask(client: Client, pages: Pages, number: int, run: Run) -> None:
    """What a worker does for one block: load it, or compute and save it."""
    keys = chain(client, number, 1)
    run.asked += 1
    if client.match(keys).length:
        pages.wipe(0)
        loaded = client.load(keys, pages.pages(0, 1), pages.memory, deadline_s=30).wait(timeout_s=30)
        if loaded.outcomes == [Outcome.LOADED]:
            assert pages.wrong(0, [number]) == [], f"block {number} came back with wrong bytes"
            run.hits += 1
            return
    pages.put(0, number)
    [answer] = client.save(keys, pages.pages(0, 1), pages.memory, deadline_s=30).wait(timeout_s=30).outcomes
    run.answers[answer.value] = run.answers.get(answer.value, 0) + 1


@contextmanager
def _watched(daemon: DaemonProcess, run: Run) -> Iterator[None]:
    """Look at all tenants many times a second: none may use more than its quota, in any tier, ever."""
    over, stop = list[str](), threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_S):
            for tenant in daemon.admin.json("/v1/tenants")["tenants"]:
                for tier, used in tenant["used"].items():
                    quota = tenant["quota"][f"{tier}_bytes"]
                    run.most[f"{tenant['name']} in {tier}"] = max(run.most[f"{tenant['name']} in {tier}"], used)
                    if quota and used > quota:
                        over.append(f"{tenant['name']} uses {used} bytes of {tier}, its quota is {quota}")
            run.samples += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not over, over[:3]
    assert run.samples, "nobody looked"


@contextmanager
def _flooded(daemon: DaemonProcess, run: Run, tenant: str) -> Iterator[None]:
    """Save new blocks, many for each that is asked for, under this name; under none: nobody does."""
    stop = threading.Event()

    def flood() -> None:
        number = FLOOD_FIRST
        with Client(daemon.socket, GEOMETRY, tenant=tenant, timeout_s=60) as client:
            pages = Pages(client, FLOOD_BLOCKS)
            while not stop.is_set():
                keys = chain(client, number, FLOOD_BLOCKS)
                ticket = client.save(keys, pages.pages(0, FLOOD_BLOCKS), pages.memory, deadline_s=1)
                run.flooded.update(ticket.wait(timeout_s=30).outcomes)
                number += FLOOD_BLOCKS
                for _ in range(FLOOD_BLOCKS // FLOOD_PER_REQUEST):
                    run.paces.acquire()

    thread = threading.Thread(target=flood)
    if tenant:
        thread.start()
        begun = time.monotonic()
        while not run.flooded[Outcome.STORED]:
            assert time.monotonic() - begun < 30, "the flood does not begin"
            time.sleep(0.01)
    try:
        yield
    finally:
        stop.set()
        run.paces.release(FLOOD_BLOCKS)
        if tenant:
            thread.join()
