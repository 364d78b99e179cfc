"""Commands against a real daemon over its admin socket: what they print, as text and as JSON, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexkv_py.errors import FlexKVError
from flexkvd.cli import main
from flexkvd.cli.admin import AdminClient, path_of
from flexkvd.cli.connecting import read_token_file
from flexkvd.cli.tenants import name_of
from tests.cli.conftest import SAVED, Operated
from tests.cli.terminal import Terminal


def test_what_the_daemon_does_is_seen_at_a_glance_and_in_detail(operated: Operated) -> None:
    """Status, tiers, one tier, sessions and one session say the same as the daemon, as text and as JSON."""
    code, out, err = operated.run("status")
    assert (code, err) == (0, "")
    assert "ready" in out
    assert "dram  up" in out
    answer = operated.json("status")
    assert answer["status"]["ready"] is True
    assert {tier["tier"]: tier["blocks"] for tier in answer["tiers"]}["dram"] == SAVED
    assert "worker_dram" in operated.run("tiers")[1]
    assert operated.json("tiers", "dram")["used_bytes"] > 0
    assert "reclaimable blocks" in operated.run("tiers", "ssd")[1]
    [session] = operated.json("sessions")["sessions"]
    assert (session["tenant"], session["memories"]) == ("team-a", 1)
    assert "team-a" in operated.run("sessions", str(session["session"]))[1]
    assert operated.run("policy")[0] == 0


def test_a_long_job_is_followed_and_listed(operated: Operated) -> None:
    """A flush is followed to its end and its result printed; jobs shows it, and a second cancel is refused."""
    code, out, _ = operated.run("flush", "ssd", "--deadline", "10s")
    assert (code, "flush done" in out) == (0, True)
    [job] = operated.json("jobs")["jobs"]
    assert job["state"] == "done"
    assert job["result"]["stored"] == SAVED
    assert "flush" in operated.run("jobs")[1]
    number = str(job["id"])
    assert operated.run("jobs", number)[0] == 0
    code, _, err = operated.run("jobs", number, "--cancel")
    assert (code, "[conflict]" in err) == (1, True)
    detached = operated.json("flush", "ssd", "--detach")
    assert operated.run("jobs", str(detached["id"]), "--follow")[0] == 0


def test_events_are_heard_as_they_happen(operated: Operated) -> None:
    """The stream of the API tells samples every second, and each change of a job."""
    client = AdminClient(operated.address)
    heard = []
    for name, data in client.events(path_of("events")):
        heard.append((name, data.get("state")))
        if heard == [("sample", None)]:
            client.call("POST", path_of("flush"), {"to_tier": "ssd"})
        if heard[-1] == ("job", "done"):
            break
    assert ("job", "running") in heard


def test_faults_are_listed_and_followed(operated: Operated) -> None:
    """What went wrong is listed with how often; a terminal that follows them shows the next one when it happens."""
    assert operated.run("faults")[1].strip() == "no fault is remembered"
    note = operated.daemon.parts.faults.note
    for _ in range(3):
        operated.daemon.call(lambda: note("dram_ssd: io", "ssd", "a disk that is no more"))
    [fault] = operated.json("faults")["faults"]
    assert (fault["tier"], fault["count"]) == ("ssd", 3)
    assert "a disk that is no more" in operated.run("faults", "--limit", "1")[1]
    with Terminal(["faults", "--follow", "--address", operated.address], 100, 24) as terminal:
        end = time.monotonic() + 15
        while "s3: late" not in terminal.text:
            assert time.monotonic() < end, terminal.text
            operated.daemon.call(lambda: note("s3: late", "s3", "no answer"))
            terminal.look(0.5)
        terminal.press("\x03")
        assert terminal.wait() == 130


def test_the_configuration_is_shown_and_changed_live(operated: Operated) -> None:
    """A key by name, those that are not the default, a change that holds at once; what may not change is refused."""
    code, out, _ = operated.run("config", "planner.policy")
    assert (code, "adaptive" in out, "default" in out) == (0, True, True)
    assert set(operated.json("config", "--changed")["tables"]["dram"]) >= {"bytes", "segment_bytes"}
    assert "planner.policy" in operated.run("config", "--live")[1]
    assert "planner.policy" in operated.run("config", "planner.policy=lru", "limits.retry_after_s=0.2")[1]
    shown = operated.json("config", "planner", "limits.retry_after_s")["tables"]
    assert (shown["planner"]["policy"]["value"], shown["planner"]["policy"]["origin"]) == ("lru", "live")
    assert shown["limits"]["retry_after_s"]["value"] == 0.2
    for change, said in (("dram.bytes=1GiB", "dram"), ("planner.policy=none", "planner")):
        code, _, err = operated.run("config", change)
        assert (code, said in err) == (2, True), err
    assert operated.run("config", "nothing.at_all")[0] == 5


def test_a_quota_is_set_changed_and_taken_back(operated: Operated) -> None:
    """Parts that are not named stay as they are; who has not come yet may have a quota; an unknown tenant is 5."""
    [tenant] = operated.json("tenants")["tenants"]
    assert (tenant["name"], tenant["blocks"]["dram"]) == ("team-a", SAVED)
    assert operated.run("tenants", "nobody")[0] == 5
    assert operated.json("tenants", "team-a", "--dram", "8MiB", "--weight", "2")["quota"]["dram_bytes"] == 8 << 20
    quota = operated.json("tenants", "team-a", "--ssd", "16MiB")["quota"]
    assert (quota["dram_bytes"], quota["ssd_bytes"], quota["weight"]) == (8 << 20, 16 << 20, 2.0)
    assert "of 8.00 MiB" in operated.run("tenants")[1]
    assert operated.json("tenants", "team-b", "--dram", "4MiB")["quota"]["dram_bytes"] == 4 << 20
    code, out, _ = operated.run("tenants", "team-a", "--remove-quota")
    assert (code, "of 8.00 MiB" in out) == (0, False)


def test_a_tenant_without_a_name_is_told_from_what_is_no_tenant() -> None:
    """A session may say an empty name; blocks whose tenant is not known have none."""
    assert [name_of({"name": "", "kind": kind}) for kind in ("named", "unknown")] == ['""', "(unknown)"]


def test_a_tier_is_verified_by_the_daemon(operated: Operated, tmp_path: Path) -> None:
    """Whole is 0, and the result says how much was checked; with bytes flipped on the disk it is 1, and says so."""
    assert operated.run("flush", "ssd")[0] == 0
    job = operated.json("verify", "--tier", "ssd")
    assert (job["kind"], job["result"]["checked"], job["result"]["damaged"]) == ("verify", SAVED, 0)
    [segment, *_] = sorted((tmp_path / "ssd").glob("segment-*.kv"))
    with segment.open("r+b") as file:
        for page in range(2, 8):  # behind the segment's header
            file.seek(page * 4096 + 100)
            byte = file.read(1)[0]
            file.seek(page * 4096 + 100)
            file.write(bytes([byte ^ 0xFF]))
    code, out, _ = operated.run("verify", "--tier", "ssd")
    assert (code, "damaged" in out) == (1, True), out


def test_what_is_not_there_ends_with_five_and_a_sentence(operated: Operated) -> None:
    """A session, a job and a tier that this daemon has not; with `--json` the error is the object."""
    for arguments in (("sessions", "999"), ("jobs", "999"), ("tiers", "s3")):
        code, out, err = operated.run(*arguments, "--json")
        assert code == 5, arguments
        assert json.loads(out)["error"]["code"] == "not_found"
        assert err.startswith("flexkv: [not_found]")


def test_a_daemon_that_is_not_there_ends_with_three(tmp_path, capsys) -> None:
    """The address that was tried and the cure are in the sentence, whatever kind of address it is."""
    for address in (str(tmp_path / "none.sock"), "127.0.0.1:9", "https://127.0.0.1:9"):
        assert main(["status", "--address", address]) == 3
        assert f"the admin API at {address} does not answer" in capsys.readouterr().err
    assert main(["status", "--address", "ftp://somewhere"]) == 2
    assert "is no address" in capsys.readouterr().err


def test_the_socket_of_workers_is_no_admin_api(operated: Operated, capsys) -> None:
    """It ends with three, and what the other end said in its own form does nothing to the terminal."""
    assert main(["status", "--address", str(operated.daemon.socket)]) == 3
    said = capsys.readouterr().err
    assert "is this its address" in said
    assert said.rstrip("\n").isprintable()


def test_a_full_disk_is_no_bug(operated: Operated) -> None:
    """What cannot be printed ends with one and the system's own words."""
    entry = "import sys; from flexkvd.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", entry, "status", "--address", operated.address]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert "bug" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("evict", "dram"), "nothing says what is to go"),
        (("demote", "s3"), "nothing says which blocks"),
        (("config", "policy=lru"), "TABLE.KEY=VALUE"),
        (("config", "planner", "planner.policy=lru"), "show or change, not both"),
        (("tenants", "--dram", "1GiB"), "name it"),
        (("tenants", "a", "--dram", "1GiB", "--remove-quota"), "one or the other"),
        (("verify",), "name what to check"),
        (("bench", "--bytes", "1MiB"), "20MiB or more"),
        (("top",), "--once"),
        (("status", "--token-file", "/nowhere"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(arguments, cause, capsys) -> None:
    """Exit code 2 and a sentence with the cure."""
    assert main([*arguments]) == 2
    assert cause in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("sesame\n", "sesame"),
        ("# ours\n\nread one\nadmin two\n", "two"),
        ("read one\n", "one"),
    ],
)
def test_the_token_with_most_rights_is_sent(tmp_path, text, token) -> None:
    """A token file of the daemon will do for the command too: its admin token, else its read token."""
    (tmp_path / "token").write_text(text)
    assert read_token_file(str(tmp_path / "token")) == token


@pytest.mark.parametrize("text", ["", "# nothing\n", "write x\n"])
def test_a_file_without_a_token_is_refused(tmp_path, text) -> None:
    """The sentence says how a token is written."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(FlexKVError, match="as the only word of a line"):
        read_token_file(str(tmp_path / "token"))
