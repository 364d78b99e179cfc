"""The whole demo as a process: its verdict, its figures, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    """`demo.run` with its work directory below `directory`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(directory)}
    command = [sys.executable, "-m", "demo.run", "--quick", *options]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_quick_run_shows_every_phase(tmp_path: Path) -> None:
    """Exit status 0, every token and logit identical in five phases, hits from each tier, nothing left behind."""
    figures_file = tmp_path / "figures.json"
    process = start(tmp_path, "--json", str(figures_file))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    figures = json.loads(figures_file.read_text())
    assert figures["complaints"] == []
    assert len(figures["phases"]) == 5
    assert all(phase["tokens_identical"] and phase["logits_identical"] for phase in figures["phases"])
    served = {tier for phase in figures["phases"] for tier, count in phase["hit_blocks"].items() if count}
    assert served == {"dram", "ssd", "s3"}
    assert list(tmp_path.iterdir()) == [figures_file]


def test_a_quick_run_over_rows_gives_every_token(tmp_path: Path) -> None:
    """With a quarter of the KV in HBM and three fifths in DRAM: the same bits, fewer absents where rows cluster."""
    figures_file = tmp_path / "figures.json"
    process = start(tmp_path, "--rows", "--json", str(figures_file))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    figures = json.loads(figures_file.read_text())
    assert figures["complaints"] == []
    clustered, scattered = figures["rows"]
    for case in (clustered, scattered):
        assert case["tiered"]["tokens"] == case["resident"]["tokens"]
        assert case["tiered"]["absent"] > 0
    assert clustered["tiered"]["absent"] < scattered["tiered"]["absent"]
    assert 0 <= clustered["tiered"]["ahead_used"] <= clustered["tiered"]["ahead"]
    assert list(tmp_path.iterdir()) == [figures_file]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in mid-run ends workers, daemon and S3 server, and removes the work directory."""
    process = start(tmp_path)
    assert process.stdout is not None
    while "without daemon" not in process.stdout.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 5
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    time.sleep(0.1)
    assert not [child for child in children if child.is_running()]
    assert list(tmp_path.iterdir()) == []
