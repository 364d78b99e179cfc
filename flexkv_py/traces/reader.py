"""Opens a trace file: plain or gzip, Mooncake or WEKA, found out by looking.

Owns files, line numbers and the sentences about bad lines; the formats themselves are in `mooncake`
and `weka`. Called by `flexkv replay`, the demo and the tests.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.traces.mooncake import MooncakeLine, mooncake_requests
from flexkv_py.traces.request import TraceRequest
from flexkv_py.traces.weka import WekaLine, weka_requests

LINE_BYTES_MAX = 16 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"

Line = TypeVar("Line", MooncakeLine, WekaLine)


class _Fields(msgspec.Struct):
    """Only what tells the formats apart."""

    hash_ids: object = None
    runs: object = None


def open_trace(path: Path, tokens_per_block: int = 512) -> Iterator[TraceRequest]:
    """Requests of the trace at `path` in order of arrival, as blocks of `tokens_per_block` tokens.

    Raises FlexKVError: `bad_trace` with file, line and cause, now or while iterating; `bad_argument`
    for a block size that the trace cannot give.
    """
    lines = _lines(path)
    first = next(lines, b"")
    lines.close()
    if not first:
        raise FlexKVError(ErrorCode.BAD_TRACE, f"{path} is empty: name a trace with at least one request")
    fields = _decode(path, 1, first, msgspec.json.Decoder(_Fields))
    if fields.hash_ids is not None:
        return mooncake_requests(_decoded(path, MooncakeLine), tokens_per_block)
    if fields.runs is not None:
        return weka_requests(_decoded(path, WekaLine), tokens_per_block)
    raise _bad(path, 1, "it has neither 'hash_ids' (Mooncake) nor 'runs' (WEKA), the two formats that list blocks")


def count_requests(path: Path) -> int:
    """Lines of the trace, for a progress bar. Raises FlexKVError (`bad_trace`) if it cannot be read."""
    return sum(1 for _ in _lines(path))


def _decoded(path: Path, line_type: type[Line]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(line_type)
    for number, line in enumerate(_lines(path), start=1):
        yield _decode(path, number, line, decoder)


Decoded = TypeVar("Decoded")


def _decode(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
        raise _bad(path, number, str(error)) from error


def _lines(path: Path) -> Generator[bytes, None, None]:
    """Lines of the file, unpacked if it begins like a gzip file, whatever its name."""
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise _bad(path, number, f"it is longer than {LINE_BYTES_MAX} bytes")
                yield line
    except OSError as error:
        if error.errno is None:  # gzip's own
            raise _bad(path, number + 1, f"it cannot be read: {error}") from error
        raise FlexKVError(
            ErrorCode.BAD_TRACE, f"{path} cannot be read ({error.strerror}): name a readable trace file"
        ) from error
    except (EOFError, zlib.error) as error:  # a truncated gzip file ends in EOFError
        raise _bad(path, number + 1, f"it cannot be read: {error}") from error


def _bad(path: Path, number: int, cause: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.BAD_TRACE,
        f"{path}:{number}: {cause}. Every line must be one JSON object in Mooncake or WEKA form; "
        "mend or remove the line",
    )
