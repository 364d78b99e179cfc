"""`flexkv bench`: real bytes through a real daemon, wrong ones seen, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flexkvd.cli import main, measure
from tests.cli.conftest import Operated, wait_until_answered


@pytest.fixture
def roomy(tmp_path, capsys, monkeypatch) -> Iterator[Operated]:
    """A daemon with room for what is saved, and a bench that does not take long."""
    monkeypatch.setattr(measure, "LOAD_S", 0.01)
    monkeypatch.setattr(measure, "PINGS", 20)
    daemon = Operated(tmp_path, capsys, dram={"bytes": "64MiB"})
    wait_until_answered(daemon)
    yield daemon
    daemon.close()


def test_each_kind_of_call_is_measured_and_nothing_stays(roomy: Operated, capsys) -> None:
    """Five rows with their figures as JSON and as text; afterwards only the blocks of others are there."""
    command = ["bench", "--socket", str(roomy.daemon.socket), "--bytes", "20MiB"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["what"].split()[0] for row in answer["rows"]] == ["ping", "match", "save", "load", "bare"]
    for row in answer["rows"]:
        assert row["count"] > 0
        assert 0 < row["p50_s"] <= row["p99_s"]
    save, load = answer["rows"][2:4]
    assert save["bytes_per_s"] > 0
    assert load["bytes_per_s"] > 0
    assert main(command) == 0
    assert "every byte was right" in capsys.readouterr().out
    assert {block["key"] for block in roomy.json("blocks", "--all")["blocks"]} == set(roomy.hex_keys)


def test_a_wrong_byte_ends_it_with_one(roomy: Operated, monkeypatch, capsys) -> None:
    """Blocks that are other than what was saved are counted, and the exit code is 1."""
    whole, calls = measure.Pattern.block, []

    def other_later(pattern: measure.Pattern, number: int):
        calls.append(number)
        return whole(pattern, number + (len(calls) > measure.BATCH_BLOCKS))

    monkeypatch.setattr(measure.Pattern, "block", other_later)
    assert main(["bench", "--socket", str(roomy.daemon.socket), "--bytes", "20MiB"]) == 1
    assert "blocks had wrong bytes" in capsys.readouterr().out


def test_nobody_at_the_socket_is_told(capsys) -> None:
    """Exit code 3, before anything is measured."""
    assert main(["bench", "--socket", "/nowhere/worker.sock"]) == 3
    assert "/nowhere/worker.sock" in capsys.readouterr().err
