"""One open file of the SSD directory, and the I/O path its bytes take past the page cache.

Owns the choice of the path, and the state of one transfer: the kernel may stop anywhere, so engines
ask a `Transfer` what is left. Knows nothing of records, queues or threads.
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
IOVECS_MAX = 64
"""Pieces of memory in one call of the kernel; a transfer of more takes several."""

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
    read_only: bool = False
    """Files are opened to be read, so that no right to write is needed."""


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
        if error.errno not in _FULL_ERRORS:  # a full disk takes no page to try it with, but what lies there is read
            raise
    finally:
        page.close()
    return None


class DiskFile:
    """One open file. The engines move its bytes; `sync` and `close` block."""

    def __init__(self, path: Path, io_path: IoPath, *, create_bytes: int = 0, read_only: bool = False) -> None:
        """Open `path`, or create it with `create_bytes` allocated. Raises OSError; leaves no half-made file."""
        self.path = path
        self.io_path = io_path
        self._access = os.O_RDONLY if read_only else os.O_RDWR
        self.transfer_flags = RWF_DONTCACHE if io_path is IoPath.DONTCACHE else 0
        self.deleted = False
        """Whether the last sync found the file gone from its directory."""
        if not create_bytes:
            self.fd = self.open_descriptor()
            self.bytes = os.fstat(self.fd).st_size
            return
        self.bytes = create_bytes
        self.fd = self.open_descriptor(os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(self.fd, 0, create_bytes)
        except OSError:
            os.close(self.fd)
            path.unlink()
            raise

    def open_descriptor(self, flags: int = 0) -> int:
        """A descriptor of this file's I/O path; blocks. Raises OSError."""
        flags |= self._access | os.O_CLOEXEC
        if self.io_path is IoPath.DIRECT:
            return os.open(self.path, flags | os.O_DIRECT, 0o600)
        descriptor = os.open(self.path, flags, 0o600)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: nobody would drop those pages
        return descriptor

    def read(self, targets: Sequence[memoryview], offset: int) -> None:
        """Fill `targets` from `offset` on; blocks. Raises TierFault IO, or CORRUPT at an early end."""
        transfer = Transfer(self, targets, offset, is_read=True)
        while transfer.todo:
            try:
                transfer.advance(os.preadv(self.fd, transfer.next_views, transfer.at, self.transfer_flags))
            except OSError as error:
                raise transfer.fault(error.errno or 0) from error
        transfer.forget()

    def write(self, sources: Sequence[memoryview], offset: int) -> None:
        """Write `sources` from `offset` on; blocks. Raises TierFault IO or FULL."""
        transfer = Transfer(self, sources, offset, is_read=False)
        while transfer.todo:
            try:
                transfer.advance(os.pwritev(self.fd, transfer.next_views, transfer.at, self.transfer_flags))
            except OSError as error:
                raise transfer.fault(error.errno or 0) from error

    def sync(self) -> None:
        """Make what was written durable; blocks. Raises TierFault(IO), also when the file was deleted meanwhile."""
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise self.fault(error.errno or 0, "sync", 0) from error
        self.end_sync()

    def end_sync(self) -> None:
        """What follows a successful sync of the disk: is the file still there, and need its pages go?"""
        self.deleted = os.fstat(self.fd).st_nlink == 0
        if self.deleted:  # open, so still writable, but nobody will ever find it again
            raise TierFault(Fault.IO, f"{self.path.name} was deleted underneath the daemon")
        if self.io_path is IoPath.FADVISE:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def fault(self, error: int, what: str, offset: int) -> TierFault:
        """What an errno of the kernel means to the tier."""
        kind = Fault.FULL if error in _FULL_ERRORS else Fault.IO
        return TierFault(kind, f"{what} of {self.path.name} at byte {offset}: {os.strerror(error)}")

    def close(self) -> None:
        os.close(self.fd)


class Transfer:
    """One read or write under way: which memory is still to be moved, and from which byte of the file on."""

    __slots__ = ("at", "bytes", "file", "is_read", "start", "todo")

    def __init__(self, file: DiskFile, views: Sequence[memoryview], offset: int, *, is_read: bool) -> None:
        assert views
        assert not offset % ALIGN_BYTES
        self.bytes = 0
        for view in views:
            assert not len(view) % ALIGN_BYTES
            self.bytes += len(view)
        self.file = file
        self.is_read = is_read
        self.start = self.at = offset
        self.todo = list(views)

    @property
    def next_views(self) -> list[memoryview]:
        """What the next call of the kernel may move."""
        return self.todo if len(self.todo) <= IOVECS_MAX else self.todo[:IOVECS_MAX]

    def advance(self, done: int) -> None:
        """The kernel moved `done` bytes and stopped. Raises TierFault when that was none."""
        if not done:
            name = self.file.path.name
            if self.is_read:
                raise TierFault(Fault.CORRUPT, f"{name} ends at byte {self.at}, within a record: it was cut off")
            raise TierFault(Fault.IO, f"{name}: a write at byte {self.at} wrote nothing")
        self.at += done
        todo, gone = self.todo, 0
        while gone < len(todo) and done >= len(todo[gone]):
            done -= len(todo[gone])
            gone += 1
        del todo[:gone]
        if done:
            todo[0] = todo[0][done:]

    def fault(self, error: int) -> TierFault:
        """The transfer failed with this errno."""
        return self.file.fault(error, "read" if self.is_read else "write", self.at)

    def forget(self) -> None:
        """After a read: have the page cache let go of what it kept."""
        if self.file.io_path is IoPath.FADVISE:
            os.posix_fadvise(self.file.fd, self.start, self.at - self.start, os.POSIX_FADV_DONTNEED)
