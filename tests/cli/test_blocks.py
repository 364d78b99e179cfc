"""Single blocks from the command line, against a real daemon: listed, explained, pinned, moved; and draining."""

from __future__ import annotations

import io
import json

import pytest

from tests.cli.conftest import SAVED, Operated


def test_blocks_are_listed_page_by_page_and_piped(operated: Operated, monkeypatch) -> None:
    """The list has every block, and its first column is what others read, however narrow a terminal there once was."""
    monkeypatch.setenv("COLUMNS", "40")
    listed = operated.json("blocks", "--all")
    assert sorted(block["key"] for block in listed["blocks"]) == sorted(operated.hex_keys)
    assert listed["next"] is None
    first = operated.json("blocks", "--limit", "3")
    rest = operated.json("blocks", "--after", first["next"])
    assert [block["key"] for block in first["blocks"] + rest["blocks"]] == sorted(operated.hex_keys)
    code, out, err = operated.run("blocks", "--limit", "3")
    assert (code, "--after" in err) == (0, True)
    assert "team-a" in out
    monkeypatch.setattr("sys.stdin", io.StringIO(out))
    assert operated.json("pin", "-", "--ttl", "1m")["pinned"] == 3


def test_a_story_says_why(operated: Operated) -> None:
    """By the whole key or its beginning: the explanation, the copies and the events; a key never seen has one too."""
    key = operated.hex_keys[0]
    code, out, _ = operated.run("story", key[:12])
    assert (code, key in out, "a hit" in out, "save " in out) == (0, True, True, True), out
    told = operated.json("story", key)
    assert set(told) == {"key", "explanation", "events", "copies"}
    assert told["copies"][0]["tenant"] == "team-a"
    assert operated.json("story", "f" * 32)["copies"] == []
    code, _, err = operated.run("story", "")
    assert (code, "give more digits" in err) == (2, True)
    wrong = f"{(int(key[:8], 16) + 1) % (1 << 32):08x}"
    assert operated.run("story", wrong)[0] == 5


def test_pins_hold_against_eviction_until_they_end(operated: Operated) -> None:
    """A pinned block stays when everything that may go is evicted; unpinned, it goes too."""
    assert operated.run("flush", "ssd")[0] == 0
    pinned = operated.hex_keys[:2]
    code, out, _ = operated.run("pin", *pinned, "f" * 32, "--ttl", "10m")
    assert code == 0
    assert out.startswith("pinned 2 blocks")
    assert f"no such block: {'f' * 32}" in out
    assert operated.run("pin", "f" * 32)[0] == 5
    assert {pin["key"] for pin in operated.json("pins")["pins"]} == set(pinned)
    assert pinned[0] in operated.run("pins")[1]
    assert operated.json("evict", "dram", "--all")["state"] == "done"
    assert {block["key"] for block in operated.json("blocks")["blocks"] if "dram" in block["tiers"]} == set(pinned)
    assert operated.json("unpin", *pinned) == {"unpinned": 2}
    code, out, _ = operated.run("evict", "dram", "--tenant", "team-a")
    assert (code, "evict done" in out) == (0, True)
    assert operated.json("tiers", "dram")["blocks"] == 0
    assert operated.json("prefetch", *operated.hex_keys)["state"] == "done"
    assert operated.json("tiers", "dram")["blocks"] == SAVED


def test_demote_copies_what_was_chosen(operated: Operated) -> None:
    """Only the block with that key goes down; without a choice nothing does."""
    chosen = operated.hex_keys[0]
    job = operated.json("demote", "ssd", chosen, "--deadline", "10s")
    assert job["state"] == "done"
    assert operated.json("tiers", "ssd")["blocks"] == 1
    assert "ssd" in operated.run("blocks", chosen)[1]


def test_a_drained_daemon_refuses_and_a_resumed_one_serves(operated: Operated) -> None:
    """Drain ends as a job; what it refuses meanwhile is exit code 1; resume takes it back."""
    assert operated.run("drain", "--deadline", "10s")[0] == 0
    assert operated.json("status")["status"]["state"] == "draining"
    code, out, _ = operated.run("flush", "ssd", "--json")
    assert (code, "draining" in json.dumps(json.loads(out))) == (1, True)
    code, out, _ = operated.run("resume")
    assert (code, out.strip()) == (0, "ready")
    assert operated.client.match(operated.keys).length == SAVED


@pytest.mark.parametrize("stdin", ["not a key\n", "-\n", "5f0c\n", ""])
def test_standard_input_must_be_keys(operated: Operated, monkeypatch, stdin) -> None:
    """A word that is no key, or none at all, ends it before anything is asked."""
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    code, _, err = operated.run("pin", "-")
    assert (code, "on standard input" in err) == (2, True)
