"""`flexkv drain`, `resume`, `jobs`, `policy` and `faults`: the daemon as a whole."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from flexkvd.cli import output, words
from flexkvd.cli.admin import path_of
from flexkvd.cli.arguments import positive, seconds
from flexkvd.cli.connecting import add_command, client_of
from flexkvd.cli.following import ENDED, add_detach, amount_words, follow, start, view_end

DRAIN_S_DEFAULT = 60.0
FAULTS_DEFAULT = 100
SILENCE_S_MAX = 60.0
"""The daemon says something on a stream every 15 s, or it is gone."""

Answer = Mapping[str, Any]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `drain`, `resume`, `jobs`, `policy` and `faults` to the commands of `flexkv`."""
    about = (
        "Admits no new load, save or prefetch, lets what runs end, and carries down what was promised; the daemon "
        "stays up until it is stopped or resumed. With --json the job at its end (GET /v1/jobs/ID)."
    )
    parser = add_command(commands, "drain", "stop admitting, finish what runs", about, ("flexkv drain --deadline 2m",))
    parser.add_argument("--deadline", type=seconds, default=DRAIN_S_DEFAULT, metavar="TIME", help="give up after (60s)")
    add_detach(parser)
    parser.set_defaults(run=run_drain)
    about = "Admits requests again after a drain. With --json the answer of POST /v1/resume."
    add_command(commands, "resume", "undo a drain", about, ("flexkv resume",)).set_defaults(run=run_resume)
    about = "Lists jobs, the newest first, or shows one. With --json the answer of GET /v1/jobs or GET /v1/jobs/JOB."
    examples = ("flexkv jobs", "flexkv jobs 12 --follow", "flexkv jobs 12 --cancel")
    parser = add_command(commands, "jobs", "long work of the daemon", about, examples)
    parser.add_argument("job", nargs="?", type=positive, metavar="JOB", help="a job's number (all)")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--follow", action="store_true", help="show its progress until it has ended; Ctrl-C cancels it")
    end.add_argument("--cancel", action="store_true", help="cancel it")
    parser.set_defaults(run=run_jobs)
    about = (
        "Shows which policies are at work, where copies stand in their orders, and what was predicted and came "
        "true. With --json the answer of GET /v1/policy."
    )
    add_command(commands, "policy", "eviction and admission at work", about, ("flexkv policy",)).set_defaults(
        run=run_policy
    )
    about = (
        "Lists recent faults, the newest first. With --json the answer of GET /v1/faults; with --follow one "
        "object a line."
    )
    examples = ("flexkv faults", "flexkv faults --limit 10", "flexkv faults --follow")
    parser = add_command(commands, "faults", "what went wrong lately", about, examples)
    parser.add_argument(
        "--limit", type=positive, default=FAULTS_DEFAULT, metavar="N", help=f"list at most N ({FAULTS_DEFAULT})"
    )
    parser.add_argument("--follow", action="store_true", help="print faults as they happen, until Ctrl-C")
    parser.set_defaults(run=run_faults)


def run_drain(chosen: argparse.Namespace) -> int:
    """Drain, and wait for it."""
    return start(chosen, client_of(chosen), path_of("drain"), {"deadline_s": chosen.deadline})


def run_resume(chosen: argparse.Namespace) -> int:
    """Undo it."""
    output.emit(chosen, client_of(chosen).call("POST", path_of("resume")), lambda told: [f"{told['state']}"])
    return 0


def run_jobs(chosen: argparse.Namespace) -> int:
    """List, show, follow or cancel."""
    client = client_of(chosen)
    if chosen.job is None:
        output.emit(chosen, client.call("GET", path_of("jobs")), view_jobs)
        return 0
    if chosen.cancel:
        output.emit(chosen, client.call("DELETE", path_of("jobs", chosen.job)), view_job)
        return 0
    job = client.call("GET", path_of("jobs", chosen.job))
    if chosen.follow:
        return follow(chosen, client, job)
    output.emit(chosen, job, view_job)
    return 0


def run_policy(chosen: argparse.Namespace) -> int:
    """Policies at work."""
    output.emit(chosen, client_of(chosen).call("GET", path_of("policy")), view_policy)
    return 0


def run_faults(chosen: argparse.Namespace) -> int:
    """Recent ones, or those to come."""
    if not chosen.follow:
        answer = client_of(chosen).call("GET", path_of("faults", limit=chosen.limit))
        output.emit(chosen, answer, view_faults)
        return 0
    chosen.timeout = max(chosen.timeout, SILENCE_S_MAX)
    for name, fault in client_of(chosen).events(path_of("events")):
        if name == "fault":
            line = f"{fault['tier']:5} {fault['what']} × {fault['count']}: {fault['detail']}"
            print(json.dumps(fault) if chosen.json else line, flush=True)
    output.note("the daemon ended the stream: it stops, or starts again")
    return 0


def view_jobs(answer: Answer) -> Iterator[RenderableType]:
    """Of {jobs}."""
    made = output.table("job", "kind", "state", "done", "age", "took", "why", right=(0, 3, 4, 5))
    for job in answer["jobs"]:
        state, why = output.state_text(job["state"]), (job["error"] or {}).get("message", "")
        cells = (amount_words(job), words.span(job["age_s"]), words.span(job["took_s"]), why)
        made.add_row(f"{job['id']}", job["kind"], state, *cells)
    yield made if answer["jobs"] else "no job"


def view_job(job: Answer) -> Iterator[RenderableType]:
    """Of one job."""
    if job["state"] in ENDED:
        yield from view_end(job)
    else:
        yield f"{job['kind']} {job['state']}: {amount_words(job)} after {words.span(job['age_s'])} (job {job['id']})"


def view_policy(answer: Answer) -> Iterator[RenderableType]:
    """Of {tiers, admission, row_policy}."""
    made = output.table("tier", "policy", "cold", "once", "again", "parameters", right=(2, 3, 4))
    for tier in answer["tiers"]:
        lists = [words.count(tier["lists"][name]) for name in ("cold", "once", "again")]
        made.add_row(tier["tier"], tier["policy"], *lists, pairs_words(tier["parameters"]))
    yield made
    rows = answer["row_policy"]
    yield output.facts(
        (
            ("admission", f"uses before a block may go there: {pairs_words(answer['admission'])}"),
            (
                "row policy",
                f"{rows['name']}, {words.count(rows['predicted'])} predicted, "
                f"{words.share(rows['came_true'], rows['predicted'])} came true",
            ),
        )
    )


def pairs_words(pairs: Answer) -> str:
    """`name value, name value`; numbers short."""
    short = {name: f"{each:.4g}" if isinstance(each, float) else f"{each}" for name, each in pairs.items()}
    return ", ".join(f"{name} {each}" for name, each in short.items())


def view_faults(answer: Answer) -> Iterator[RenderableType]:
    """Of {faults}."""
    made = output.table("ago", "tier", "what", "times", "detail", right=(0, 3))
    for fault in answer["faults"]:
        made.add_row(words.span(fault["age_s"]), fault["tier"], fault["what"], f"{fault['count']}", fault["detail"])
    yield made if answer["faults"] else Text("no fault is remembered", style="green")
