"""Files of JSON lines, plain or gzip, read as typed lines one after the other.

Owns files, line numbers and the sentences about bad lines; what a line means is the format's own business.
Called by the readers of request traces and of selections.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError

LINE_BYTES_MAX = 16 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"

Line = TypeVar("Line")


@dataclass(frozen=True)
class JsonLines:
    """One file and, for what is said of its bad lines, the form they should have (`in Mooncake form`)."""

    path: Path
    form: str

    def raw(self) -> Generator[bytes, None, None]:
        """Lines of the file, unpacked if it begins like a gzip file, whatever its name. Raises FlexKVError."""
        number = 0
        try:
            with self.path.open("rb") as raw:
                packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)  # a pipe cannot go back
                file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
                while line := file.readline(LINE_BYTES_MAX + 1):
                    number += 1
                    if len(line) > LINE_BYTES_MAX:
                        raise self.bad(number, f"it is longer than {LINE_BYTES_MAX} bytes")
                    yield line
        except OSError as error:
            if error.errno is None:  # gzip's own
                raise self._damaged(number + 1, error) from error
            raise FlexKVError(
                ErrorCode.BAD_TRACE, f"{self.path} cannot be read ({error.strerror}): name a readable trace file"
            ) from error
        except (EOFError, zlib.error) as error:  # a truncated gzip file ends in EOFError
            raise self._damaged(number + 1, error) from error

    def decoded(self, line_type: type[Line]) -> Iterator[tuple[int, Line]]:
        """Lines and their numbers, from 1. Raises FlexKVError (`bad_trace`) at the first that is no `line_type`."""
        decoder = msgspec.json.Decoder(line_type)
        for number, line in enumerate(self.raw(), start=1):
            yield number, self.decode(number, line, decoder)

    def decode(self, number: int, line: bytes, decoder: msgspec.json.Decoder[Line]) -> Line:
        if not line.strip():
            raise self.bad(number, "it is empty")
        try:
            return decoder.decode(line)
        except RecursionError as error:
            raise self.bad(number, "it is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
            raise self.bad(number, str(error)) from error

    def _damaged(self, number: int, error: Exception) -> FlexKVError:
        return FlexKVError(
            ErrorCode.BAD_TRACE,
            f"{self.path}:{number}: it cannot be read ({str(error).rstrip('.')}), so the packed file is torn or "
            "damaged: copy or record it again",
        )

    def bad(self, number: int, cause: str) -> FlexKVError:
        """What is to be raised for line `number`: its place, the cause, the cure."""
        return FlexKVError(
            ErrorCode.BAD_TRACE,
            f"{self.path}:{number}: {cause}. Every line must be one JSON object {self.form}; mend or remove the line",
        )
