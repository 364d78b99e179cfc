"""The main job, end to end: agent sessions without a cache, then through flexkvd and what befalls it.

Owns the command line, the work directory and the end of every process. `phases` says what happens.
Exit status 0 only if every token was the same in every phase and every tier served.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from demo import rows_report, sweep_report
from demo.fleet import Daemon, DemoError, Worker
from demo.phases import TURNS_MIN, Demo
from demo.report import Phase, link_table_of, table_of, verdict
from demo.rows_run import run_rows
from demo.shape import ModelShape
from demo.show import Show
from demo.sweep import run_sweep
from demo.workload import Turn, agent_sessions, block_reuse, trace_sessions, working_set_blocks
from flexkv_py.errors import FlexKVError
from flexkvd.cli.s3server import S3Server

_INTERRUPTED = 130
_PLAIN_WIDTH = 110


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    try:
        if options.rows:
            return asyncio.run(_run_rows(options, console))
        if options.concurrency_sweep:
            return asyncio.run(_run_sweep(options, console))
        phases = asyncio.run(_run(options, _sessions(options), console))
    except (DemoError, FlexKVError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False, soft_wrap=True)
        return 1
    except asyncio.CancelledError:
        console.print("interrupted; every process was ended")
        return _INTERRUPTED
    complaints = verdict(phases)
    _conclude(phases, complaints, console)
    _write_figures(options.json, {"phases": [phase.figures() for phase in phases], "complaints": complaints})
    return 1 if complaints else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="decode with less HBM and DRAM than KV, and nothing else")
    parser.add_argument(
        "--concurrency-sweep", action="store_true", help="tokens/s of 1 to 32 requests at once, and nothing else"
    )
    parser.add_argument("--plot", type=Path, default=Path("sweep.png"), help="where the sweep draws it (sweep.png)")
    parser.add_argument("--workers", type=int, default=4, help="inference worker processes (4)")
    parser.add_argument("--sessions", type=int, default=8, help="agent sessions beside each other (8)")
    parser.add_argument("--turns", type=int, default=10, help=f"calls of each session (10, at least {TURNS_MIN})")
    parser.add_argument("--seed", type=int, default=1, help="seed of workload and weights (1)")
    parser.add_argument("--trace", type=Path, help="take the sessions from a WEKA-format trace instead")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--keep", action="store_true", help="keep the work directory with logs and configuration")
    parser.add_argument("--quick", action="store_true", help="a smaller run, under a minute")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sessions, options.turns = options.workers, TURNS_MIN
    if options.workers < 2 or options.sessions < options.workers or options.turns < TURNS_MIN:
        parser.error(f"use at least 2 workers, no fewer sessions than workers, and at least {TURNS_MIN} turns")
    return options


def _sessions(options: argparse.Namespace) -> list[list[Turn]]:
    if options.trace is not None:
        return trace_sessions(options.trace, options.sessions, options.turns)
    return agent_sessions(options.sessions, options.turns, options.seed)


async def _run_rows(options: argparse.Namespace, console: Console) -> int:
    """The row path alone; the exit status."""
    _end_on_signals()
    with _work_directory(options.keep, console) as work, Show(console) as show:
        cases = await run_rows(work, options.seed, show, quick=options.quick)
    complaints = rows_report.verdict(cases)
    console.print(*rows_report.tables_of(cases), cases[0].results()[1].budget, highlight=False)
    _complain(complaints, console)
    if not complaints:
        count = sum(len(tokens) for case in cases for tokens in case.results()[1].tokens)
        console.print(f"[bold green]identical:[/] all {count} generated tokens, and every bit of their logits")
    _write_figures(options.json, {"rows": [case.figures() for case in cases], "complaints": complaints})
    return 1 if complaints else 0


async def _run_sweep(options: argparse.Namespace, console: Console) -> int:
    """All-resident beside tiered; the exit status."""
    _end_on_signals()
    with _work_directory(options.keep, console) as work, Show(console) as show:
        points = await run_sweep(work, options.seed, show)
    complaints = sweep_report.verdict(points)
    console.print(sweep_report.table_of(points), points[-1].tiered.budget, highlight=False)
    sweep_report.plot(points, options.plot)
    console.print(f"plotted: {options.plot}", highlight=False, soft_wrap=True)
    _complain(complaints, console)
    _write_figures(options.json, {"sweep": sweep_report.figures(points), "complaints": complaints})
    return 1 if complaints else 0


async def _run(options: argparse.Namespace, sessions: list[list[Turn]], console: Console) -> list[Phase]:
    """Start what the demo needs, play it, and end every process whatever happens."""
    _end_on_signals()
    async with contextlib.AsyncExitStack() as stack:
        work = stack.enter_context(_work_directory(options.keep, console))
        show = stack.enter_context(Show(console))
        daemon = Daemon(work)
        workers = [Worker(f"worker-{number}", work) for number in range(options.workers)]
        s3 = S3Server(work / "s3")
        stack.callback(s3.stop)  # the last to end: a daemon that drains still writes there
        for child in (daemon, *workers):
            stack.push_async_callback(child.stop)
        for worker in workers:
            await worker.begin("demo.worker", daemon.socket, options.seed)
        s3.start()  # while the workers build their models
        daemon.configure(s3, working_set_blocks(sessions) * ModelShape().geometry("").block_bytes)
        await asyncio.gather(*(worker.ready() for worker in workers))
        reuse = block_reuse(sessions)
        show.say(f"{len(workers)} workers and an S3 server run; {len(sessions)} sessions, {reuse:.1%} block reuse")
        phases: list[Phase] = []
        try:
            phases = await Demo(sessions, workers, daemon, show).run()
        finally:
            if not phases or verdict(phases):
                tail = f"the daemon's log ends with:\n{daemon.log_tail()}"
                console.print(tail, highlight=False, markup=False, soft_wrap=True)
        return phases
    raise AssertionError("an exit stack that suppresses nothing does not end here")


def _end_on_signals() -> None:
    """Let Ctrl-C and SIGTERM cancel the run, whose exits end every process."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@contextlib.contextmanager
def _work_directory(keep: bool, console: Console) -> Iterator[Path]:
    """Where everything of the run lies; its path is short enough for the name of a socket."""
    work = Path(tempfile.mkdtemp(prefix="flexkv-demo-"))
    try:
        yield work
    finally:
        if keep:
            console.print(f"kept: {work}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(work, ignore_errors=True)


def _conclude(phases: Sequence[Phase], complaints: Sequence[str], console: Console) -> None:
    console.print(table_of(phases), link_table_of(phases))
    _complain(complaints, console)
    if not complaints:
        count = sum(len(one.result.tokens) for phase in phases for one in phase.served)
        console.print(f"[bold green]identical:[/] all {count} generated tokens, and every bit of their logits")


def _complain(complaints: Sequence[str], console: Console) -> None:
    for complaint in complaints:
        console.print(f"[bold red]failed:[/] {complaint}", highlight=False, soft_wrap=True)


def _write_figures(path: Path | None, figures: dict[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
