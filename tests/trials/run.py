"""`scripts/trials NAME [options]`: one trial by hand, at any size; its figures as a small table.

Exit status 1 when the trial failed; what the daemon logged is then at the end of the message. Exit status 2 for
an option that is not the trial's own, or a count that would show nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flexkvd.cli.s3server import S3Server

from .burst import burst
from .damage import CUTS
from .damaged_store import damage
from .endurance import endurance
from .flight_record import flight_record
from .garbage import garbage
from .gated_loads import gated_loads
from .kill_daemon import kill_daemon
from .kill_log import kill_log
from .kill_worker import kill_worker
from .many_blocks import many_blocks
from .memories import deaf, holes, refused_offers
from .operate import operate
from .row_workers import row_workers
from .s3_faults import s3_faults
from .s3_frozen import s3_frozen
from .scrape import scrape
from .shared_bucket import shared_bucket
from .tenants import tenants

Figures = dict[str, float]


@dataclass(frozen=True)
class Count:
    """What a trial may be asked for: fewer would show nothing, more it has no room for."""

    default: int
    least: int = 1
    most: int = 1 << 31
    step: int = 1

    def read(self, text: str) -> int:
        """The number in `text`. Raises ArgumentTypeError that says what would do."""
        value = int(text) if text.isascii() and text.isdecimal() else -1
        if not self.least <= value <= self.most or value % self.step:
            of = f", a multiple of {self.step}" if self.step > 1 else ""
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {self.least} to {self.most}{of}")
        return value


SEED = Count(1, least=0)


@dataclass(frozen=True)
class Trial:
    """How a trial is called; `options` are its own, with the default a person wants."""

    run: Callable[..., Figures]
    says: str
    options: dict[str, Count]


def bursts(folder: Path, *, dram_mib: int) -> Figures:
    """Both admissions, and a deadline too short for all."""
    figures: Figures = {}
    for name, options in {
        "always": {},
        "second-use": {"admission": "second-use"},
        "short deadline": {"deadline_s": 0.1},
    }.items():
        (folder / name).mkdir()
        part = burst(folder / name, dram_mib=dram_mib, **{"deadline_s": 60.0} | options)
        figures |= {f"{name}: {each}": figure for each, figure in part.items()}
    return figures


def damages(folder: Path) -> Figures:
    """Every damage, on SSD and in S3, under a stopped and a running daemon."""
    figures: Figures = {}
    with S3Server(folder / "server") as server:
        for running in (False, True):
            state = "running" if running else "stopped"
            for at, cut in enumerate(CUTS):
                (place := folder / f"ssd-{state}-{at}").mkdir()
                part = damage(place, running=running, cut=cut, in_place=at == 0)
                figures |= {f"ssd, {state}, cut {cut}: {each}": figure for each, figure in part.items()}
            (place := folder / f"s3-{state}").mkdir()
            part = damage(place, server, running=running)
            figures |= {f"s3, {state}: {each}": figure for each, figure in part.items()}
    return figures


def memories(folder: Path, *, rounds: int, workers: int) -> Figures:
    """Everything hostile about memory, and workers that do not read."""
    places = [folder / name for name in ("offers", "holes", "deaf")]
    for place in places:
        place.mkdir()
    return refused_offers(places[0]) | holes(places[1], rounds=rounds) | deaf(places[2], workers=workers)


TRIALS = {
    "burst": Trial(bursts, "3 × DRAM saved at once by several clients", {"dram_mib": Count(64, least=4, step=4)}),
    "kill-worker": Trial(
        kill_worker, "SIGKILL of workers with leases, tickets and memory", {"repetitions": Count(20), "seed": SEED}
    ),
    "row-workers": Trial(
        row_workers,
        "SIGKILL of row-path workers in mid-step",
        {"kills": Count(20), "workers": Count(3, most=64), "seed": SEED},
    ),
    "kill-daemon": Trial(
        kill_daemon, "SIGKILL of the daemon during saves, and restart", {"cycles": Count(50), "seed": SEED}
    ),
    "gated-loads": Trial(
        gated_loads, "SIGKILL and SIGSTOP of the daemon under many gated loads", {"cycles": Count(10), "seed": SEED}
    ),
    "kill-log": Trial(
        kill_log, "SIGKILL while the SSD log seals, reclaims and rewrites", {"cycles": Count(200), "seed": SEED}
    ),
    "many-blocks": Trial(
        many_blocks,
        "very many small records on SSD, SIGKILL and start",
        {"blocks": Count(1_000_000, most=1_900_000), "reads": Count(10_000), "seed": SEED},
    ),
    "damage": Trial(damages, "records damaged on SSD and in S3", {}),
    "garbage": Trial(
        garbage, "hostile messages beside a working client", {"messages": Count(20_000, least=1_000), "seed": SEED}
    ),
    "s3-faults": Trial(
        s3_faults,
        "a daemon whose S3 misbehaves in every way, behind a proxy",
        {"outage_s": Count(30), "fault_s": Count(8)},
    ),
    "flight-record": Trial(
        flight_record,
        "a faulty life, recorded, and its dump replayed to the same state",
        {"rounds": Count(10), "seed": SEED},
    ),
    "s3-frozen": Trial(s3_frozen, "S3 accepts and never answers, under default timeouts", {"quiet_s": Count(8)}),
    "scrape": Trial(
        scrape,
        "what /metrics costs after very many tenants, beside a busy worker",
        {"tenants": Count(1_000, most=10_000), "scrapes": Count(100, most=300)},
    ),
    "shared-bucket": Trial(
        shared_bucket,
        "two daemons on one bucket, one killed",
        {"blocks": Count(10_000, least=64), "kills": Count(10), "seed": SEED},
    ),
    "tenants": Trial(
        tenants,
        "two tenants, one flooding: the other hits as if it were alone, and quotas hold",
        {"requests": Count(3_000, least=200), "quota_blocks": Count(256, least=64, step=64), "seed": SEED},
    ),
    "endurance": Trial(
        endurance,
        "a small SSD written many times over by coding sessions",
        {"records": Count(5_000, least=256), "times": Count(20), "amplification": Count(0, least=0, most=10)},
    ),
    "operate": Trial(
        operate, "reload, drain, SIGTERM and a stuck loop under load, acknowledged at ssd and s3", {"rounds": Count(5)}
    ),
    "memories": Trial(
        memories, "hostile memories, and workers that read no reply", {"rounds": Count(200), "workers": Count(8)}
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the named trial in a folder of its own; the exit status is 1 when it failed."""
    given = vars(_parser().parse_args(arguments))
    name = given.pop("name", None)
    if given.pop("list") or name is None:
        Console().print(_list())
        return 0
    trial, options, console = TRIALS[name], given, Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="trial-") as folder, console.status(f"{name}: {trial.says}"):
            figures = trial.run(Path(folder), **options)
    except AssertionError as failure:
        console.print(f"{name} failed: {failure}", style="red", markup=False)
        return 1
    table = Table("figure", "value", title=f"{name}: {trial.says}")
    table.columns[1].justify = "right"
    for figure, value in figures.items():
        table.add_row(figure, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    Console().print(table)
    return 0


def _list() -> Table:
    table = Table("trial", "what", "options")
    for name, trial in TRIALS.items():
        table.add_row(name, trial.says, " ".join(_flag(option) for option in trial.options))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/trials",
        description="Run one trial over real processes.",
        epilog="FLEXKV_TRACES names the folder of the published traces (default: shared/traces beside the repository); "
        "`endurance` needs them.",
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    names = parser.add_subparsers(
        dest="name", metavar="NAME", help="which (none: as --list); NAME --help for its options"
    )
    for name, trial in TRIALS.items():
        own = names.add_parser(name, help=trial.says, description=trial.says, allow_abbrev=False)
        for option, count in trial.options.items():
            says = f"default {count.default}, at least {count.least}"
            own.add_argument(_flag(option), dest=option, type=count.read, default=count.default, metavar="N", help=says)
    return parser


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


if __name__ == "__main__":
    sys.exit(main())
