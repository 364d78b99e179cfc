"""`flexkv record` and `flexkv replay-record`: what they print, what they write, how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from flexkvd.cli import main
from flexkvd.recorder.file import pack, unpack
from tests.cli.conftest import Operated


@pytest.fixture
def dump(operated: Operated, tmp_path: Path) -> Path:
    """A dump of a daemon with some history, fetched by the command."""
    file = tmp_path / "a.record"
    code, out, err = operated.run("record", "--output", str(file))
    assert (code, err) == (0, "")
    assert str(file) in out
    return file


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `flexkv replay-record`."""
    code = main(["replay-record", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_dump_is_fetched_and_played(operated: Operated, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the caller's alone, ends in the daemon's digest, and the daemon's own facts tell of it."""
    assert dump.stat().st_mode & 0o777 == 0o600
    code, out, _ = replayed(capsys, str(dump))
    digest = unpack(dump.read_bytes()).digest
    assert (code, f"digest {digest}" in out) == (0, True)
    assert "ends in the state that was recorded" in out
    code, out, _ = replayed(capsys, str(dump), "--json")
    result = json.loads(out)
    assert (code, result["verdict"], result["digest"]) == (0, "same", digest)
    facts = operated.json("record", "--facts")
    assert (facts["complete"], facts["dumps"]) == (True, 1)
    assert "of 64.0 MiB" in operated.run("record", "--facts")[1]


def test_without_a_name_the_file_lies_here(operated: Operated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named by the time, in the working directory; its facts as JSON."""
    monkeypatch.chdir(tmp_path)
    answer = operated.json("record")
    assert os.path.getsize(str(answer["file"])) == answer["bytes"]
    assert answer["digest"]


def test_events_are_printed_up_to_one(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--print has a line for each event, --until stops there and shows that event's block, both as JSON too."""
    code, out, _ = replayed(capsys, str(dump), "--print", "--until", "3")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert "event 3 of" in out
    assert "stopped there" in out
    code, out, _ = replayed(capsys, str(dump), "--print", "--json")
    *events, result = map(json.loads, out.splitlines())
    assert [event["number"] for event in events] == list(range(1, result["events"] + 1))
    saved = next(event for event in events if event["event"] == "SaveAsked")
    assert (len(saved["keys"]), saved["ack"]) == (8, "dram")


def test_another_end_is_told_with_its_event(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another digest, a bug that does not come: exit code 1, the last event, and the story of its block."""
    recording = unpack(dump.read_bytes())
    dump.write_bytes(pack(msgspec.structs.replace(recording, digest="0" * 32)))
    code, out, _ = replayed(capsys, str(dump))
    assert (code, "another state" in out, "story of" in out) == (1, True, True)
    assert f"event {recording.events} of {recording.events}" in out
    dump.write_bytes(pack(msgspec.structs.replace(recording, mark=b"12345678")))
    assert replayed(capsys, str(dump), "--json")[0] == 1


def test_a_dump_that_is_not_complete_is_read_only(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused, naming --print, and --print reads what there is."""
    dump.write_bytes(pack(msgspec.structs.replace(unpack(dump.read_bytes()), complete=False)))
    code, _, err = replayed(capsys, str(dump))
    assert (code, "[bad_recording]" in err, "--print" in err) == (2, True, True)
    code, out, _ = replayed(capsys, str(dump), "--print")
    assert (code, "SaveAsked" in out, "only the last" in out) == (0, True, True)


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file, a folder, garbage: exit code 2, a code and the cure, no traceback."""
    (tmp_path / "garbage").write_bytes(os.urandom(4096))
    for name, said in (("missing", "[bad_argument]"), (".", "[bad_argument]"), ("garbage", "[bad_recording]")):
        code, out, err = replayed(capsys, str(tmp_path / name))
        assert (code, out) == (2, "")
        assert said in err


def test_a_daemon_that_does_not_answer_or_has_no_recorder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 without a daemon; 2 where the recorder is off, with the key that turns it on."""
    assert main(["record", "--address", str(tmp_path / "none.sock")]) == 3
    capsys.readouterr()
    operated = Operated(tmp_path, capsys, recorder={"bytes": 0})
    try:
        code, _, err = 3, "", ""
        while code == 3:
            code, _, err = operated.run("record", "--output", str(tmp_path / "x"))
    finally:
        operated.close()
    assert (code, "[unsupported]" in err, "[recorder] bytes" in err) == (2, True, True)
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_written_is_told(operated: Operated, tmp_path: Path) -> None:
    """The dump has nowhere to go: exit code 2, and the option that mends it."""
    (tmp_path / "file").write_text("")
    code, _, err = operated.run("record", "--output", str(tmp_path / "file" / "dump"))
    assert (code, "--output" in err) == (2, True)
