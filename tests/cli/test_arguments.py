"""Words on the command line: what they become, and what is said of wrong ones."""

from __future__ import annotations

import argparse
import sys

import pytest

from flexkvd.cli import main
from flexkvd.cli.arguments import block_count, byte_size, positive, writable_file
from tests.sim.__main__ import main as simulate


def test_sizes_and_counts_are_read():
    """Binary and decimal units, bare bytes, and `inf` blocks."""
    assert [byte_size(word) for word in ("4096", "64KiB", "2GiB", "1.5GB", "3 MiB")] == [
        4096,
        65_536,
        2 << 30,
        1_500_000_000,
        3 << 20,
    ]
    assert block_count("inf") is None
    assert block_count("30000") == 30_000


@pytest.mark.parametrize(
    ("read", "word"),
    [
        (byte_size, "2GiBi"),
        (byte_size, "-1"),
        (byte_size, "1ib"),
        (positive, "0"),
        (positive, "1.5"),
        (positive, "²"),
        (positive, "99999999999999999999"),
        (positive, 5000 * "9"),
        (block_count, "infinite"),
        (writable_file, "/"),
        (writable_file, "/nowhere/at/all.json"),
    ],
)
def test_a_wrong_word_is_refused_with_its_cure(read, word):
    """The refusal repeats the word, so that a user sees which of many was meant."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"no |cannot"):
        read(word)


@pytest.mark.parametrize(
    ("name", "cause"), [("missing", "No such file"), ("", "Is a directory"), ("empty", "at least one request")]
)
def test_what_is_no_trace_at_all_is_said_so(capsys, tmp_path, name, cause):
    """A missing, empty or impossible file: a sentence about the file, not about a line of it."""
    (tmp_path / "empty").write_text("")
    assert main(["replay", str(tmp_path / name), "--dry"]) == 2
    said = capsys.readouterr().err
    assert "[bad_trace]" in said
    assert cause in said
    assert "Every line" not in said


@pytest.mark.parametrize(
    "arguments", [["--seeds", "x"], ["--seeds", "5..1"], ["--seeds", "..3"], ["--steps", "0"], ["--steps", "-1"]]
)
def test_the_simulator_refuses_what_it_cannot_run(arguments, monkeypatch, capsys):
    """Wrong seeds and steps are errors of the command line, told before anything runs."""
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        simulate()
    assert ended.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


def test_bad_input_ends_with_code_two_and_a_sentence(capsys, tmp_path):
    """A coded error is one line on stderr and exit code 2, never a traceback."""
    (tmp_path / "trace").write_text("{}\n")
    assert main(["replay", str(tmp_path / "trace"), "--dry"]) == 2
    assert "flexkv: [bad_trace]" in capsys.readouterr().err
