"""`flexkv replay --selections`: the table, its JSON, recordings, and what is refused."""

from __future__ import annotations

import json

import pytest

from flexkvd.cli import main

SMALL = "--tokens 8192 --top-k 128 --hot-slots 256 --cluster 64 --requests 2 --groups 2 --steps 60 --prefill-steps 16"


def test_every_policy_is_played_and_written_down(tmp_path, capsys):
    """One line for each policy, and the same figures in the JSON, with the options that gave them."""
    result = tmp_path / "result.json"
    assert main(["replay", "--selections", "mid", *SMALL.split(), "--json", str(result)]) == 0
    written = json.loads(result.read_text())
    assert list(written["policies"]) == ["lru", "lfu", "heat", "sparse", "future"]
    assert (written["dram"], written["hot_slots"]) == (0.5, 256)
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    for policy, figures in written["policies"].items():
        assert float(lines[policy][1]) == pytest.approx(figures["absents_per_step"], abs=0.006)
        assert figures["steps"] > 0
    assert written["policies"]["future"]["absents_per_step"] == 0


def test_a_recording_gives_what_its_preset_gave(tmp_path, capsys):
    """Selections written by `flexkv selections generate` and read back cost the same as generated ones."""
    file, played, recorded = (tmp_path / name for name in ("some.jsonl.gz", "played.json", "recorded.json"))
    workload, rules = SMALL.split()[:4] + SMALL.split()[6:14], ["--hot-slots", "256", "--prefill-steps", "16"]
    assert main(["selections", "generate", str(file), "--preset", "mid", *workload]) == 0
    options = [*rules, "--policy", "lru", "--json"]
    assert main(["replay", "--selections", "mid", *workload, *options, str(played)]) == 0
    assert main(["replay", "--selections", str(file), *options, str(recorded)]) == 0
    assert json.loads(played.read_text())["policies"] == json.loads(recorded.read_text())["policies"]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ("--selections mid --policy adaptive", "does not order rows"),
        ("--selections mid --preset poor", "--preset is said by --selections"),
        ("--selections mid --dry", "a replay of its own"),
        ("--selections mid --clients 4", "--clients does nothing with --selections"),
        ("--selections mid --steps 40", "--prefill-steps 64 only warm up"),
        (f"--selections mid {SMALL} --dram 10", "one step of a request needs"),
        ("--selections none.jsonl --cluster 64", "--cluster does nothing for a recording"),
        ("trace.jsonl --dry --hot-slots 4", "--hot-slots does nothing for a trace"),
        ("trace.jsonl --dry --policy sparse", "orders no blocks"),
        ("--dry", "nothing to replay"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, cause, capsys):
    """Each contradiction is a coded error that names it, and exit code 2."""
    assert main(["replay", *arguments.split()]) == 2
    assert cause in capsys.readouterr().err
