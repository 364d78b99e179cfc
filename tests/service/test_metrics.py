"""What `/metrics` says of a real daemon: histograms, tenants, memory; and what it costs to say it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flexkv_py.client import Client
from flexkv_py.tenants.shelf import Tenant
from flexkvd.durations import DURATION_BOUNDS_S, Durations, quantiles
from flexkvd.families import FAMILIES

from .conftest import GEOMETRY, DaemonThread, Worker

SERIES_MAX = 3000
SCRAPE_CPU_S_MAX = 0.02


QUOTAS: dict[str, object] = {"tenant-1": {"dram_bytes": "8MiB"}}


def scrape(daemon: DaemonThread) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    text: str = daemon.call(daemon.daemon.operator.metrics_text).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def tiered(start: Callable[..., DaemonThread], tmp_path: Path) -> DaemonThread:
    (tmp_path / "ssd").mkdir()
    return start(
        ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}, limits={"metrics_tenants_max": 3}, tenants=QUOTAS
    )


def test_latencies_are_told_by_tier_operation_and_priority(tiered: DaemonThread) -> None:
    """A save as far as SSD and a load count once in the histogram of each thing they did, and in no other."""
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(64)))
        client.save(keys, worker.pages(0, 4), worker.memory, ack="ssd").wait(timeout_s=5)
        client.match(keys)
        client.load(keys, worker.pages(0, 4), worker.memory).wait(timeout_s=5)
        client.load(client.keys([7] * 16), worker.pages(0, 1), worker.memory).wait(timeout_s=5)
        client.prefetch(keys).wait(timeout_s=5)
        client.flush().wait(timeout_s=5)
        samples = scrape(tiered)
    assert samples["flexkv_ticket_seconds_count", "save", "ssd"] == 1
    assert samples["flexkv_ticket_seconds_count", "load", "none"] == 1
    assert samples["flexkv_ticket_seconds_count", "prefetch", "dram"] == 1
    assert samples["flexkv_ticket_seconds_count", "flush", "ssd"] == 1
    assert samples["flexkv_ticket_seconds_count", "load", "dram"] == 1
    assert samples["flexkv_first_chunk_seconds_count", "dram"] == 1
    assert samples["flexkv_transfer_seconds_count", "dram", "save", "save"] == 1
    assert samples["flexkv_transfer_seconds_count", "dram", "load", "load"] == 1
    assert samples["flexkv_transfer_seconds_count", "ssd", "demote", "save"] == 4
    assert samples["flexkv_link_queue_seconds_count", "dram_ssd", "save"] == 4
    assert samples["flexkv_request_seconds_count", "match"] == 1
    assert not [name for name in samples if name[:2] == ("flexkv_transfer_seconds_count", "s3")]
    assert 0 < samples["flexkv_ticket_seconds_sum", "save", "ssd"] < 5
    first, whole = (
        samples[f"flexkv_{name}_seconds_sum", *labels]
        for name, *labels in (("first_chunk", "dram"), ("ticket", "load", "dram"))
    )
    assert first <= whole


def test_wear_of_the_ssd_is_told(tiered: DaemonThread) -> None:
    """Bytes of records written show with their amplification; none was moved yet."""
    with Client(tiered.socket, GEOMETRY) as client:
        worker = Worker(client)
        client.save(client.keys(list(range(64))), worker.pages(0, 4), worker.memory, ack="ssd").wait(timeout_s=5)
        samples = scrape(tiered)
    assert samples["flexkv_ssd_written_bytes_total", "new"] >= 4 * GEOMETRY.block_bytes
    assert samples["flexkv_ssd_written_bytes_total", "reclaim"] == 0
    assert samples["flexkv_ssd_write_amplification",] == 1


def test_tenants_are_told_apart_as_far_as_there_is_room(tiered: DaemonThread) -> None:
    """Of five tenants three have names, the others are one; together they are what the planner counted."""
    for number in range(5):
        with Client(tiered.socket, GEOMETRY, tenant=f"tenant-{number}") as client:
            worker = Worker(client)
            keys = client.keys(list(range(16 * (number + 1))))
            client.save(keys, worker.pages(0, number + 1), worker.memory).wait(timeout_s=5)
            client.match([*keys, *client.keys([7] * 32)])
            client.load(keys, worker.pages(0, number + 1), worker.memory).wait(timeout_s=5)
    samples = scrape(tiered)
    saved = {labels[1]: value for labels, value in samples.items() if labels[0] == "flexkv_tenant_saved_bytes_total"}
    block = GEOMETRY.block_bytes
    assert saved == {"tenant-0": block, "tenant-1": 2 * block, "tenant-2": 3 * block, "other": 9 * block}
    for result, total in (("hit", 15), ("miss", 10)):
        by_tenant = [
            value for labels, value in samples.items() if labels[::2] == ("flexkv_tenant_matched_keys_total", result)
        ]
        assert sum(by_tenant) == samples["flexkv_matched_keys_total", result] == total
    assert samples["flexkv_tenant_hits_total", "tenant-2", "dram"] == 3
    assert samples["flexkv_tenants",] == 5
    used = {
        labels[1]: value for labels, value in samples.items() if labels[::2] == ("flexkv_tenant_used_bytes", "dram")
    }
    assert sorted(used) == ["other", "tenant-0", "tenant-1", "tenant-2"]
    assert used["tenant-2"] == 3 * used["tenant-0"] > 0
    assert sum(used.values()) == samples["flexkv_tier_used_bytes", "dram"]
    assert samples["flexkv_tenant_quota_bytes", "tenant-1", "dram"] == 8 << 20


def test_a_scrape_stays_cheap_and_small_with_a_thousand_tenants(start: Callable[..., DaemonThread]) -> None:
    """A thousand tenants with hits, misses and bytes: the series are bounded, a scrape takes under 20 ms of CPU."""
    daemon = start()
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(list(range(64)))
        client.save(keys, worker.pages(0, 4), worker.memory).wait(timeout_s=5)
        client.load(keys, worker.pages(0, 4), worker.memory).wait(timeout_s=5)

    owners: list[Tenant] = []

    def flood() -> None:
        tenants = daemon.parts.usage.tenants
        for number in range(1000):
            counts = tenants.of(f"tenant-{number}", 1 + number % 7)
            for tier in ("dram", "ssd", "s3"):
                counts["hits", tier] += 1
                counts["loaded_bytes", tier] += 1
            for outcome in ("miss", "failed", "throttled", "refused", "late"):
                counts["unmet_keys", outcome] += 1
            counts["matched_keys", "hit"] += 1
            owners.append(daemon.parts.planner.state.tenants.named(f"tenant-{number}"))

    daemon.call(flood)
    text = daemon.call(daemon.daemon.operator.metrics_text)

    def cpu_s() -> float:
        begun_s = time.thread_time()
        for _ in range(10):
            daemon.daemon.operator.metrics_text()
        return (time.thread_time() - begun_s) / 10

    assert text.count(b"\n") - 2 * len(FAMILIES) < SERIES_MAX
    assert daemon.call(cpu_s) < SCRAPE_CPU_S_MAX
    for owner in owners:
        daemon.call(lambda owner=owner: daemon.parts.planner.state.tenants.forget(owner))


def test_memory_of_the_index_is_estimated_honestly() -> None:
    """Within a fifth of what the interpreter says that a planner's blocks took."""
    import tracemalloc

    from flexkv_py.core.config import PlannerConfig
    from flexkv_py.core.messages import BlocksFound, FoundBlock, Tier
    from flexkv_py.core.planner import Planner
    from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
    from flexkvd.facts import index_bytes

    planner = Planner(PlannerConfig(tiers=(Tier.DRAM, Tier.SSD), ssd_bytes=1 << 40))
    tracemalloc.start()
    for first in range(0, 20_000, 100):
        found = [
            FoundBlock(BlockKey(number.to_bytes(16, "big")), ROOT, number << 30) for number in range(first, first + 100)
        ]
        planner.handle(BlocksFound(Tier.SSD, NamespaceDigest(b"n" * 32), 0, 8192, found, first, (4096, 4096)))
    taken = sum(
        each.size
        for each in tracemalloc.take_snapshot().statistics("filename")
        if "history" not in each.traceback[0].filename
    )
    tracemalloc.stop()
    assert abs(index_bytes(planner.state) / taken - 1) < 0.2, (index_bytes(planner.state), taken)


def test_quantiles_are_of_all_entries_together() -> None:
    """Of 99 quick and one slow, 99 % lie within the quick ones' bucket; without entries there is nothing to say."""
    quick, slow = Durations(), Durations()
    for _ in range(99):
        quick.add(0.0003)
    assert quantiles([]) is None
    assert quantiles([slow]) is None
    slow.add(100.0)
    together = quantiles([quick, slow])
    assert together is not None
    assert 0.0002 < together["p50"] < together["p99"] == 0.0005
    assert quantiles([slow]) == {"p50": DURATION_BOUNDS_S[-1], "p99": DURATION_BOUNDS_S[-1]}
