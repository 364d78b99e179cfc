"""`flexkv selections`: a file written and measured, and what is said of options that cannot be."""

from __future__ import annotations

import json
import os
import threading

import pytest

from flexkvd.cli import main
from flexkvd.selections import read_selections

SMALL = ["--tokens", "2000", "--top-k", "200", "--steps", "40", "--groups", "2", "--layers-per-group", "3"]


def test_a_file_has_the_statistics_of_what_it_was_written_from(tmp_path, capsys):
    """Measured from the file or as they are generated, selections give the same figures, in all and by layer."""
    path, read, made = str(tmp_path / "out.jsonl.gz"), tmp_path / "read.json", tmp_path / "made.json"
    assert main(["selections", "generate", path, *SMALL]) == 0
    assert "80 selections" in capsys.readouterr().out
    stats = ["--hot-slots", "512,256", "--by-layer", "--json"]
    assert main(["selections", "stats", path, *stats, str(read)]) == 0
    assert main(["selections", "stats", *SMALL, *stats, str(made)]) == 0
    figures = json.loads(made.read_text())
    assert json.loads(read.read_text()) == figures
    assert list(figures) == ["all", "layer 0", "layer 3"]
    assert figures["all"]["selections"] == 80
    assert 0.3 < figures["all"]["hit_rates"]["256"] < figures["all"]["hit_rates"]["512"] <= 1
    said = capsys.readouterr().out
    assert f"{figures['all']['overlaps']['8']:.1%}" in said
    assert "–" in said  # 40 steps have no window of 128


def test_lines_go_to_standard_output(capfd):
    """`-` is standard output: nothing but lines goes there."""
    assert main(["selections", "generate", "-", *SMALL]) == 0
    lines, said = capfd.readouterr()
    assert "80 selections" in said
    assert {next(iter(json.loads(line))) for line in lines.splitlines()} == {"request_id"}
    assert len(lines.splitlines()) == 80


def test_a_pipe_is_written_to_and_stays(tmp_path, capsys):
    """What is no file is never replaced by one: not a pipe, and so not a device either."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.extend(read_selections(pipe)))
    reader.start()
    assert main(["selections", "generate", str(pipe), *SMALL]) == 0
    reader.join()
    assert len(read) == 80
    assert pipe.is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["stats", "FILE", "--seed", "3"], "--seed does nothing for a recording"),
        (["stats", "FILE"], "No such file"),
        (["stats", "--hot-slots", "100"], "only 100 hot slots"),
        (["stats", "--top-k", "70000"], "top_k is 70000: choose it from 1 to 65536"),
        (["generate", "FILE", "--turn-steps", "3"], "give both, or neither"),
        (["generate", "FILE", "--json", "FILE"], "name two"),
        (["stats", "--hot-slots", "99999999"], "no sequence is longer"),
    ],
    ids=str,
)
def test_what_contradicts_itself_ends_with_code_two(tmp_path, capsys, arguments, cause):
    """One line on stderr with the cause, and no file."""
    path = tmp_path / "out"
    assert main(["selections", *(str(path) if word == "FILE" else word for word in arguments)]) == 2
    assert cause in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "--preset", "best"],
        ["stats", "--hot-slots", "2048,"],
        ["stats", "--group-overlap", "1.5"],
        ["stats", "--topic-share", "half"],
        ["stats", "--seed", "-1"],
        ["generate"],
        [],
    ],
    ids=str,
)
def test_a_wrong_word_is_an_error_of_the_command_line(capsys, arguments):
    """Refused before anything runs, with the usage."""
    with pytest.raises(SystemExit) as ended:
        main(["selections", *arguments])
    assert ended.value.code == 2
    assert "usage: flexkv selections" in capsys.readouterr().err
