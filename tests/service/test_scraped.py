"""A real Prometheus scrapes a real daemon, loads our rules, and answers every question of the dashboard."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flexkv_py.client import Client

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_monitoring import ROOT, RULES, drawn

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not installed"),
]
ANSWER_S_MAX = 30.0
NOTHING_TO_SHOW = (
    *("flexkv_s3_", "dram_s3", 'tier="s3"', "flexkv_row_", "flexkv_replays_", "flexkv_given_up", "flexkv_refused_"),
    *("flexkv_over_budget", "flexkv_not_staged", "flexkv_lost", "flexkv_found", "process_start_time"),
    *(
        "flexkv_link_faults",
        "flexkv_request_errors",
        "flexkv_link_dropped",
        "flexkv_prefetch",
        "unmet_keys",
        "tenant_quota",
    ),
)
"""Asked of a daemon without S3, row path and faults, these have no answer, and shall have none."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Prometheus:
    """One that scrapes `target` each second, by our sample configuration."""

    def __init__(self, folder: Path, target: str) -> None:
        config = yaml.safe_load((ROOT / "service/prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        [job] = config["scrape_configs"]
        job |= {"scrape_timeout": "1s", "static_configs": [{"targets": [target]}]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(ROOT / "service/prometheus/alerts.yml", folder)
        self._address = f"127.0.0.1:{free_port()}"
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command = ["prometheus", *options, f"--web.listen-address={self._address}", "--log.level=warn"]
        self.process = subprocess.Popen(command)

    def ask(self, path: str, **arguments: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
            return json.load(answer)["data"]

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + ANSWER_S_MAX
        while time.monotonic() < end:
            try:
                if true():
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError("Prometheus did not get so far")


@pytest.fixture
def scraped(start: Callable[..., DaemonThread], tmp_path: Path) -> Iterator[tuple[DaemonThread, Prometheus]]:
    (tmp_path / "ssd").mkdir()
    api = {"socket": "", "host": "127.0.0.1", "port": free_port()}
    ssd = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}
    daemon = start(api=api, ssd=ssd, dram={"bytes": "1MiB", "segment_bytes": "1MiB"})
    prometheus = Prometheus(tmp_path, f"127.0.0.1:{api['port']}")
    yield daemon, prometheus
    prometheus.process.terminate()
    prometheus.process.wait(10)


def test_prometheus_answers_every_question_of_the_dashboard(scraped: tuple[DaemonThread, Prometheus]) -> None:
    """Beside traffic that spills to SSD every panel has an answer, rules are healthy, and no alert fires."""
    daemon, prometheus = scraped
    prometheus.until(lambda: bool(prometheus.ask("query", query="flexkv_ready == 1")["result"]))
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        for number in range(12):
            keys = client.keys([number] * 512)
            client.save(keys, worker.pages(0, 32), worker.memory, ack="ssd").wait(timeout_s=10)
            client.match(keys)
            client.load(client.keys([number // 2] * 512), worker.pages(0, 32), worker.memory).wait(timeout_s=10)
            time.sleep(0.4)
    prometheus.until(lambda: bool(prometheus.ask("query", query="rate(flexkv_promotions_total[1m]) > 0")["result"]))
    silent = []
    for title, expression in drawn():
        if not prometheus.ask("query", query=expression)["result"]:
            silent.append((title, expression))
    assert [each for each in silent if not any(word in each[1] for word in NOTHING_TO_SHOW)] == []
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(RULES)
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
