"""The flight recorder of a real daemon: what it writes when the daemon meets a bug, and who may read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flexkv_py.client import Client
from flexkv_py.core import matching
from flexkv_py.core.messages import MatchAsked
from flexkv_py.core.state import State
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli import main
from flexkvd.cli.admin import AdminClient
from flexkvd.recorder.dumps import Dumps
from flexkvd.recorder.file import unpack
from flexkvd.recorder.replay import Verdict, replay
from flexkvd.recorder.ring import Recorder

from .conftest import GEOMETRY, DaemonThread, Worker
from .test_lives import until

TOKENS = list(range(16 * 8))
ENDLESS = ("/v1/events",)


def work(daemon: DaemonThread) -> list[bytes]:
    """Save some blocks, match and load them; their keys."""
    with Client(daemon.socket, GEOMETRY) as client:
        worker = Worker(client)
        keys = client.keys(TOKENS)
        assert client.save(keys, worker.pages(0, 8), worker.memory).wait(timeout_s=10).length == 8
        assert client.match(keys).length == 8
        assert client.load(keys, worker.pages(8, 8), worker.memory).wait(timeout_s=10).length == 8
    return list(keys)


def test_what_a_daemon_did_is_replayed(daemon: DaemonThread) -> None:
    """Real clients, real copies: the dump ends in the digest of the daemon's own planner, and it serves on."""
    work(daemon)
    recording = unpack(daemon.call(daemon.parts.recorder.dump))
    end = replay(recording)
    assert (end.verdict, end.number) == (Verdict.SAME, recording.events)
    assert recording.events == daemon.parts.engine.events > 5
    facts = daemon.call(daemon.parts.recorder.facts)
    assert (facts["complete"], facts["dumps"], facts["capacity_bytes"]) == (True, 1, 64 << 20)
    work(daemon)


def test_nobody_who_only_looks_changes_the_planner(start: Callable[..., DaemonThread], tmp_path: Path) -> None:
    """Every route that is read, of a daemon with several tenants and little DRAM: the replay knows of none of it."""
    (tmp_path / "ssd").mkdir()
    daemon = start(
        api={"socket": str(tmp_path / "admin.sock")},
        dram={"bytes": "2MiB", "segment_bytes": "1MiB"},
        ssd={"directory": str(tmp_path / "ssd"), "bytes": "64MiB"},
        row_path={"policy": "sparse"},
    )
    admin = AdminClient(str(daemon.admin))
    until(daemon.admin.exists)
    for tenant in ("", "a", "b"):
        with Client(daemon.socket, GEOMETRY, tenant=tenant) as client:
            worker = Worker(client, 128)
            keys = client.keys(list(range(16 * 128)))
            client.save(keys, worker.pages(0, 128), worker.memory, deadline_s=5).wait(timeout_s=10)
            if tenant:
                client.reset(1)
            for path, methods in admin.json("/openapi.json")["paths"].items():
                if "get" in methods and path not in ENDLESS:
                    admin.get(path.format(key=keys[0].hex(), tier="dram", number=1, tenant="a", id=1))
    recording = unpack(daemon.call(daemon.parts.recorder.dump))
    assert replay(recording).verdict is Verdict.SAME


def test_a_bug_leaves_a_dump_that_meets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planner fails in mid-run: the daemon stops, and its dump, which only its user can read, fails the same."""

    def broken(state: State, event: MatchAsked) -> None:
        assert len(event.keys) < 9, "planted"
        matching.on_match(state, event)

    monkeypatch.setattr("flexkv_py.core.planner.on_match", broken)
    daemon = DaemonThread(tmp_path, recorder={"directory": str(tmp_path / "dumps")})
    keys = work(daemon)
    with Client(daemon.socket, GEOMETRY) as client, pytest.raises(FlexKVError) as caught:
        client.match(keys + client.keys([7] * 16))
    assert caught.value.code in (ErrorCode.INTERNAL, ErrorCode.DAEMON_LOST)
    daemon.join()
    assert daemon.status == 1
    [file] = (tmp_path / "dumps").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.name.endswith("Z-bug.record")
    assert "bug" in {each["what"] for each in daemon.parts.faults.recent()}
    assert main(["replay-record", str(file)]) == 1
    said = capsys.readouterr().out
    assert "AssertionError: planted (flexkv_py/core/planner.py:" in said
    assert "meets the bug that was recorded, at the same event" in said
    assert "MatchAsked session=2" in said
    assert f"story of {keys[0].hex()}" in said
    monkeypatch.undo()
    assert replay(unpack(file.read_bytes())).verdict is Verdict.DIFFERS, "mended, the same events lead elsewhere"


def test_a_bug_outside_the_planner_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shell fails: the dump replays to its state, and says where else to look."""
    daemon = DaemonThread(tmp_path, daemon={"state_directory": str(tmp_path / "state")})
    work(daemon)

    def broken(*_: Any) -> None:
        raise AssertionError("planted in the shell")

    daemon.call(lambda: daemon.parts.engine.handlers.update(dict.fromkeys(daemon.parts.engine.handlers, broken)))
    with Client(daemon.socket, GEOMETRY) as client, pytest.raises(FlexKVError):
        client.match(client.keys(TOKENS))
    daemon.join()
    [file] = (tmp_path / "state").glob("*.record")
    assert main(["replay-record", str(file)]) == 0
    said = capsys.readouterr().out
    assert "planted in the shell" in said
    assert "not the planner's" in said


def test_only_the_newest_dumps_are_kept(daemon: DaemonThread, tmp_path: Path) -> None:
    """Beyond their number the oldest goes, with what an interrupted write left; other files are nobody's business."""
    (directory := tmp_path / "dumps").mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / "flexkvd-20200101T000000.000Z-bug.record.part").write_text("torn")
    (directory / "flexkvd-20200101T000000.000Z-bug.record").write_text("old")
    dumps = Dumps(daemon.parts.recorder, directory, kept_max=2)
    for _ in range(3):
        daemon.call(dumps.on_signal)
    names = sorted(path.name for path in directory.iterdir())
    assert len(names) == 3
    assert names[-1] == "notes.txt"
    assert not any("2020" in name for name in names)
    assert all(unpack((directory / name).read_bytes()).why == "signal" for name in names[:-1])


def test_a_dump_that_cannot_be_written_harms_nobody(
    start: Callable[..., DaemonThread], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No place, a place that is a file, a recorder that is off: each is a line in the log that names the cure."""
    daemon = start(recorder={"bytes": 0})
    (tmp_path / "file").write_text("")
    recorder = Recorder(daemon.parts.planner, 1 << 20)
    for dumps in (
        Dumps(recorder, None, 1),
        Dumps(recorder, tmp_path / "file", 1),
        Dumps(daemon.parts.recorder, tmp_path, 1),
    ):
        daemon.call(dumps.on_signal)
    recorder.close()
    work(daemon)
    assert daemon.call(daemon.parts.recorder.facts)["events"] == 0
    said = [record.getMessage() for record in caplog.records if record.name == "flexkvd.recorder.dumps"]
    assert any("[recorder] directory" in line for line in said)
    assert any("File exists" in line for line in said)
    assert any("[recorder] bytes" in line for line in said)
    assert not list(tmp_path.glob("*.record"))
