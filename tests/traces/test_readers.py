"""Trace readers: both formats, plain and packed, coarser blocks, and what they say of bad lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces import TraceRequest, open_trace

MOONCAKE = {"timestamp": 1500, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}
WEKA = {"session": 3, "agent": "main", "t": 2.0, "input_length": 64 * 20 + 5, "runs": [[1, 10], [21, 10]]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(line + "\n" if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_mooncake_line_keeps_its_partial_last_block(tmp_path):
    """Time comes in seconds, every listed id is there, and the last one is known to be partial."""
    [request] = open_trace(write(tmp_path / "trace.jsonl", MOONCAKE))
    assert request == TraceRequest(1.5, [0, 1, 2], 1300, partial=True)
    assert request.full_ids == [0, 1]


def test_mooncake_blocks_can_be_coarser(tmp_path):
    """Blocks of 1,024 tokens are named by every second id, the rest by the last one."""
    [request] = open_trace(write(tmp_path / "trace.jsonl", MOONCAKE), tokens_per_block=1024)
    assert request == TraceRequest(1.5, [1, 2], 1300, partial=True)


def test_weka_runs_expand_to_every_gth_global_id(tmp_path):
    """Coarser blocks take `ids[g-1::g]`, across the border of two runs, with the session in the id."""
    path = write(tmp_path / "trace.jsonl", WEKA)
    ids = [3_000_000 + n for n in [*range(1, 11), *range(21, 31)]]
    for step in (1, 2, 3, 8, 64):
        [request] = open_trace(path, tokens_per_block=64 * step)
        assert list(request.ids) == ids[step - 1 :: step]
        assert not request.partial


def test_weka_sessions_are_merged_by_time(tmp_path):
    """A session that starts later overtakes the late calls of an earlier one."""
    calls = [{**WEKA, "session": 1, "t": 0}, {**WEKA, "session": 1, "t": 10_000.0}, {**WEKA, "session": 2, "t": 0}]
    requests = list(open_trace(write(tmp_path / "trace.jsonl", *calls)))
    assert [request.ids[0] // 1_000_000 for request in requests] == [1, 2, 1]
    assert [request.time_s for request in requests] == sorted(request.time_s for request in requests)


def test_a_packed_file_reads_like_a_plain_one(tmp_path):
    """gzip is recognised by content: the name does not matter."""
    plain = write(tmp_path / "plain", MOONCAKE, MOONCAKE)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(open_trace(packed)) == list(open_trace(plain))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("{", "truncated"),
        ("[1]", "object"),
        ({**MOONCAKE, "hash_ids": [0, "one", 2]}, "Expected `int`"),
        ({**MOONCAKE, "timestamp": -1}, "negative"),
        ({**MOONCAKE, "hash_ids": [0]}, "'input_length' is 1300"),
        ({"timestamp": 0, "hash_ids": []}, "missing required field `input_length`"),
        ('{"timestamp": 0, "input_length": 1, "hash_ids": [\x00]}', "malformed"),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path, line, cause):
    """The error carries its code, file, line number and cause."""
    path = write(tmp_path / "trace.jsonl", MOONCAKE, line)
    with pytest.raises(FlexKVError) as caught:
        list(open_trace(path))
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert f"{path}:2:" in caught.value.message
    assert cause in caught.value.message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"runs": [[1, 10**12]]}, "more than"),
        ({"runs": [[1, 19]]}, "19 full blocks"),
        ({"runs": [[999_999, 20]]}, "another session"),
        ({"runs": [[1, -5]]}, ">= 0"),
        ({"t": -1.0}, ">= 0"),
        ({"session": None}, "Expected `int`"),
    ],
)
def test_a_bad_weka_line_is_named(tmp_path, change, cause):
    """A lying length is refused before anything is expanded."""
    path = write(tmp_path / "trace.jsonl", WEKA, {**WEKA, **change})
    with pytest.raises(FlexKVError, match=cause) as caught:
        list(open_trace(path))
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert f"{path}:2:" in caught.value.message


def test_files_that_are_no_traces_are_refused(tmp_path):
    """Missing, empty, foreign and truncated files each get a coded error that names the file."""
    packed = gzip.compress(json.dumps(MOONCAKE).encode() * 1000)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "empty").write_bytes(b"")
    write(tmp_path / "foreign", {"ContextTokens": 5})
    for name in ("cut", "empty", "foreign", "missing"):
        with pytest.raises(FlexKVError, match=name) as caught:
            list(open_trace(tmp_path / name))
        assert caught.value.code is ErrorCode.BAD_TRACE


def test_a_block_size_the_trace_cannot_give_is_refused(tmp_path):
    """Blocks smaller than the listed ones, or no multiple of them, are an argument error at once."""
    for line, tokens in ((MOONCAKE, 64), (MOONCAKE, 768), (WEKA, 100)):
        with pytest.raises(FlexKVError) as caught:
            open_trace(write(tmp_path / "trace.jsonl", line), tokens_per_block=tokens)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
