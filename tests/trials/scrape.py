"""What a scrape costs: very many tenants have come and gone, and a worker saves and loads without a pause.

The seconds it takes are those of this machine, whatever else runs on it; what is demanded is CPU time of the
daemon, measured while nothing but scrapes runs, and a bounded number of series.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from flexkv_py.client import Client
from flexkvd.cli.cpu import cpu_by_part

from .blocks import GEOMETRY, Pages, chain
from .fleet import DaemonProcess
from .kill_worker import start_worker

TENANTS_NAMED = 50
CPU_MS_MAX = 20.0
SERIES_MAX = 4_000
FIRST_OF_THE_BUSY = 1 << 20


def scrape(folder: Path, *, tenants: int, scrapes: int) -> dict[str, float]:
    """Figures of scrapes at rest, and beside a worker that never rests."""
    (folder / "ssd").mkdir()
    tables = {"ssd": {"directory": str(folder / "ssd"), "bytes": "256MiB"}}
    with DaemonProcess(folder, tables) as daemon:
        for number in range(tenants):
            visit(daemon, f"tenant-{number}", number)
        cpu_ms = at_rest(daemon, scrapes)
        with start_worker(daemon, FIRST_OF_THE_BUSY) as busy:
            before = daemon.metric("flexkv_load_keys_total", outcome="loaded")
            took_ms = [timed_ms(daemon) for _ in range(scrapes)]
            loaded = daemon.metric("flexkv_load_keys_total", outcome="loaded") - before
            busy.kill()
        text = daemon.admin.get("/metrics")[1].decode()
        series = [line for line in text.splitlines() if not line.startswith("#")]
        named = {line.split('tenant="')[1].split('"')[0] for line in series if "flexkv_tenant_matched_keys" in line}
    assert cpu_ms < CPU_MS_MAX, f"a scrape took {cpu_ms:.1f} ms of CPU"
    assert len(series) < SERIES_MAX, f"{len(series)} series"
    assert len(named) == min(tenants + 1, TENANTS_NAMED + 1), f"{len(named)} tenants are named"
    assert loaded > 0, "the worker rested"
    return {
        "tenants": tenants,
        "series": len(series),
        "of tenants": sum("tenant=" in line for line in series),
        "bytes": len(text),
        "CPU ms of a scrape, HTTP included": cpu_ms,
        "blocks loaded beside the scrapes": loaded,
        "ms of a scrape beside them, median": statistics.median(took_ms),
        "ms of a scrape beside them, longest": max(took_ms),
    }


def visit(daemon: DaemonProcess, tenant: str, number: int) -> None:
    """One tenant saves a block, asks for it and for one that is not there, and loads it."""
    with Client(daemon.socket, GEOMETRY, tenant=tenant) as client:
        pages = Pages(client, 2)
        pages.put(0, number)
        keys = chain(client, number, 1)
        client.save(keys, pages.pages(0, 1), pages.memory).wait()
        client.match(chain(client, number, 2))
        client.load(keys, pages.pages(1, 1), pages.memory).wait()
        assert not pages.wrong(1, [number])


def at_rest(daemon: DaemonProcess, scrapes: int) -> float:
    """Milliseconds of the daemon's CPU that one scrape takes, less what it takes to be idle for as long."""
    spent_s = []
    for act in (time.sleep, lambda _seconds: daemon.admin.get("/metrics")):
        before_s, begun_s = cpu_by_part(daemon.pid)[0], time.monotonic()
        for _ in range(scrapes):
            act(0.01)
        spent_s.append((cpu_by_part(daemon.pid)[0] - before_s, time.monotonic() - begun_s))
    (idle_s, idle_for_s), (cpu_s, for_s) = spent_s
    return max(0.0, cpu_s - idle_s * for_s / idle_for_s) / scrapes * 1000


def timed_ms(daemon: DaemonProcess) -> float:
    begun_s = time.perf_counter()
    status, _ = daemon.admin.get("/metrics")
    assert status == 200
    return (time.perf_counter() - begun_s) * 1000
