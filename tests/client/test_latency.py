"""How long a round trip through the blocking client takes (design §9)."""

import time

import pytest

from flexkv_py.client import Client

from .conftest import GEOMETRY, Daemon

PINGS = 5000


@pytest.mark.timing
def test_a_ping_stays_below_the_bar(tmp_path):
    """The best median of three runs of 5,000 pings is within 45 µs; p99 is printed, other processes decide it."""
    with Daemon(tmp_path / "ping.sock", "ping_server.py") as server, Client(server.path, GEOMETRY) as client:
        runs = [measure(client) for _ in range(3)]
    p50_us, p99_us = (min(figures) for figures in zip(*runs, strict=True))
    print(f"ping: p50 {p50_us:.1f} µs, p99 {p99_us:.1f} µs")  # noqa: T201
    assert p50_us <= 45


def measure(client: Client) -> tuple[float, float]:
    """p50 and p99 of a run in microseconds."""
    times_ns = []
    for _ in range(PINGS):
        start_ns = time.perf_counter_ns()
        client.ping()
        times_ns.append(time.perf_counter_ns() - start_ns)
    times_ns.sort()
    return times_ns[PINGS // 2] / 1000, times_ns[PINGS * 99 // 100] / 1000
