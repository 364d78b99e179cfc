"""`flexkv replay --selections`: what row policies cost on generated or recorded selections.

Owns the options, the progress bars and what is printed; `flexkvd.rowreplay` does the work.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.arguments import dram_room, positive, positive_size, whole
from flexkvd.cli.output import shown
from flexkvd.cli.selections import WORKLOAD_OPTIONS, add_workload, chosen_workload, recorded
from flexkvd.rowreplay.link import LinkSpeed
from flexkvd.rowreplay.needs import TOKENS_PER_BLOCK, RequestNeeds, needs_of
from flexkvd.rowreplay.run import ROW_POLICIES, Result, chunks_in_all, play, result_of
from flexkvd.rowreplay.world import WorldRules
from flexkvd.selections import PRESETS, Selection, Selections, Workload


@dataclass(frozen=True)
class RowOptions:
    """Options of this module, beside those of a workload, and their defaults."""

    hot_slots: int = 4096
    dram: float | int = 0.5
    """A share of all chunks, or so many."""
    chunk_bytes: int = 384 << 10
    ssd_speed: int = 3_000_000_000
    """Bytes per second."""
    ssd_latency_us: int = 200
    step_ms: int = 25
    report_steps: int = 16
    report_entries: int = 4096
    notice_steps: int = 4
    prefill_steps: int = 64


OPTION_NAMES = tuple(option.name for option in dataclasses.fields(RowOptions))

COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "absents": lambda result: result.absents_per_step,
    "failed": lambda result: result.failed_per_step,
    "ticks": lambda result: result.ticks_per_step,
    "reads": lambda result: result.reads_per_step,
    "ahead": lambda result: result.reads_ahead_per_step,
    "MB read": lambda result: result.read_bytes_per_step / 1e6,
    "HBM %": lambda result: 100 * result.hbm_hits,
    "DRAM %": lambda result: None if result.dram_hits is None else 100 * result.dram_hits,
    "right %": lambda result: None if result.guesses_used is None else 100 * result.guesses_used,
    "turn": lambda result: result.ticks_per_turn_start,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `--selections` needs to the parser of `flexkv replay`."""
    group = parser.add_argument_group("selections, against row policies alone")
    group.add_argument("--selections", metavar="PRESET|FILE", help=f"{', '.join(PRESETS)}, or JSON lines")
    group.add_argument("--hot-slots", type=positive, metavar="H", help="rows in HBM per request and layer group (4096)")
    group.add_argument("--dram", type=dram_room, metavar="P%|N", help="of all chunks, or so many (50%%)")
    group.add_argument(
        "--chunk-bytes", type=positive_size, metavar="SIZE", help="of one group's chunk of a block (384KiB)"
    )
    group.add_argument("--ssd-speed", type=positive_size, metavar="SIZE", help="bytes per second of the link (3GB)")
    group.add_argument("--ssd-latency-us", type=whole, metavar="N", help="of a read (200)")
    group.add_argument("--step-ms", type=positive, metavar="N", help="of one decode step (25)")
    group.add_argument("--report-steps", type=positive, metavar="N", help="from report to report (16)")
    group.add_argument("--report-entries", type=positive, metavar="N", help="in a report at most (4096)")
    group.add_argument("--notice-steps", type=whole, metavar="N", help="from a turn's attach to its first step (4)")
    group.add_argument("--prefill-steps", type=whole, metavar="N", help="steps only told, before the first (64)")
    add_workload(parser)


def given_options(chosen: argparse.Namespace) -> list[str]:
    """Options of selections that were given, as typed."""
    names = (*OPTION_NAMES, *WORKLOAD_OPTIONS)
    return [f"--{name.replace('_', '-')}" for name in names if getattr(chosen, name) is not None]


def run_rows(chosen: argparse.Namespace, policies: list[str]) -> dict[str, object]:
    """Run every policy over the same selections, print the table, and return it. Raises FlexKVError for bad input."""
    _check(policies)
    given = {name: getattr(chosen, name) for name in OPTION_NAMES if getattr(chosen, name) is not None}
    options = RowOptions(**given)
    started = time.perf_counter()
    workload = _described_workload(chosen)
    if workload is None:
        selections = recorded(Path(chosen.selections))
    else:
        selections = shown(Selections(workload), "selections", workload.count())
    needs = needs_of(_fitting(selections, options.hot_slots), options.hot_slots)
    rules = _rules(options, needs)
    chunks = chunks_in_all(needs)
    print(
        f"{chosen.selections}: {len(needs)} requests, {sum(len(each.steps) for each in needs):,} steps, "
        f"{chunks:,} chunks, {rules.room_chunks:,} in DRAM; {rules.speed.chunks_per_tick:.3g} reads a step at most"
    )
    print("per step of one request" + "".join(f"{name:>9}" for name in COLUMNS))
    results: dict[str, Result] = {}
    for policy in policies:
        watch = partial(shown, what=policy, total=_steps_to_play(needs, rules))
        result = results[policy] = result_of(play(needs, policy, rules, watch), options.chunk_bytes)
        figures = (column(result) for column in COLUMNS.values())
        print(f"{policy:23}" + "".join(f"{'–' if each is None else f'{each:.2f}':>9}" for each in figures))
    _print_guesses(results)
    print(f"{time.perf_counter() - started:.1f} s")
    figures_of = {policy: dataclasses.asdict(result) for policy, result in results.items()}
    described = None if workload is None else dataclasses.asdict(workload)
    head = {"selections": chosen.selections, "workload": described, **dataclasses.asdict(options)}
    return {**head, "chunks": chunks, "policies": figures_of}


def _check(policies: list[str]) -> None:
    unknown = [policy for policy in policies if policy not in ROW_POLICIES]
    if unknown:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"--policy {unknown[0]!r} does not order rows: with --selections choose from {', '.join(ROW_POLICIES)}",
        )


def _described_workload(chosen: argparse.Namespace) -> Workload | None:
    """What is to be generated; None for a recording. Raises FlexKVError for options that do nothing."""
    if chosen.preset is not None:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, f"--preset is said by --selections: write --selections {chosen.preset} alone"
        )
    if chosen.selections in PRESETS:
        return chosen_workload(argparse.Namespace(**vars(chosen) | {"preset": chosen.selections}))
    given = [name for name in WORKLOAD_OPTIONS if getattr(chosen, name) is not None]
    if given:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"--{given[0].replace('_', '-')} does nothing for a recording: leave it out, or name a preset",
        )
    return None


def _fitting(selections: Iterable[Selection], hot_slots: int) -> Iterator[Selection]:
    """The selections. Raises FlexKVError (`bad_argument`) at the first that no hot buffer of this size could serve."""
    for each in selections:
        if each.positions.size > hot_slots:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"--hot-slots {hot_slots}: request {each.request!r}, layer {each.layer} selects {each.positions.size} "
                f"positions in step {each.step}, and a step needs a slot for each: give at least as many",
            )
        yield each


def _rules(options: RowOptions, needs: list[RequestNeeds]) -> WorldRules:
    chunks = chunks_in_all(needs)
    if not chunks:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"no sequence has a full block of {TOKENS_PER_BLOCK} tokens, so nothing is ever read: give longer ones",
        )
    dram, prefill, step_s = options.dram, options.prefill_steps, options.step_ms / 1e3
    shortest = min(len(each.steps) for each in needs)
    if shortest <= prefill:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"a request has {shortest} steps, and --prefill-steps {prefill} only warm up: give more, or fewer of these",
        )
    room = int(dram * chunks) if isinstance(dram, float) else dram
    most = max(sum(group.needed.size for group in step.groups) for each in needs for step in each.steps)
    if room < most:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"--dram is room for {room:,} chunks, and one step of a request needs {most:,}: give more of it, more "
            "--hot-slots, or for a preset a --cluster",
        )
    return WorldRules(
        room_chunks=min(room, chunks),
        speed=LinkSpeed(
            chunks_per_tick=options.ssd_speed * step_s / options.chunk_bytes,
            latency_ticks=max(1, math.ceil(options.ssd_latency_us / 1e6 / step_s)),
        ),
        tick_ns=options.step_ms * 1_000_000,
        report_steps=options.report_steps,
        report_entries_max=options.report_entries,
        notice_ticks=options.notice_steps,
        prefill_steps=prefill,
    )


def _steps_to_play(needs: list[RequestNeeds], rules: WorldRules) -> int:
    return sum(len(each.steps) - rules.prefill_steps for each in needs)


def _print_guesses(results: dict[str, Result]) -> None:
    for policy, result in results.items():
        for reason, count in result.predicted.items():
            print(f"{policy}: {reason} predicted {count:,}, {result.came_true.get(reason, 0):,} seen to come true")
        if result.nothing_is_cold is not None:
            print(f"{policy}: {result.nothing_is_cold:.0%} of the ticks it found that nothing is cold")
