"""`flexkv top`: rates, fitting frames, and the live view in a real terminal beside a daemon that works and restarts."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from flexkvd.cli.admin import AdminClient
from flexkvd.cli.top import look
from flexkvd.cli.top.frame import Mode, Snapshot, frame
from flexkvd.cli.top.rates import Rates
from tests.cli.conftest import SAVED, Operated
from tests.cli.terminal import Terminal
from tests.service.conftest import DaemonThread

NARROW, WIDE = (80, 24), (160, 48)


def sample(t: float, **totals: float) -> dict[str, object]:
    """One sample: `hit`, `miss`, `moved`."""
    return {
        "t": t,
        "matched": {"hit": totals.get("hit", 0), "miss": totals.get("miss", 0)},
        "links": {"dram_ssd": {"bytes": totals.get("moved", 0), "running": 0, "waiting": 0}},
        "tiers": {},
        "policy": {"predicted": 0, "came_true": 0},
    }


def test_rates_are_means_and_ratios_are_of_the_last_minute():
    """Rates over five seconds, the hit ratio over sixty; nothing is made up where there is no second sample."""
    samples = [sample(each, hit=each * 3, miss=each, moved=each * 100) for each in range(120)]
    rates = Rates(samples)
    assert rates.per_s("links", "dram_ssd", "bytes") == 100
    assert rates.hit_ratio() == 0.75
    assert rates.rate_line(("links", "dram_ssd", "bytes"), 10) == 10 * "█"
    assert rates.ratio_line(10) == 10 * "▇"
    assert rates.per_s("links", "not_there", "bytes") == 0
    for few in ([], samples[:1]):
        assert (Rates(few).hit_ratio(), Rates(few).per_s("links", "dram_ssd", "bytes")) == (None, None)
    assert Rates([sample(0), sample(1)]).hit_ratio() is None
    assert Rates([sample(0, moved=9), sample(1, moved=0)]).per_s("links", "dram_ssd", "bytes") == 0


def crowded(sessions: int, faults: int) -> Snapshot:
    """A daemon with more to say than fits."""
    quantiles = {"p50": 0.0007, "p99": 0.004}
    link = {"link": "dram_ssd", "bytes": 1 << 40, "running": 128, "waiting": 9999, "queue_s": quantiles}
    link |= {"seconds": quantiles, "dropped": 0, "faults": 0}
    tier = {"tier": "ssd", "up": False, "used_bytes": 1 << 40, "capacity_bytes": 1 << 40, "blocks": 123_456_789}
    tier |= {"faults": 12_345, "links": [link] * 7, "hits": 0}
    session = {"role": "scheduler", "tenant": "a-tenant-of-a-long-name", "client": "engine 1.2.3 of a long name"}
    session |= {"tickets": 1000, "leases": 1000, "attached": 1000, "age_s": 86_399.0}
    fault = {"age_s": 3.2, "what": "corrupt", "tier": "ssd", "count": 3, "detail": "a long sentence " * 20}
    job = {"id": 7, "kind": "verify", "state": "running", "done": 12 << 30, "total": 99 << 30, "unit": "bytes"}
    job |= {"age_s": 1.0, "arguments": {"tier": "ssd", "words": "and so on " * 20}}
    return Snapshot(
        {"version": "0.1.0", "state": "ready", "uptime_s": 1e6, "now": "2026-11-30T07:00:00+00:00"},
        [tier] * 4,
        [session | {"session": number} for number in range(sessions)],
        [job] * 9,
        [fault] * faults,
        [sample(each, moved=each) for each in range(300)],
    )


@pytest.mark.parametrize("size", [NARROW, WIDE, (60, 16), (100, 30), (240, 60), (120, 20)])
@pytest.mark.parametrize("trouble", ["", "the daemon does not answer " * 9])
def test_a_frame_fits_whatever_there_is_to_say(size, trouble):
    """No line is longer and no frame higher than the terminal; what is left out is counted."""
    columns, rows = size
    paper = io.StringIO()
    Console(file=paper, width=columns, markup=False).print(
        frame(crowded(500, 50), columns, rows, Mode(trouble=trouble))
    )
    lines = paper.getvalue().rstrip("\n").split("\n")
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert re.search(r"SESSION \+4\d\d", paper.getvalue()), "nothing says how many sessions are left out"
    assert lines[-1].startswith("q quit")


def test_a_terminal_that_is_too_small_is_told(capsys):
    """Instead of a heap of fragments."""
    paper = io.StringIO()
    Console(file=paper, width=40).print(frame(crowded(1, 1), 40, 10, Mode()))
    assert "60×16" in paper.getvalue()


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_one_frame_goes_to_a_pipe(operated: Operated, monkeypatch, size) -> None:
    """`--once` draws as large as it is told, without a terminal; `--json` has what the frame is made of."""
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    code, out, err = operated.run("top", "--once")
    assert (code, err) == (0, "")
    assert "flexkvd 0.1.0 ready" in out
    assert "worker → dram" in out
    assert "\x1b" not in out
    assert set(operated.json("top")) == {"status", "tiers", "sessions", "jobs", "faults", "samples"}


def test_the_live_view_in_a_real_terminal(operated: Operated, tmp_path) -> None:
    """Drawn at 80×24, redrawn wide when the terminal grows, keys heeded, a restart survived; q ends it."""
    with Terminal(["top", "--address", operated.address, "--interval", "200ms"], *NARROW) as terminal:
        narrow = terminal.wait_for("q quit")
        assert "FAULT" in narrow
        assert f"{SAVED} " in next(line for line in terminal.lines if line.startswith("dram"))
        terminal.press("s")
        terminal.wait_for("sort by leases")
        terminal.press("p")
        terminal.wait_for("paused")
        terminal.press("p")
        terminal.resize(*WIDE)
        wide = terminal.wait_for("hit ratio")
        assert max(map(len, wide.split("\n"))) > NARROW[0]
        operated.client.close()
        assert operated.daemon.stop() == 0
        assert "TIER" in terminal.wait_for("does not answer")
        tables = {"ssd": {"directory": str(tmp_path / "ssd"), "bytes": "64MiB"}, "api": {"socket": operated.address}}
        operated.daemon = DaemonThread(tmp_path, **tables)
        while "does not answer" in terminal.text:
            terminal.look(0.1)
        assert "flexkvd" in terminal.text
        terminal.press("q")
        assert terminal.wait() == 0


def test_history_is_asked_for_once_and_then_grows(operated: Operated) -> None:
    """A second look joins what is new; after a gap, or in another life of the daemon, all is asked for again."""
    client = AdminClient(operated.address)
    end = time.monotonic() + 15
    while len((first := look(client)).samples) < 2:
        assert time.monotonic() < end
        time.sleep(0.2)
    times = [sample["t"] for sample in look(client, first).samples]
    assert times[: len(first.samples)] == [sample["t"] for sample in first.samples]
    assert times == sorted(set(times))
    long_ago = replace(first, samples=[first.samples[0] | {"t": 1.0}])
    elsewhere = replace(first, status=first.status | {"boot": "00"}, samples=[first.samples[0] | {"t": 1e12}])
    for before in (long_ago, elsewhere):
        assert look(client, before).samples[0] == first.samples[0]


def test_ctrl_c_ends_it_and_no_daemon_ends_it_at_once(operated: Operated, tmp_path) -> None:
    """Ctrl-C is exit code 130; without a daemon from the start it says so with 3, and draws nothing."""
    with Terminal(["top", "--address", operated.address], *NARROW) as terminal:
        terminal.wait_for("q quit")
        terminal.press("\x03")
        assert terminal.wait() == 130
    with Terminal(["top", "--address", str(tmp_path / "none.sock")], *NARROW) as terminal:
        assert terminal.wait() == 3
        assert "does not answer" in terminal.text
