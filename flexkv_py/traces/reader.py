"""Opens a trace file: plain or gzip, Mooncake or WEKA, found out by looking.

Owns the choice of the format; files and their lines are read by `lines`, the formats themselves are in
`mooncake` and `weka`. Called by `flexkv replay`, the demo and the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces.lines import JsonLines
from flexkv_py.traces.mooncake import MooncakeLine, mooncake_requests
from flexkv_py.traces.request import TraceRequest
from flexkv_py.traces.weka import WekaLine, weka_requests

FORM = "in Mooncake or WEKA form"


class _Fields(msgspec.Struct):
    """Only what tells the formats apart."""

    hash_ids: object = None
    runs: object = None


def open_trace(path: Path, tokens_per_block: int = 512) -> Iterator[TraceRequest]:
    """Requests of the trace at `path` in order of arrival, as blocks of `tokens_per_block` tokens.

    Raises FlexKVError: `bad_trace` with file, line and cause, now or while iterating; `bad_argument`
    for a block size that the trace cannot give.
    """
    file = JsonLines(path, FORM)
    lines = file.raw()
    first = next(lines, b"")
    lines.close()
    if not first:
        raise FlexKVError(ErrorCode.BAD_TRACE, f"{path} is empty: name a trace with at least one request")
    fields = file.decode(1, first, msgspec.json.Decoder(_Fields))
    if fields.hash_ids is not None:
        return mooncake_requests((line for _, line in file.decoded(MooncakeLine)), tokens_per_block)
    if fields.runs is not None:
        return weka_requests((line for _, line in file.decoded(WekaLine)), tokens_per_block)
    raise file.bad(1, "it has neither 'hash_ids' (Mooncake) nor 'runs' (WEKA), the two formats that list blocks")


def count_requests(path: Path) -> int:
    """Lines of the trace, for a progress bar. Raises FlexKVError (`bad_trace`) if it cannot be read."""
    return sum(1 for _ in JsonLines(path, FORM).raw())
