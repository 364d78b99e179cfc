"""Selections as files: what is written comes back, recordings are read, bad lines are refused by number and cause."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces.lines import LINE_BYTES_MAX
from flexkvd.selections import Selections, Workload, exchange
from flexkvd.selections.exchange import count_selections, read_selections, write_selections

WORKLOAD = Workload(
    tokens=300, top_k=40, steps=12, requests=2, groups=2, layers_per_group=4, turn_steps=3, idle_steps=2
)
LINE = {"request_id": 0, "layer_id": 5, "step_idx": 42, "seq_len_current": 43, "selected_token_pos": [0, 5, 42]}


def describe(each) -> tuple:
    return each.step, each.request, each.layer, each.token_count, each.positions.tolist()


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_what_is_written_comes_back(tmp_path, name):
    """Every field of every selection, in order, plain and packed; packed only if the name says so."""
    path = tmp_path / name
    assert write_selections(path, Selections(WORKLOAD)) == WORKLOAD.count() == count_selections(path)
    assert [describe(each) for each in read_selections(path)] == [describe(each) for each in Selections(WORKLOAD)]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_equal_selections_make_equal_files(tmp_path):
    """Under any name and at any time, so that a file can be compared by its checksum."""
    for name in ("one.gz", "two.gz"):
        write_selections(tmp_path / name, Selections(WORKLOAD))
    packed = (tmp_path / "one.gz").read_bytes()
    assert packed == (tmp_path / "two.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # where gzip keeps the time


def test_the_lines_are_those_of_the_exchange_format(tmp_path):
    """The five fields by their public names, one object a line."""
    write_selections(tmp_path / "out", Selections(WORKLOAD))
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {tuple(line) for line in lines} == {tuple(LINE)}
    assert {line["layer_id"] for line in lines} == {0, 4}


def test_a_recording_is_read_as_recorders_write_it(tmp_path):
    """Positions in order of score, rows padded by -1, requests by name, fields of the recorder's own."""
    recorded = {**LINE, "request_id": "chat-7", "event": "top_k", "scores": {"min": -4.7}}
    recorded["selected_token_pos"] = [42, 7, 0, -1, -1]
    (tmp_path / "out").write_text(json.dumps(recorded) + "\n")
    [read] = read_selections(tmp_path / "out")
    assert describe(read) == (42, "chat-7", 5, 43, [0, 7, 42])


BAD = [
    ({"selected_token_pos": [1, 43]}, "position 43 of a sequence of 43 tokens"),
    ({"selected_token_pos": [1, -2]}, "selected_token_pos"),
    ({"selected_token_pos": [1, 2**40]}, "selected_token_pos"),
    ({"selected_token_pos": [7, 1, 7]}, "position 7 twice"),
    ({"selected_token_pos": [-1, -1]}, "selects nothing"),
    ({"selected_token_pos": []}, "selects nothing"),
    ({"selected_token_pos": "all"}, "selected_token_pos"),
    ({"seq_len_current": 0}, "seq_len_current"),
    ({"seq_len_current": 2**31}, "seq_len_current"),
    ({"layer_id": -1}, "layer_id"),
    ({"layer_id": 4096}, "layer_id"),
    ({"step_idx": -3}, "step_idx"),
    ({"step_idx": 2**60}, "step_idx"),
    ({"step_idx": 41}, "step 41 of request 0, layer 5, comes after step 42"),
    ({"step_idx": 42}, "steps of a request and layer must rise"),
    ({"request_id": None}, "request_id"),
    ({"request_id": 1.5}, "request_id"),
    ({"request_id": "x" * 257}, "length <= 256"),
    ({"selected_token_pos": [1, math.nan]}, "malformed"),
    ({"selected_token_pos": [1.0]}, "got `float`"),
    ({"selected_token_pos": ["1"]}, "got `str`"),
    ({"seq_len_current": "43"}, "got `str`"),
]


@pytest.mark.parametrize(("changes", "cause"), BAD, ids=str)
def test_a_bad_line_is_refused_by_number_and_cause(tmp_path, changes, cause):
    """The good line before it is delivered, then the error names file, line and what is wrong."""
    bad = {**LINE, "step_idx": 43, **changes}
    (tmp_path / "out").write_text("".join(json.dumps(line) + "\n" for line in (LINE, bad)))
    reading = read_selections(tmp_path / "out")
    assert describe(next(reading))[0] == 42
    with pytest.raises(FlexKVError, match=f"out:2: .*{cause}.*mend or remove the line") as refused:
        next(reading)
    assert refused.value.code is ErrorCode.BAD_TRACE


@pytest.mark.parametrize("line", ["", "[]", "{", '{"request_id": 0}', "\xff"])
def test_what_is_no_selection_at_all_is_refused(tmp_path, line):
    """An empty line, another type, broken JSON, a missing field, no text."""
    (tmp_path / "out").write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(FlexKVError, match="out:1: "):
        list(read_selections(tmp_path / "out"))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"", "it is empty"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"x" * (LINE_BYTES_MAX + 1), "longer than"),
    ],
    ids=["empty", "deep", "long"],
)
def test_a_line_that_is_no_object_at_all_says_what_it_is(tmp_path, line, cause):
    """Empty, nested without end, without an end: no decoder's own words."""
    (tmp_path / "out").write_bytes(json.dumps(LINE).encode() + b"\n" + line + b"\n")
    with pytest.raises(FlexKVError, match=f"out:2: it is .*{cause.removeprefix('it is ')}"):
        list(read_selections(tmp_path / "out"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_a_pipe_is_read_like_a_file(pack):
    """What another program writes need not lie on a disk first."""
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(pack(json.dumps(LINE).encode() + b"\n"))
    try:
        assert [describe(each)[0] for each in read_selections(Path(f"/dev/fd/{reading}"))] == [42]
    finally:
        os.close(reading)


def test_missing_empty_and_torn_files_are_refused(tmp_path):
    """The sentence says which: no file, nothing in it, a packed file that ends too early."""
    with pytest.raises(FlexKVError, match="No such file"):
        list(read_selections(tmp_path / "missing"))
    (tmp_path / "empty").touch()
    with pytest.raises(FlexKVError, match="empty: name a file with at least one selection"):
        list(read_selections(tmp_path / "empty"))
    write_selections(tmp_path / "whole.gz", Selections(WORKLOAD))
    packed = (tmp_path / "whole.gz").read_bytes()
    (tmp_path / "torn").write_bytes(packed[: len(packed) // 2])
    for read in (read_selections, count_selections):
        with pytest.raises(FlexKVError, match=r"torn:\d+: it cannot be read .*: copy or record it again"):
            list(read(tmp_path / "torn"))


def test_requests_times_layers_of_a_file_are_bounded(tmp_path, monkeypatch):
    """A file of ever new requests ends with a coded error instead of taking all memory."""
    monkeypatch.setattr(exchange, "STREAMS_MAX", 2)
    lines = (json.dumps({**LINE, "request_id": request}) + "\n" for request in range(3))
    (tmp_path / "out").write_text("".join(lines))
    with pytest.raises(FlexKVError, match="out:3: more than 2 requests times layers") as refused:
        list(read_selections(tmp_path / "out"))
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED


def test_an_interrupted_run_leaves_the_file_that_was_there(tmp_path):
    """Half a file is never taken for a whole one."""

    def interrupted():
        yield from list(Selections(WORKLOAD))[:3]
        raise KeyboardInterrupt

    path = tmp_path / "out.gz"
    path.write_bytes(gzip.compress(b"before"))
    with pytest.raises(KeyboardInterrupt):
        write_selections(path, interrupted())
    assert gzip.decompress(path.read_bytes()) == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["out.gz"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    """A folder that is not there: a coded error with the system's own words."""
    with pytest.raises(FlexKVError, match="No such file or directory") as refused:
        write_selections(tmp_path / "nowhere" / "out", Selections(WORKLOAD))
    assert refused.value.code is ErrorCode.BAD_ARGUMENT
