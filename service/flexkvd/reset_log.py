"""Resets that are not carried out yet, written down so that a restart goes on with them.

Owns one small file, the same in each of its directories; knows nothing of tiers. A reset while S3 is down may
wait for hours, and without this a restart meanwhile would find the dropped blocks in the bucket again and serve
them. Used by `resets`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import NAMESPACE_BYTES, NamespaceDigest

FILE_NAME = "flexkv.resets"
FORMAT = "flexkv-resets"
VERSION = 1


class _Content(msgspec.Struct):
    """What stands in the file: namespaces as hex digits."""

    format: str
    version: int
    namespaces: list[str]


class ResetLog:
    """The file in each of `directories`; there is none while no reset is outstanding.

    Each change replaces it as a whole: written, synced, renamed, and the name synced. What any directory
    has counts: the others may have been missing, and reset once too often is a miss at worst.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        """Make the directories, if need be, and read what the last life left for us to end. Raises FlexKVError."""
        assert directories
        self._paths = [directory / FILE_NAME for directory in directories]
        self._writing = asyncio.Lock()
        self.left_over = list(dict.fromkeys(name for directory in directories for name in _left_in(directory)))
        self._outstanding = Counter(self.left_over)

    async def begin(self, namespace: NamespaceDigest) -> None:
        """When it returns, the next life will know of this reset. Raises OSError."""
        self._outstanding[namespace] += 1
        await self._write()

    async def end(self, namespace: NamespaceDigest) -> None:
        """Nothing is left to be reset. Raises OSError; the next life would then reset once more."""
        self._outstanding[namespace] -= 1
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            names = sorted(each.hex() for each, count in self._outstanding.items() if count)
            await asyncio.to_thread(_replace_all, self._paths, names)


def _left_in(directory: Path) -> list[NamespaceDigest]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _read(directory / FILE_NAME)
    except OSError as error:
        raise FlexKVError(
            ErrorCode.DIRECTORY_NOT_WRITABLE,
            f"cannot use {directory} to keep outstanding resets ({error.strerror}): make it a directory the "
            "daemon's user may write, or name another as daemon.state_directory",
        ) from error


def _read(path: Path) -> list[NamespaceDigest]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    with suppress(msgspec.DecodeError, ValueError):
        content = msgspec.json.decode(raw, type=_Content)
        found = [bytes.fromhex(each) for each in content.namespaces]
        if (content.format, content.version) == (FORMAT, VERSION) and all(len(e) == NAMESPACE_BYTES for e in found):
            return [NamespaceDigest(each) for each in found]
    raise FlexKVError(
        ErrorCode.DIRECTORY_FOREIGN,
        f"{path} is no list of resets of this version: blocks that were reset could be served again, so put the file "
        "back as it was, or remove it and repeat the resets",
    )


def _replace_all(paths: Sequence[Path], names: list[str]) -> None:
    """Raises the last OSError, once all have been tried."""
    failure: OSError | None = None
    for path in paths:
        try:
            _replace(path, names)
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure


def _replace(path: Path, names: list[str]) -> None:
    if names:
        replace_file(path, msgspec.json.encode(_Content(FORMAT, VERSION, names)))
    else:
        path.unlink(missing_ok=True)
        _sync_name(path)


def replace_file(path: Path, raw: bytes) -> None:
    """Have a file hold these bytes instead of what it held: after a crash it has either, whole. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_name(path)


def _sync_name(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
