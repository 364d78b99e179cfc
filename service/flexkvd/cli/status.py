"""`flexkv status`, `tiers` and `sessions`: what the daemon is doing, at a glance and in detail."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from flexkvd.cli import output, words
from flexkvd.cli.admin import path_of
from flexkvd.cli.arguments import positive
from flexkvd.cli.connecting import add_command, client_of

TIERS = ("hbm", "dram", "ssd", "s3")

Answer = Mapping[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `status`, `tiers` and `sessions` to the commands of `flexkv`."""
    about = (
        "Shows state, tiers, hit ratio and what is under way. With --json: {status, tiers} as GET /v1/status and "
        "GET /v1/tiers answer."
    )
    examples = ("flexkv status", "flexkv status --address http://127.0.0.1:7979 --token-file token --json")
    add_command(commands, "status", "the daemon at a glance", about, examples).set_defaults(run=run_status)
    about = (
        "Shows occupancy, traffic, latencies, breaker and wear of all tiers, or all of one. With --json the "
        "answer of GET /v1/tiers or GET /v1/tiers/TIER."
    )
    parser = add_command(commands, "tiers", "tiers in detail", about, ("flexkv tiers", "flexkv tiers ssd"))
    parser.add_argument("tier", nargs="?", choices=TIERS, metavar="TIER", help=f"one of: {', '.join(TIERS)} (all)")
    parser.set_defaults(run=run_tiers)
    about = (
        "Lists the connected clients, or shows one with its memories, leases and running tickets. With --json the "
        "answer of GET /v1/sessions or GET /v1/sessions/SESSION."
    )
    parser = add_command(commands, "sessions", "connected clients", about, ("flexkv sessions", "flexkv sessions 7"))
    parser.add_argument("session", nargs="?", type=positive, metavar="SESSION", help="number of one session (all)")
    parser.set_defaults(run=run_sessions)


def run_status(chosen: argparse.Namespace) -> int:
    """At a glance."""
    client = client_of(chosen)
    status, tiers = client.call("GET", path_of("status")), client.call("GET", path_of("tiers"))
    output.emit(chosen, {"status": status, "tiers": tiers["tiers"]}, view_status)
    return 0


def run_tiers(chosen: argparse.Namespace) -> int:
    """All tiers, or one."""
    client = client_of(chosen)
    if chosen.tier is None:
        output.emit(chosen, client.call("GET", path_of("tiers")), view_tiers)
    else:
        output.emit(chosen, client.call("GET", path_of("tiers", chosen.tier)), view_tier)
    return 0


def run_sessions(chosen: argparse.Namespace) -> int:
    """All sessions, or one."""
    client = client_of(chosen)
    if chosen.session is None:
        output.emit(chosen, client.call("GET", path_of("sessions")), view_sessions)
    else:
        output.emit(chosen, client.call("GET", path_of("sessions", chosen.session)), view_session)
    return 0


def view_status(answer: Answer) -> Iterator[RenderableType]:
    """Of {status, tiers}."""
    status = answer["status"]
    state = str(status["state"])
    head = Text.assemble(f"flexkvd {status['version']}  ", output.state_text(state))
    yield head.append(f", up {words.span(status['uptime_s'])}")
    for what in ("reasons", "degraded"):
        for name, why in status[what].items():
            yield Text(f"  {name}: {why}", style="yellow")
    yield tier_table(answer["tiers"])
    matched = status["counters"].get("matched_keys", {})
    hit, miss = matched.get("hit", 0), matched.get("miss", 0)
    planner = status["planner"]
    yield output.facts(
        (
            ("matched", f"{words.share(hit, hit + miss)} of {words.count(hit + miss)} blocks asked for"),
            ("blocks", f"{words.count(planner['blocks'])} known, in {planner['indexes']} namespaces by shard"),
            ("sessions", f"{planner['sessions']}, with {planner['tickets']} tickets and {planner['leases']} leases"),
            ("moving", f"{planner['transfers']} transfers; {waiting_words(planner)}"),
        )
    )


def waiting_words(planner: Answer) -> str:
    """Who waits for what."""
    loads, saves = planner["loads_waiting"], planner["saves_waiting"]
    return f"{loads} loads and {saves} saves wait" if loads or saves else "nobody waits"


def tier_table(tiers: list[dict[str, Any]]) -> RenderableType:
    """One line a tier."""
    total = sum(tier["hits"] for tier in tiers)
    made = output.table("tier", "state", "used", "of", "full", "blocks", "hits", "share", "faults", right=range(2, 9))
    for tier in tiers:
        made.add_row(
            tier["tier"],
            output.state_text("up" if tier["up"] else "down"),
            used_words(tier),
            room_words(tier["capacity_bytes"]),
            words.share(tier["used_bytes"], tier["capacity_bytes"]),
            words.count(tier["blocks"]),
            words.count(tier["hits"]),
            words.share(tier["hits"], total),
            words.count(tier["faults"]),
        )
    return made


def used_words(tier: Answer) -> str:
    """Bytes in use, where they are ours to know."""
    return words.NONE if tier["capacity_bytes"] is None else words.size(tier["used_bytes"])


def room_words(capacity_bytes: int | None) -> str:
    """0 is no limit of ours, None is not ours to know."""
    return words.NONE if capacity_bytes is None else words.size(capacity_bytes) if capacity_bytes else "no limit"


def view_tiers(answer: Answer) -> Iterator[RenderableType]:
    """Of {tiers}."""
    yield tier_table(answer["tiers"])
    yield link_table([link for tier in answer["tiers"] for link in tier["links"]])
    for tier in answer["tiers"]:
        if tier["down_reason"]:
            yield Text(f"{tier['tier']}: {tier['down_reason']}", style="yellow")


def link_table(links: list[dict[str, Any]]) -> RenderableType:
    """One line a link; those that nothing has gone over are left out."""
    columns = ("link", "moved", "run", "wait", "queued p99", "took p50", "took p99", "dropped", "faults")
    made = output.table(*columns, right=range(1, 9), gap=1)
    for link in links:
        if not (link["bytes"] or link["running"] or link["waiting"] or link["faults"]):
            continue
        made.add_row(
            link["link"],
            words.size(link["bytes"]),
            str(link["running"]),
            str(link["waiting"]),
            *(words.latency(each) for each in (link["queue_s"]["p99"], link["seconds"]["p50"], link["seconds"]["p99"])),
            str(link["dropped"]),
            str(link["faults"]),
        )
    return made


def view_tier(tier: Answer) -> Iterator[RenderableType]:
    """Of one tier."""
    yield tier_table([dict(tier)])
    if tier["down_reason"]:
        yield Text(tier["down_reason"], style="yellow")
    counts = ("evictable_blocks", "reclaimable_blocks", "writes_in_flight", "promotions", "demotions", "evictions")
    pairs = [(name.replace("_", " "), f"{tier[name]:,}") for name in counts]
    if (breaker := tier["breaker"]) is not None:
        limit = f", {breaker['rate_per_s_max']:g} requests/s at most" if breaker["rate_per_s_max"] else ""
        pairs.append(("breaker", f"{breaker['state']}, opened {breaker['opened']} times{limit}"))
    if (wear := tier["wear"]) is not None:
        budget = f"{words.size(wear['budget_bytes_per_day'])} a day" if wear["budget_bytes_per_day"] else "none"
        pairs.append(("written", f"{words.size(wear['written_bytes'])}, × {wear['write_amplification']:.2f} on disk"))
        pairs.append(("budget", f"{budget}, {words.size(wear['spent_bytes'])} spent ahead"))
    yield output.facts(pairs)
    yield link_table(tier["links"])
    yield output.facts((name, f"{value}") for name, value in tier["detail"].items())


def view_sessions(answer: Answer) -> Iterator[RenderableType]:
    """Of {sessions}."""
    columns = ("session", "role", "tenant", "shard", "client", "instance", "pid", "age", "tickets", "leases", "rows")
    made = output.table(*columns, right=(0, 3, 6, 7, 8, 9, 10), gap=1)
    for session in answer["sessions"]:
        names = ("session", "role", "tenant", "shard", "client", "instance", "pid")
        held = ("tickets", "leases", "attached")
        cells = [*(f"{session[name]}" for name in names), words.span(session["age_s"])]
        made.add_row(*cells, *(str(session[name]) for name in held), style="dim" if session["closed"] else None)
    yield made if answer["sessions"] else "no session is connected"


def view_session(session: Answer) -> Iterator[RenderableType]:
    """Of one session."""
    names = ("session", "role", "tenant", "shard", "client", "instance", "pid")
    still = "its process may still read what is attached" if session["attached"] else "its last copies still run"
    state = f"gone, {still}" if session["closed"] else "connected"
    yield output.facts([*((name, f"{session[name]}") for name in names), ("age", words.span(session["age_s"]))])
    yield state
    for name, columns in (
        ("memories", ("memory", "bytes")),
        ("leases", ("lease", "keys", "expires_s")),
        ("tickets", ("ticket", "kind", "keys", "age_s", "state")),
        ("attached", ("request", "blocks")),
    ):
        if session[name]:
            made = output.table(*columns)
            for each in session[name]:
                made.add_row(*(cell(column, each[column]) for column in columns))
            yield Text(f"\n{name}", style="bold")
            yield made


def cell(column: str, value: Any) -> str:
    """A value in words, by the unit its name ends with."""
    if column.endswith("_s"):
        return words.span(value)
    return words.size(value) if column.endswith("bytes") else f"{value}"
