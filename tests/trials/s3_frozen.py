"""S3 frozen under a daemon with its default timeouts: loads that wait for it are told early, DRAM serves as before."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flexkv_py.core.messages import Outcome
from flexkvd.cli.s3server import S3Server
from flexkvd.tier_tables import S3Table
from tests.s3proxy import FaultProxy

from .blocks import chain
from .fleet import DaemonProcess
from .s3_faults import CHAIN_BLOCKS, HOT, Latencies, Loop, Traffic, back_after_s

COLD = range(CHAIN_BLOCKS, 4 * CHAIN_BLOCKS, CHAIN_BLOCKS)
DEADLINE_S = 60.0
"""Of a load: far beyond what it may take to be told."""


def s3_frozen(folder: Path, *, quiet_s: int = 8) -> dict[str, float]:
    """SIGSTOP of what answers for S3, a load of blocks that are there alone, SIGCONT; seconds and p99."""
    table: dict[str, object] = {"bucket": "flexkv", "prefix": "frozen"}
    with S3Server(folder / "s3") as server, FaultProxy(server.endpoint_url) as proxy:
        table["endpoint_url"] = proxy.endpoint_url
        with DaemonProcess(folder, {"s3": table, "dram": {"bytes": "256MiB"}}, server.environment) as daemon:
            traffic = Traffic(daemon)
            for first in (HOT, *COLD):
                assert traffic.save(traffic.pages[0], first)
            traffic.close()
            daemon.stop()
            daemon.start()  # now they are in S3 alone
            traffic = Traffic(daemon)
            assert traffic.load(traffic.pages[0], HOT)
            figures = {f"quiet: {what} p99 ms": each for what, each in _beside(traffic, lambda: time.sleep(quiet_s))}
            told_s: list[float] = []
            proxy.suspend()
            try:
                frozen = _beside(traffic, lambda: told_s.extend(_told_after_s(traffic, first) for first in COLD))
            finally:
                proxy.resume()
            figures |= {f"frozen: {what} p99 ms": each for what, each in frozen}
            figures |= {
                "frozen: first load told after s": told_s[0],
                "frozen: later loads told after s": max(told_s[1:]),
            }
            figures["thawed: back after s"] = back_after_s(traffic)
            assert all(traffic.load(traffic.pages[1], first) for first in COLD)
            traffic.close()
            daemon.recount()
    assert told_s[0] < S3Table(bucket="any").read_timeout_s, figures
    assert max(told_s[1:]) < 1.0, figures
    return figures


def _beside(traffic: Traffic, work: Callable[[], None]) -> list[tuple[str, float]]:
    """p99 in milliseconds of what DRAM serves beside some work."""
    traffic.latencies = Latencies()
    loop = Loop(traffic.serve_hot)
    try:
        work()
    finally:
        loop.end()
    return list(traffic.latencies.p99_ms().items())


def _told_after_s(traffic: Traffic, first: int) -> float:
    """Until a load that cannot come is answered; nothing of it may come."""
    pages = traffic.pages[1]
    client, begun = pages.client, time.monotonic()
    keys, places = chain(client, first, CHAIN_BLOCKS), pages.pages(0, CHAIN_BLOCKS)
    loaded = client.load(keys, places, pages.memory, deadline_s=DEADLINE_S).wait(timeout_s=DEADLINE_S + 10)
    assert Outcome.LOADED not in loaded.outcomes
    return time.monotonic() - begun
