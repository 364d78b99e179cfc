"""Positional reads and writes between one file and aligned memory, past the page cache.

Owns the choice of the I/O path and the loops around short transfers; knows nothing of records. All
calls block and run on disk threads. Memory starts on 4 KiB and is a multiple of it long, and so is
every offset; frames of the arena are, so nothing is copied on the way.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flexkv_py.core.messages import Fault
from flexkv_py.geometry import ALIGN_BYTES
from flexkv_tiers.base import TierFault

RWF_DONTCACHE = 0x80  # linux/fs.h, since Linux 6.14; not among Python's constants

_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class IoPath(StrEnum):
    """How bytes reach the disk."""

    DIRECT = "direct"
    """O_DIRECT: the device reads and writes the frames themselves."""
    DONTCACHE = "dontcache"
    """Buffered, and the kernel drops the pages by itself (RWF_DONTCACHE)."""
    FADVISE = "fadvise"
    """Buffered, and this module asks to drop the pages after use (posix_fadvise)."""


@dataclass(frozen=True, slots=True)
class IoChoice:
    """The path in use and the sentence that says why."""

    path: IoPath
    reason: str


def choose_io_path(probe: Path, direct: bool) -> IoChoice:
    """Try the paths on a file `probe`, best first, and remove it. Raises OSError when it cannot be written."""
    why_not = "direct I/O is switched off by configuration"
    try:
        if direct:
            refusal = _try(probe, os.O_DIRECT, 0)
            if refusal is None:
                return IoChoice(IoPath.DIRECT, "the file system takes direct I/O")
            why_not = f"the file system refuses direct I/O ({os.strerror(refusal)})"
        refusal = _try(probe, 0, RWF_DONTCACHE)
        if refusal is None:
            return IoChoice(IoPath.DONTCACHE, f"{why_not}; buffered I/O that the kernel does not keep in its cache")
        why_not = f"{why_not}, and RWF_DONTCACHE too ({os.strerror(refusal)})"
        return IoChoice(IoPath.FADVISE, f"{why_not}; buffered I/O, pages dropped by posix_fadvise after use")
    finally:
        probe.unlink(missing_ok=True)


def _try(path: Path, open_flags: int, transfer_flags: int) -> int | None:
    """The errno with which the file system refuses these flags; None when it takes them."""
    page = mmap.mmap(-1, ALIGN_BYTES)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | open_flags, 0o600)
        try:
            os.pwritev(fd, [page], 0, transfer_flags)
            os.preadv(fd, [page], 0, transfer_flags)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return error.errno
        raise
    finally:
        page.close()
    return None


class DirectFile:
    """One open file; every transfer is whole or a TierFault."""

    def __init__(self, path: Path, io_path: IoPath, *, create_bytes: int = 0) -> None:
        """Open `path`, or create it with `create_bytes` allocated. Raises OSError; leaves no half-made file."""
        self.path = path
        self.deleted = False
        self._io_path = io_path
        self._transfer_flags = RWF_DONTCACHE if io_path is IoPath.DONTCACHE else 0
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if io_path is IoPath.DIRECT else 0)
        if not create_bytes:
            self._fd = os.open(path, flags)
            return
        self._fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, create_bytes)
        except OSError:
            os.close(self._fd)
            path.unlink()
            raise

    def read(self, targets: Sequence[memoryview], offset: int) -> None:
        """Fill `targets`, one after the other, from `offset` on. Raises TierFault IO, or CORRUPT at an early end."""
        todo = list(targets)
        at = offset
        while todo:
            try:
                done = os.preadv(self._fd, todo, at, self._transfer_flags)
            except OSError as error:
                raise self._fault(error, "read", at) from error
            if done == 0:
                raise TierFault(Fault.CORRUPT, f"{self.path.name} ends at byte {at}, within a record: it was cut off")
            at += done
            _advance(todo, done)
        if self._io_path is IoPath.FADVISE:
            os.posix_fadvise(self._fd, offset, at - offset, os.POSIX_FADV_DONTNEED)

    def write(self, sources: Sequence[memoryview], offset: int) -> None:
        """Write `sources`, one after the other, from `offset` on. Raises TierFault IO or FULL."""
        todo = list(sources)
        while todo:
            try:
                done = os.pwritev(self._fd, todo, offset, self._transfer_flags)
            except OSError as error:
                raise self._fault(error, "write", offset) from error
            if done == 0:
                raise TierFault(Fault.IO, f"{self.path.name}: a write at byte {offset} wrote nothing")
            offset += done
            _advance(todo, done)

    def sync(self) -> None:
        """Make what was written durable. Raises TierFault(IO), also when the file has been deleted meanwhile."""
        try:
            os.fdatasync(self._fd)
            self.deleted = os.fstat(self._fd).st_nlink == 0
            if self.deleted:  # open, so still writable, but nobody will ever find it again
                raise TierFault(Fault.IO, f"{self.path.name} was deleted underneath the daemon")
            if self._io_path is IoPath.FADVISE:
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._fault(error, "sync", 0) from error

    def close(self) -> None:
        os.close(self._fd)

    def _fault(self, error: OSError, what: str, offset: int) -> TierFault:
        fault = Fault.FULL if error.errno in _FULL_ERRORS else Fault.IO
        return TierFault(fault, f"{what} of {self.path.name} at byte {offset}: {error.strerror}")


def _advance(views: list[memoryview], done: int) -> None:
    """Drop the first `done` bytes from a list of views: the kernel may stop anywhere."""
    while views and done >= len(views[0]):
        done -= len(views.pop(0))
    if done:
        views[0] = views[0][done:]
