"""One frame of `flexkv top`: from what the daemon says to what fits a terminal of a given size. Pure.

A narrow terminal gets one column in the order of importance, a wide one two columns and history. Sections give up
their last rows first; what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flexkvd.cli import words
from flexkvd.cli.following import amount_words
from flexkvd.cli.output import state_text
from flexkvd.cli.status import room_words, used_words
from flexkvd.cli.top.rates import Rates
from flexkvd.cli.top.section import Section, fit

WIDE_COLUMNS = 120
ROWS_LEAST = 16
COLUMNS_LEAST = 60
BAR_CELLS_LEAST = 8
OTHER_TIER_COLUMNS = 60
"""What a row of the tiers takes beside its bar."""
ENDS = ("worker", "hbm", "dram", "ssd", "s3")
SORTS = ("tickets", "leases", "age_s")
"""What `s` goes through."""

Fact = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the daemon answered at one moment, in the shapes of its REST API."""

    status: Fact
    tiers: list[Fact]
    sessions: list[Fact]
    jobs: list[Fact]
    faults: list[Fact]
    samples: list[Fact] = field(default_factory=list)
    """Oldest first, one a second."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What the person at the keyboard has chosen, and what is wrong with the connection."""

    sort: str = SORTS[0]
    paused: bool = False
    trouble: str = ""


def frame(shown: Snapshot | None, columns: int, rows: int, mode: Mode) -> RenderableType:
    """The whole screen: at most `rows` lines of at most `columns` characters."""
    if columns < COLUMNS_LEAST or rows < ROWS_LEAST:
        return Text(f"flexkv top needs {COLUMNS_LEAST}×{ROWS_LEAST} characters", no_wrap=True)
    trouble = [Text(mode.trouble, style="bold red", no_wrap=True, overflow="ellipsis")] if mode.trouble else []
    if shown is None:
        return Group(*(trouble or [Text("asking the daemon …")]), _keys(mode))
    rates = Rates(shown.samples)
    body_rows = rows - len(trouble) - 2
    build = _wide if columns >= WIDE_COLUMNS else _narrow
    body = build(shown, rates, columns, body_rows, mode)
    return Group(_head(shown, rates, columns, mode), *trouble, body, _keys(mode))


def _narrow(shown: Snapshot, rates: Rates, columns: int, rows: int, mode: Mode) -> RenderableType:
    tiers = tier_section(shown.tiers, rates, max(BAR_CELLS_LEAST, columns - OTHER_TIER_COLUMNS))
    others = (
        link_section(shown.tiers, rates),
        session_section(shown.sessions, mode.sort),
        job_section(shown.jobs),
        fault_section(shown.faults),
    )
    return Group(*(section.table() for section in (tiers, *fit(others, rows - tiers.height))))


def _wide(shown: Snapshot, rates: Rates, columns: int, rows: int, mode: Mode) -> RenderableType:
    half = columns // 2 - 1
    tiers = tier_section(shown.tiers, rates, max(BAR_CELLS_LEAST, half - OTHER_TIER_COLUMNS))
    left = fit((link_section(shown.tiers, rates), history_section(shown, rates, half)), rows - tiers.height - 2)
    lists = (session_section(shown.sessions, mode.sort), job_section(shown.jobs), fault_section(shown.faults))
    both = Table.grid(padding=(0, 2, 0, 0))
    both.add_column(width=half)
    both.add_column(width=columns - half - 2)
    both.add_row(_spaced(tiers, *left), _spaced(*fit(lists, rows - 2)))
    return both


def _spaced(*sections: Section) -> Group:
    """One below the other, a blank line between."""
    parts: list[RenderableType] = []
    for section in sections:
        parts += [section.table(), Text()]
    return Group(*parts[:-1])


def _head(shown: Snapshot, rates: Rates, columns: int, mode: Mode) -> RenderableType:
    status, ratio = shown.status, rates.hit_ratio()
    newest = shown.samples[-1] if shown.samples else {}
    line = Table.grid(expand=True, padding=0)
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True, justify="right")
    left = Text.assemble((f"flexkvd {status['version']} ", "bold"), state_text(status["state"]))
    left.append(f" {words.span(status['uptime_s'])}")
    if mode.paused:
        left.append("  paused", style="yellow")
    right = Text(f"hit {words.NONE if ratio is None else f'{100 * ratio:.1f} %'}")
    right.append(f"  sessions {newest.get('sessions', len(shown.sessions))}  tickets {newest.get('tickets', 0)}")
    right.append(f"  lag {words.latency(newest.get('loop_lag_p99_s'))}")
    if columns >= WIDE_COLUMNS:
        right.append(f"  {status['now']}")
    line.add_row(left, right)
    return line


def _keys(mode: Mode) -> RenderableType:
    keys = f"q quit   p {'go on' if mode.paused else 'pause'}   s sort by {mode.sort.removesuffix('_s')}"
    return Text(keys, style="dim", no_wrap=True)


def tier_section(tiers: Sequence[Fact], rates: Rates, bar_cells: int) -> Section:
    """One row a tier, with a bar of how full it is."""
    rows = []
    for tier in tiers:
        used, room = tier["used_bytes"], tier["capacity_bytes"]
        rows.append(
            (
                Text(tier["tier"] if tier["up"] else f"{tier['tier']} down", style="" if tier["up"] else "bold red"),
                bar(used / room if room else 0.0, bar_cells),
                f"{100 * used / room:.0f} %" if room else words.NONE,
                used_words(tier),
                room_words(room),
                words.count(tier["blocks"]),
                words.count(rates.per_s("tiers", tier["tier"], "hits")),
                Text(words.count(tier["faults"]), style="bold red" if tier["faults"] else ""),
            )
        )
    return Section(("TIER", "FULL", "", "USED", "OF", "BLOCKS", "HITS/S", "FAULTS"), rows, range(2, 8), wide=1)


def bar(share: float, cells: int) -> Text:
    """How full: `████░░░░`; yellow where it is next to full."""
    full = round(min(max(share, 0.0), 1.0) * cells)
    return Text("█" * full + "░" * (cells - full), style="yellow" if share >= 0.95 else "green", no_wrap=True)


def link_section(tiers: Sequence[Fact], rates: Rates) -> Section:
    """One row a link that has ever moved something, or has something to move."""
    columns = ("LINK", "RATE", "MOVED", "RUN", "WAIT", "QUEUED P99", "TOOK P50", "TOOK P99")
    rows = [
        (
            link_name(link["link"]),
            words.rate(rates.per_s("links", link["link"], "bytes")),
            words.size(link["bytes"]),
            str(link["running"]),
            str(link["waiting"]),
            *(words.latency(each) for each in (link["queue_s"]["p99"], link["seconds"]["p50"], link["seconds"]["p99"])),
        )
        for tier in tiers
        for link in tier["links"]
        if link["bytes"] or link["running"] or link["waiting"]
    ]
    return Section(columns, rows or [("none has moved anything",)], range(1, 8))


def link_name(link: str) -> str:
    """`dram_ssd` → `dram → ssd`; `ssd_drop` leads nowhere."""
    source, _, target = link.partition("_")
    return f"{source} → {target}" if target in ENDS else link.replace("_", " ")


def session_section(sessions: Sequence[Fact], sort: str) -> Section:
    """The most of what is sorted by first."""
    columns = ("SESSION", "ROLE", "TENANT", "CLIENT", "TICKETS", "LEASES", "ROWS", "AGE")
    rows = [
        (
            str(each["session"]),
            each["role"],
            each["tenant"] or words.NONE,
            each["client"] or words.NONE,
            *(str(each[name]) for name in ("tickets", "leases", "attached")),
            words.span(each["age_s"]),
        )
        for each in sorted(sessions, key=lambda session: (-session[sort], session["session"]))
    ]
    return Section(columns, rows or [("none",)], (4, 5, 6, 7), wide=3)


def job_section(jobs: Sequence[Fact]) -> Section:
    """Those that run first, then the newest."""
    ordered = sorted(jobs, key=lambda job: (job["state"] not in ("queued", "running"), job["age_s"]))
    rows = [
        (
            str(job["id"]),
            job["kind"],
            state_text(job["state"]),
            amount_words(job),
            words.span(job["age_s"]),
            ", ".join(f"{name} {each}" for name, each in job["arguments"].items()),
        )
        for job in ordered
    ]
    return Section(("JOB", "KIND", "STATE", "DONE", "AGE", "ASKED FOR"), rows or [("none",)], (3, 4), wide=5)


def fault_section(faults: Sequence[Fact]) -> Section:
    """The newest first."""
    rows = [
        (f"{words.span(each['age_s'])} ago", each["what"], each["tier"], words.count(each["count"]), each["detail"])
        for each in faults
    ]
    return Section(("FAULT", "WHAT", "TIER", "TIMES", "DETAIL"), rows or [("none",)], (3,), wide=4)


def history_section(shown: Snapshot, rates: Rates, columns: int) -> Section:
    """Lines over all of the history that the daemon gave, the newest at the right."""
    samples, cells = shown.samples, columns - 16
    span_s = samples[-1]["t"] - samples[0]["t"] if len(samples) > 1 else 0.0
    rows: list[tuple[str, str | Text]] = [("hit ratio", Text(rates.ratio_line(cells), style="green"))]
    for link in (link["link"] for tier in shown.tiers for link in tier["links"]):
        line = rates.rate_line(("links", link, "bytes"), cells)
        if line.strip():
            rows.append((link_name(link), Text(line, style="cyan")))
    guesses = samples[-1]["policy"] if samples else {"predicted": 0}
    if guesses["predicted"]:
        came_true = f"{words.share(guesses['came_true'], guesses['predicted'])} came true"
        rows.append(("predicted", f"{words.count(guesses['predicted'])}, {came_true}"))
    return Section((f"LAST {words.span(span_s)}", ""), rows, wide=1)
