"""`flexkv selections`: writes generated selections to a file, or says how local generated or recorded ones are.

Owns the command line and what is printed; `flexkvd.selections` does the work.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkvd.cli.arguments import counts, positive, share, whole, writable_file
from flexkvd.cli.output import STANDARD_OUTPUT, note, results, shown, watched
from flexkvd.selections import PRESETS, Selection, Selections, Workload
from flexkvd.selections.exchange import count_selections, read_selections, write_lines, write_selections
from flexkvd.selections.statistics import Statistics, Summary

DESCRIPTION = """\
What a sparse-attention indexer selects, step by step: which K positions of the sequence each layer group
reads. Selections are generated with published statistics, or read from a recording.

  generate   write generated selections as JSON lines
  stats      how local generated or recorded selections are
"""

GENERATE = """\
Writes generated selections, one JSON object per step, request and layer group: request_id, layer_id,
step_idx, seq_len_current, selected_token_pos. Packed if the file's name ends in .gz. About 12 KB a line at
K = 2,048, 4 KB packed. A file appears when it is whole; a pipe is written to as it comes.
"""

STATS = """\
Says how local selections are: how much of a selection was also in earlier ones, what an exact LRU of H slots
hits and what the hot buffer does (the same, but of one step's rows those it found stay longer than those it
loaded), and how many of the sequence's pages are touched within a window of steps. Give a recording, or leave
it out and describe what is to be generated.
"""

EXAMPLES = """\
examples:
  flexkv selections stats --preset mid
  flexkv selections stats --preset good --tokens 1048576 --cluster 256 --steps 150
  flexkv selections stats recording.jsonl.gz --hot-slots 4096 --by-layer
  flexkv selections generate out.jsonl.gz --preset mid --groups 4 --layers-per-group 4 --steps 100
  flexkv selections generate out.jsonl.gz --requests 8 --turn-steps 64 --idle-steps 256 --topic-steps 40
"""

STANDARD_INPUT = Path("-")

WORKLOAD_OPTIONS = tuple(field.name for field in dataclasses.fields(Workload))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `selections` to the commands of `flexkv`."""
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": EXAMPLES}
    parser = commands.add_parser(
        "selections", help="generate what indexers select, or measure it", description=DESCRIPTION, **style
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    generate = actions.add_parser("generate", help="write generated selections", description=GENERATE, **style)
    generate.add_argument("file", type=writable_file, metavar="FILE", help="what to write; .gz: packed; -: stdout")
    add_workload(generate)
    generate.set_defaults(run=_generate)
    stats = actions.add_parser("stats", help="overlap, LRU hits, pages touched", description=STATS, **style)
    stats.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a recording; -: stdin (none: generated)")
    stats.add_argument(
        "--hot-slots",
        type=counts,
        default=(2048, 4096, 6144, 8192),
        metavar="H,H",
        help="sizes of the hot buffer (2048,4096,6144,8192)",
    )
    stats.add_argument("--page-tokens", type=positive, default=64, metavar="N", help="tokens of a page (%(default)s)")
    stats.add_argument("--by-layer", action="store_true", help="a line for each layer")
    for action in (generate, stats):
        action.add_argument(
            "--json", type=writable_file, metavar="FILE", help="write the figures as JSON, too; -: to stdout"
        )
    add_workload(stats)
    stats.set_defaults(run=_stats)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe generated selections; `chosen_workload` reads them."""
    group = parser.add_argument_group("what is generated")
    group.add_argument("--preset", choices=PRESETS, help="locality, from the least to the most (mid)")
    group.add_argument("--tokens", type=positive, metavar="N", help="of each sequence at its start (65536)")
    group.add_argument("--top-k", type=positive, metavar="K", help="positions selected in a step (2048)")
    group.add_argument("--steps", type=positive, metavar="N", help="of the engine (200)")
    group.add_argument("--cluster", type=positive, metavar="N", help="tokens over which scores are smoothed (1)")
    group.add_argument("--requests", type=positive, metavar="N", help="interleaved (1)")
    group.add_argument("--groups", type=positive, metavar="N", help="layer groups of each request (1)")
    group.add_argument("--layers-per-group", type=positive, metavar="N", help="layers that share a selection (1)")
    group.add_argument("--group-overlap", type=share, metavar="P", help="of a group with the one before it (0.85)")
    group.add_argument("--topic-steps", type=whole, metavar="N", help="steps between switches of topic (0: none)")
    group.add_argument("--topic-share", type=share, metavar="P", help="of the drift drawn afresh at a switch (0.5)")
    group.add_argument("--turn-steps", type=whole, metavar="N", help="steps of a turn (0: turns have no end)")
    group.add_argument("--idle-steps", type=whole, metavar="N", help="engine steps between two turns (0)")
    group.add_argument("--seed", type=whole, metavar="N", help="of all chance (0)")


def chosen_workload(chosen: argparse.Namespace) -> Workload:
    """The workload that the options describe. Raises FlexKVError where they contradict each other."""
    given = {name: getattr(chosen, name) for name in WORKLOAD_OPTIONS if getattr(chosen, name) is not None}
    if "preset" in given:
        given["preset"] = PRESETS[given["preset"]]
    return Workload(**given)


def recorded(path: Path) -> Iterator[Selection]:
    """The selections of a recording, with a progress bar. How long a pipe is, is not known: it is read only once."""
    path = Path("/dev/stdin") if path == STANDARD_INPUT else path
    total = count_selections(path) if watched() and path.is_file() else None
    return shown(read_selections(path), "selections", total)


def _generate(chosen: argparse.Namespace) -> int:
    if chosen.file == chosen.json:
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, f"FILE and --json are both {chosen.file}: name two")
    with results(chosen.json) as write:
        write(_generated(chosen))
    return 0


def _generated(chosen: argparse.Namespace) -> dict[str, object]:
    selections = Selections(chosen_workload(chosen))
    started = time.perf_counter()
    watched_selections = shown(selections, "selections", len(selections))
    if chosen.file == STANDARD_OUTPUT:
        count = write_lines(sys.stdout.buffer, watched_selections)
    else:
        count = write_selections(chosen.file, watched_selections)
    seconds = time.perf_counter() - started
    size = chosen.file.stat().st_size if chosen.file.is_file() else None
    figures = {"file": str(chosen.file), "selections": count, "bytes": size, "seconds": seconds}
    said = f"{count:,} selections, {seconds:.1f} s ({count / seconds:,.0f}/s)"
    if size is None:
        note(said)  # standard output may be the very pipe
    else:
        print(f"{chosen.file}: {said}, {size:,} bytes")
    return figures


def _stats(chosen: argparse.Namespace) -> int:
    with results(chosen.json) as write:
        write(_figures(chosen))
    return 0


def _figures(chosen: argparse.Namespace) -> dict[str, object]:
    statistics = Statistics(chosen.hot_slots, chosen.page_tokens)
    if chosen.file is None:
        generated = Selections(chosen_workload(chosen))
        statistics.add_all(shown(generated, "selections", len(generated)))
    else:
        _refuse_workload(chosen)
        statistics.add_all(recorded(chosen.file))
    summaries = {"all": statistics.summary()}
    _print_list(summaries["all"])
    if chosen.by_layer:
        layers = {f"layer {layer}": statistics.summary(layer) for layer in statistics.layers}
        _print_lines(layers)
        summaries |= layers
    return {name: dataclasses.asdict(summary) for name, summary in summaries.items()}


def _refuse_workload(chosen: argparse.Namespace) -> None:
    given = [f"--{name.replace('_', '-')}" for name in WORKLOAD_OPTIONS if getattr(chosen, name) is not None]
    if given:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT, f"{given[0]} does nothing for a recording: leave it out, or leave the file out"
        )


def _measures(summary: Summary, overlap: str, hits: str, buffer: str, pages: str, group: str) -> dict[str, str]:
    """What is printed of a summary: words → figure, in the words given."""
    return {
        "selections": f"{summary.selections:,}",
        **{overlap.format(lag): _percent(share) for lag, share in summary.overlaps.items()},
        **{hits.format(slots): _percent(share) for slots, share in summary.hit_rates.items()},
        **{buffer.format(slots): _percent(share) for slots, share in summary.buffer_hit_rates.items()},
        **{pages.format(window): _percent(share) for window, share in summary.pages_touched.items()},
        group: _percent(summary.group_overlap),
    }


def _print_list(summary: Summary) -> None:
    words = (
        "overlap, lag {}",
        "LRU hits, {} slots",
        "hot buffer hits, {} slots",
        "pages touched, steps: {}",
        "overlap with the group before",
    )
    for name, figure in _measures(summary, *words).items():
        print(f"{name:30}{figure:>10}")


def _print_lines(summaries: dict[str, Summary]) -> None:
    """A line for each, for layers are many; the headings are short forms of those of the list."""
    lines = {
        name: _measures(summary, "lag {}", "LRU {}", "hot {}", "pages {}", "group")
        for name, summary in summaries.items()
    }
    print(" " * 10, *(f"{words:>7}" for words in next(iter(lines.values()))))
    for name, figures in lines.items():
        print(f"{name:10}", *(f"{figure:>{max(7, len(words))}}" for words, figure in figures.items()))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
