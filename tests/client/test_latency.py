"""What the blocking client adds to a round trip (design §9), beside a bare echo over the same kind of socket."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flexkv_py.client import Client
from scripts.bench_parts.echo import Echo

from .conftest import GEOMETRY, Daemon

PINGS = 5000
RUNS = 3
RATIO_MAX = 4.0
"""Locks, deadlines, framing and two typed messages; a thread or a copy too many costs more than that."""


@pytest.mark.timing
def test_a_ping_costs_little_more_than_a_bare_echo(tmp_path):
    """The best median of three runs is within four times that of an echo measured in turn with it."""
    server = Daemon(tmp_path / "ping.sock", "ping_server.py")
    with server, Client(server.path, GEOMETRY) as client, Echo() as echo, one_core(server.process.pid, echo.pid):
        runs = [(median_us(client.ping), median_us(echo.ping)) for _ in range(RUNS)]
    ping_us, echo_us = (min(medians) for medians in zip(*runs, strict=True))
    print(f"ping: {ping_us:.1f} µs, bare echo: {echo_us:.1f} µs")  # noqa: T201
    assert ping_us <= RATIO_MAX * echo_us


@contextmanager
def one_core(*others: int) -> Iterator[None]:
    """All on one core: waking an idle one takes longer than both round trips, and not always as long."""
    cores = os.sched_getaffinity(0)
    for process in (0, *others):
        os.sched_setaffinity(process, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def median_us(call: Callable[[], object]) -> float:
    """The median time of a run of calls, in microseconds."""
    times_ns = []
    for _ in range(PINGS):
        start_ns = time.perf_counter_ns()
        call()
        times_ns.append(time.perf_counter_ns() - start_ns)
    return sorted(times_ns)[PINGS // 2] / 1000
