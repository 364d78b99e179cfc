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
    assert (written["dram"], written["hot_slots"], written["workload"]["cluster"]) == (0.5, 256, 64)
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
        (f"--selections mid {SMALL} --hot-slots 127", "a step needs a slot for each: give at least as many"),
        (f"--selections mid {SMALL} --ssd-speed 1 --policy lru", "the link is too slow for it"),
        ("--selections mid --tokens 30 --top-k 8 --steps 10 --prefill-steps 2", "no sequence has a full block"),
        ("trace.jsonl --dry --hot-slots 4", "--hot-slots does nothing for a trace"),
        ("trace.jsonl --dry --policy sparse", "orders no blocks"),
        ("--dry", "nothing to replay"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, cause, capsys):
    """Each contradiction is a coded error that names it, and exit code 2."""
    assert main(["replay", *arguments.split()]) == 2
    assert cause in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ("--chunk-bytes 0", "'0' is nothing"),
        ("--dram 101%", "'101%' is neither a share"),
        ("--dram 0.5", "'0.5' is neither a share"),
    ],
)
def test_a_size_that_cannot_be_is_an_error_of_the_command_line(arguments, cause, capsys):
    """Nothing of nothing, more than all, a share without its sign: refused as typed."""
    with pytest.raises(SystemExit):
        main(["replay", "--selections", "mid", *arguments.split()])
    assert cause in capsys.readouterr().err


def test_a_recording_with_gaps_is_played(tmp_path, capsys):
    """Requests one after another, a layer of every other step, a sequence that becomes shorter, a long pause."""
    file = tmp_path / "gaps.jsonl"
    lines = []
    for request in ("a", "b"):
        for step in range(20):
            for layer in (0, 3) if step % 2 else (0,):
                tokens = 1000 + step - 30 * (step == 9)
                positions = [(37 * step + 61 * n + layer) % 900 for n in range(12)]
                pause = 10**9 * (step > 15)
                names = ("request_id", "layer_id", "step_idx", "seq_len_current", "selected_token_pos")
                lines.append(dict(zip(names, (request, layer, step + pause, tokens, positions), strict=True)))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--hot-slots", "16", "--prefill-steps", "4", "--dram", "80%", "--policy", "lru,future"]
    assert main(["replay", "--selections", str(file), *options, "--json", str(tmp_path / "result.json")]) == 0
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["chunks"] == 2 * 2 * 15
    lru, future = (written["policies"][name] for name in ("lru", "future"))
    assert 0 < lru["dram_hits"] < 1
    assert lru["absents_per_step"] > future["absents_per_step"] == 0
    assert "2 requests, 40 steps" in capsys.readouterr().out


def test_where_all_rows_fit_no_chunk_is_asked_for(capsys):
    """Slots for the whole sequence: no DRAM is needed at all, and its column says that nothing was."""
    arguments = "--tokens 500 --top-k 20 --steps 20 --hot-slots 600 --prefill-steps 4 --dram 0% --policy lru"
    assert main(["replay", "--selections", "mid", *arguments.split()]) == 0
    [line] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("lru")]
    assert (line[1], line[7], line[8]) == ("0.00", "100.00", "–")
