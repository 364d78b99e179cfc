"""Resets that are not carried out yet, written down so that a restart goes on with them.

Owns one small file; knows nothing of tiers. A reset while S3 is down may wait for hours, and without this a
restart meanwhile would find the dropped blocks in the bucket again and serve them. Used by `resets`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
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
    """The file in `directory`; there is none while no reset is outstanding.

    Each change replaces it as a whole: written, synced, renamed, and the name synced.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory, if need be, and read what the last life left, for this one to end. Raises FlexKVError."""
        self._path = directory / FILE_NAME
        self._writing = asyncio.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.left_over = _read(self._path)
        except OSError as error:
            raise FlexKVError(
                ErrorCode.DIRECTORY_NOT_WRITABLE,
                f"cannot use {directory} to keep outstanding resets ({error.strerror}): make it a directory the "
                "daemon's user may write, or name another as daemon.state_directory",
            ) from error
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
            await asyncio.to_thread(_replace, self._path, names)


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


def _replace(path: Path, names: list[str]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    if names:
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(_Content(FORMAT, VERSION, names)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    else:
        path.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
