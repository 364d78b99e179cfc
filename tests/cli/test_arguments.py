"""Words on the command line: what they become, and what is said of wrong ones."""

from __future__ import annotations

import argparse

import pytest

from flexkvd.cli import main
from flexkvd.cli.arguments import block_count, byte_size, positive, writable_file


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
        (block_count, "infinite"),
        (writable_file, "/"),
        (writable_file, "/nowhere/at/all.json"),
    ],
)
def test_a_wrong_word_is_refused_with_its_cure(read, word):
    """The refusal repeats the word, so that a user sees which of many was meant."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"no |cannot"):
        read(word)


def test_bad_input_ends_with_code_two_and_a_sentence(capsys, tmp_path):
    """A coded error is one line on stderr and exit code 2, never a traceback."""
    (tmp_path / "trace").write_text("{}\n")
    assert main(["replay", str(tmp_path / "trace"), "--dry"]) == 2
    assert "flexkv: [bad_trace]" in capsys.readouterr().err
