"""Alert rules in Prometheus' own hands: each fires in the course of things it is for, and not in a quiet one."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

PROMETHEUS = Path(__file__).parents[2] / "service/prometheus"
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed"
)

Series = dict[str, str]
"""Values by step, in promtool's own notation: `a+bxn` grows by b, n times; `axn` stays."""


def of(name: str, values: str, **labels: str) -> Series:
    inside = "".join(f'{label}="{value}",' for label, value in labels.items())
    return {f'{name}{{{inside}instance="n"}}': values}


def keys(kind: str, **per_minute: int) -> Series:
    series: Series = {}
    for outcome, count in per_minute.items():
        series |= of(f"flexkv_{kind}_keys_total", f"0+{count}x120", outcome=outcome)
    return series


def buckets(name: str, quick: int, slow: int, **labels: str) -> Series:
    """Of a histogram that gets so many quick and slow entries a minute."""
    series: Series = {}
    for bound, count in (("0.001", quick), ("0.5", quick + slow), ("+Inf", quick + slow)):
        series |= of(f"flexkv_{name}_seconds_bucket", f"0+{count}x120", le=bound, **labels)
    return series


def faults(link: str, fault: str, values: str) -> Series:
    return of("flexkv_link_faults_total", values, link=link, fault=fault)


def files(opened: int) -> Series:
    return of("process_open_fds", f"{opened}x60", job="flexkvd") | of("process_max_fds", "100x60", job="flexkvd")


def matched(hits: str, misses: str) -> Series:
    name = "flexkv_matched_keys_total"
    return of(name, hits, result="hit") | of(name, misses, result="miss")


def budget(spent: int, a_day: int) -> Series:
    spends = of("flexkv_ssd_budget_spent_bytes", f"{spent}x100")
    return spends | of("flexkv_ssd_budget_bytes_per_day", f"{a_day}x100")


START, OWN = "process_start_time_seconds", {"job": "flexkvd"}
RESTARTS = "5x10 6 6 7 7 8 8 9 9 10 10 11 11"
ENDED, REFUSED = "flexkv_row_sessions_ended_total", "flexkv_replays_refused_total"

COURSES: dict[str, tuple[str, Series, Series]] = {
    # After how long; series of a quiet course; those that replace or join them in the one that sets the alert off.
    # A step is a minute, of courses of hours ten.
    "FlexkvdDown": ("10m", of("up", "1x60", **OWN), of("up", "0x60", **OWN)),
    "FlexkvdRestarts": ("20m", of(START, "5x10 6x50", **OWN), of(START, RESTARTS, **OWN)),
    "FlexkvdNotReady": (
        "30m",
        of("flexkv_ready", "0x60") | of("flexkv_draining", "1x60"),
        of("flexkv_draining", "0x60"),
    ),
    "FlexkvdBug": (
        "30m",
        of("flexkv_request_errors_total", "0x60", code="internal"),
        faults("dram_ssd", "internal", "0x25 1x30"),
    ),
    "FlexkvdFilesRunOut": ("10m", files(50), files(95)),
    "FlexkvdTierDown": ("5m", of("flexkv_tier_up", "1x60", tier="ssd"), of("flexkv_tier_up", "0x60", tier="ssd")),
    "FlexkvdDamagedRecords": ("30m", faults("ssd_dram", "corrupt", "0x60"), faults("ssd_dram", "corrupt", "0x20 2x40")),
    "FlexkvdTransfersFail": ("30m", faults("dram_s3", "io", "0+1x60"), faults("dram_s3", "down", "0+30x60")),
    "FlexkvdResetStuck": ("90m", of("flexkv_resets_waiting", "1x50 0x100"), of("flexkv_resets_waiting", "1x120")),
    "FlexkvdLoadsLate": ("30m", keys("load", loaded=990, late=10), keys("load", late=100)),
    "FlexkvdLoadsFail": ("30m", keys("load", loaded=1000, failed=1), keys("load", failed=50)),
    "FlexkvdSavesThrottled": ("30m", keys("save", stored=1000, throttled=50), keys("save", throttled=500)),
    "FlexkvdFirstChunkSlow": (
        "30m",
        buckets("first_chunk", 1000, 1, tier="dram") | buckets("first_chunk", 0, 9, tier="s3"),
        buckets("first_chunk", 1000, 50, tier="dram"),
    ),
    "FlexkvdHitRatioFell": (
        "33h",
        matched("0+3000x198", "0+1000x198"),
        matched("0+3000x198", "0+1000x186 186000+9000x12"),
    ),
    "FlexkvdS3BreakerOpen": (
        "10m",
        of("flexkv_s3_breaker", "0x3 1x60", state="closed"),
        of("flexkv_s3_breaker", "0x60", state="closed"),
    ),
    "FlexkvdS3Throttled": ("40m", of("flexkv_s3_rate_limit", "0x60"), of("flexkv_s3_rate_limit", "50x60")),
    "FlexkvdByteWorkersDie": (
        "30m",
        of("flexkv_s3_process_deaths_total", "0x20 1x40"),
        of("flexkv_s3_process_deaths_total", "0x20 3x40"),
    ),
    "FlexkvdSsdBudgetSpent": ("90m", budget(0, 0), budget(100, 2400)),
    "FlexkvdSsdAmplifies": (
        "7h",
        of("flexkv_ssd_write_amplification", "2x50"),
        of("flexkv_ssd_write_amplification", "3.5x50"),
    ),
    "FlexkvdRowSessionsEnded": (
        "20m",
        of(ENDED, "0x60", code="ack_overdue"),
        of(ENDED, "0x15 1x40", code="ack_overdue"),
    ),
    "FlexkvdReplaysRefused": (
        "40m",
        of(REFUSED, "0 1x60", outcome="no_room"),
        of(REFUSED, "0+3x60", outcome="no_room"),
    ),
    "FlexkvdLoopLags": ("30m", buckets("loop_lag", 595, 5), buckets("loop_lag", 580, 20)),
    "FlexkvdLoopBusy": (
        "40m",
        of("flexkv_loop_cpu_seconds_total", "0+30x60"),
        of("flexkv_loop_cpu_seconds_total", "0+55x60"),
    ),
}


def test_prometheus_takes_the_files() -> None:
    """`promtool` finds nothing wrong with the rules and the sample configuration."""
    command = ["promtool", "check", "config", "prometheus.yml"]
    checked = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


@pytest.mark.parametrize(("unit", "step", "evaluated"), [("m", "1m", "5m"), ("h", "10m", "30m")])
def test_each_alert_fires_when_it_should_and_else_does_not(
    unit: str, step: str, evaluated: str, tmp_path: Path
) -> None:
    """Of every alert a quiet course of things, and one that sets it off."""
    assert sorted(COURSES) == sorted(ALERTS)
    tests = [
        {
            "interval": step,
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": after,
                    "exp_samples": [{"value": fires}],
                }
            ],
        }
        for alert, (after, quiet, loud) in COURSES.items()
        if after.endswith(unit)
        for series, fires in ((quiet, 0), (quiet | loud, 1))
    ]
    file = tmp_path / "courses.yml"
    rules = str(PROMETHEUS / "alerts.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": evaluated, "tests": tests}))
    run = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
