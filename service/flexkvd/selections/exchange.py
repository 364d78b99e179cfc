"""Selections as files: the JSON lines in which recorded selections are exchanged, plain or gzip.

One line per step, request and layer: `request_id, layer_id, step_idx, seq_len_current, selected_token_pos`;
other fields are passed over, as a recorder adds its own. Owns the format and what is refused of it. Called by
`flexkv selections` and whoever reads a recording.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, cast

import msgspec
import numpy as np

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces.lines import JsonLines
from flexkvd.selections.workload import LAYERS_MAX, TOKENS_MAX, Selection

PADDING = -1
"""What engines write behind a row that is shorter than K."""

STEP_MAX = 2**53
"""The largest whole number that every JSON reader understands."""

STREAMS_MAX = 1 << 20
"""Pairs of request and layer in one file whose last step is remembered: about 100 MB."""

GZIP_LEVEL = 3
"""Packs to a third; level 6 saves a fifth of that and takes three times as long."""


NAME_CHARACTERS_MAX = 256
"""Of a request's name: it is remembered with its last step, and said in errors."""

FORM = "that tells one layer's selection in one step"


class SelectionLine(msgspec.Struct):
    """One line of a file of selections. The names in the file are those of the first public recorder."""

    request: int | Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = msgspec.field(name="request_id")
    layer: Annotated[int, msgspec.Meta(ge=0, lt=LAYERS_MAX)] = msgspec.field(name="layer_id")
    step: Annotated[int, msgspec.Meta(ge=0, le=STEP_MAX)] = msgspec.field(name="step_idx")
    token_count: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)] = msgspec.field(name="seq_len_current")
    positions: list[Annotated[int, msgspec.Meta(ge=PADDING, lt=TOKENS_MAX)]] = msgspec.field(name="selected_token_pos")


def read_selections(path: Path) -> Iterator[Selection]:
    """Selections of the file in its order, one line at a time.

    Raises FlexKVError (`bad_trace`), now or while iterating, with file, line and cause: no such line, a position
    beyond the sequence or selected twice, a step of a request and layer that does not come after the one before;
    `limit_exceeded` for more than STREAMS_MAX requests times layers.
    """
    file = JsonLines(path, FORM)
    last_steps: dict[tuple[int | str, int], int] = {}
    for number, line in file.decoded(SelectionLine):
        stream = line.request, line.layer
        last = last_steps.get(stream, -1)
        if line.step <= last:
            raise file.bad(
                number,
                f"step {line.step} of request {line.request!r}, layer {line.layer}, comes after step "
                f"{last}: steps of a request and layer must rise, and requests need ids of their own",
            )
        last_steps[stream] = line.step
        if len(last_steps) > STREAMS_MAX:
            raise FlexKVError(
                ErrorCode.LIMIT_EXCEEDED,
                f"{path}:{number}: more than {STREAMS_MAX} requests times layers: split the file by requests",
            )
        yield _selection(file, number, line)
    if not last_steps:
        raise FlexKVError(ErrorCode.BAD_TRACE, f"{path} is empty: name a file with at least one selection")


def count_selections(path: Path) -> int:
    """Lines of the file, for a progress bar. Raises FlexKVError (`bad_trace`) if it cannot be read."""
    return sum(1 for _ in JsonLines(path, FORM).raw())


def write_selections(path: Path, selections: Iterable[Selection]) -> int:
    """Write them as lines, packed if the name ends in `.gz`; how many they were.

    The file appears when it is whole: a run that is interrupted leaves what was there before. A pipe or a device is
    written to as it is, never replaced. Raises FlexKVError (`bad_argument`) if it cannot be written.
    """
    packed = path.suffix == ".gz"
    try:
        if path.exists() and not path.is_file():
            with _opened(path, packed=packed) as file:
                return write_lines(file, selections)
        return _write_whole(path.resolve(), selections, packed=packed)
    except BrokenPipeError:
        raise  # who reads has seen enough
    except OSError as error:
        cause = f"{path} cannot be written ({error.strerror}): name a file in a writable folder with room"
        raise FlexKVError(ErrorCode.BAD_ARGUMENT, cause) from error


def write_lines(file: IO[bytes], selections: Iterable[Selection]) -> int:
    """Write them as lines to an open file; how many they were."""
    encoder = msgspec.json.Encoder()
    count = 0
    for selection in selections:
        file.write(encoder.encode(_line(selection)) + b"\n")
        count += 1
    return count


def _write_whole(path: Path, selections: Iterable[Selection], *, packed: bool) -> int:
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with _opened(unfinished, packed=packed) as file:
            count = write_lines(file, selections)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if not packed:
            yield raw
            return
        # Neither name nor time of day within: equal selections make equal files.
        with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as file:
            yield cast(IO[bytes], file)


def _selection(file: JsonLines, number: int, line: SelectionLine) -> Selection:
    positions = np.array(line.positions, dtype=np.int32)
    positions = np.sort(positions[positions != PADDING])
    if not positions.size:
        raise file.bad(number, "it selects nothing")
    if positions[-1] >= line.token_count:
        raise file.bad(number, f"it selects position {positions[-1]} of a sequence of {line.token_count} tokens")
    twice = positions[1:][positions[1:] == positions[:-1]]
    if twice.size:
        raise file.bad(number, f"it selects position {twice[0]} twice")
    return Selection(line.step, line.request, line.layer, line.token_count, positions)


def _line(selection: Selection) -> SelectionLine:
    return SelectionLine(
        selection.request, selection.layer, selection.step, selection.token_count, selection.positions.tolist()
    )
