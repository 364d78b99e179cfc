"""What makes a directory ours: the marker, the lock, and the names of segment files.

Nothing is created, changed or removed in a directory before it is known to be ours or empty, and
nothing but `flexkv.*` and `segment-*` files ever is. All calls block; `SsdStore` runs them on a disk
thread. Records and slots are no concern of this module.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError

FORMAT = "flexkv-ssd"
FORMAT_VERSION = 1
MARKER_NAME = "flexkv.json"
LOCK_NAME = "flexkv.lock"
_PARTIAL_NAME = "flexkv.json.partial"
PROBE_NAME = "flexkv.probe"
_NOT_FOREIGN = {LOCK_NAME, _PARTIAL_NAME, PROBE_NAME, "lost+found"}  # what an interrupted first start leaves
_MARKER_BYTES_MAX = 64 * 1024
_SEGMENT_NAME = re.compile(r"segment-(\d{6,})-(\d+)\.kv")


class Marker(msgspec.Struct):
    """Content of `flexkv.json`. `id` tells one life of a directory from the next."""

    format: str
    version: int
    id: str


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment met at start."""

    number: int
    slot_bytes: int
    file_bytes: int


def segment_path(directory: Path, number: int, slot_bytes: int) -> Path:
    """The file of a segment: its name says its slot size, its length how many slots it has."""
    return directory / f"segment-{number:06d}-{slot_bytes}.kv"


def acquire(directory: Path) -> tuple[int, Marker]:
    """Make `directory` ours: returns the descriptor that holds its lock, and its marker.

    Raises FlexKVError: DIRECTORY_FOREIGN, DIRECTORY_LOCKED, DIRECTORY_NOT_WRITABLE, DISK_FULL.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _read_marker(directory)  # before the lock file is made: a foreign directory stays untouched
        lock = _lock(directory)
        try:
            return lock, _read_marker(directory) or _write_marker(directory)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise refusal(directory, error) from error


def inspect(directory: Path) -> None:
    """Find out without a change whether `acquire` would work, but for the lock.

    Raises FlexKVError: DIRECTORY_FOREIGN, DIRECTORY_NOT_WRITABLE.
    """
    try:
        place = existing(directory)
        if not place.is_dir():
            raise _os_error(errno.ENOTDIR)
        if not os.access(place, os.W_OK | os.X_OK):
            raise _os_error(errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES)
        if place == directory:
            _read_marker(directory)
    except OSError as error:
        raise refusal(directory, error) from error


def existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there. Raises OSError."""
    return next(each for each in (directory, *directory.parents) if each.exists())


def refusal(directory: Path, error: OSError) -> FlexKVError:
    """The coded error for a directory that cannot be prepared."""
    if error.errno == errno.EFBIG:
        return FlexKVError(
            ErrorCode.DISK_FULL,
            f"the file system of {directory} holds no file that large ({error.strerror}): "
            "configure a smaller capacity or another directory",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FlexKVError(
            ErrorCode.DISK_FULL,
            f"the disk of {directory} is full ({error.strerror}): "
            "free space there, or configure a smaller capacity or another directory",
        )
    return FlexKVError(
        ErrorCode.DIRECTORY_NOT_WRITABLE,
        f"cannot use {directory} for the SSD tier ({error.strerror}): "
        "make it a directory the daemon's user may write, or configure another",
    )


def segments(directory: Path) -> list[SegmentFile]:
    """Segment files in the order of their numbers."""
    with os.scandir(directory) as entries:
        found = [
            SegmentFile(int(match[1]), int(match[2]), entry.stat().st_size)
            for entry in entries
            if (match := _SEGMENT_NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda segment: segment.number)


def reserve_once(directory: Path, size_bytes: int) -> None:
    """Find out whether the disk has that much room by taking it. Raises OSError when it has not."""
    probe = directory / PROBE_NAME
    fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    finally:
        os.close(fd)
        probe.unlink()


def sync_directory(directory: Path) -> None:
    """Make names created or removed in `directory` durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_marker(directory: Path) -> Marker | None:
    """The marker; None for a directory that is empty or was only begun."""
    path = directory / MARKER_NAME
    if not path.exists():
        names = set(os.listdir(directory)) - _NOT_FOREIGN
        if not names:
            return None
        raise _foreign(directory, f"it holds {sorted(names)[0]!r} but no {MARKER_NAME}")
    with path.open("rb") as file:
        raw = file.read(_MARKER_BYTES_MAX)
    try:
        marker = msgspec.json.decode(raw, type=Marker)
    except msgspec.DecodeError as error:
        raise _foreign(directory, f"its {MARKER_NAME} cannot be read ({error})") from error
    if marker.format != FORMAT:
        raise _foreign(directory, f"its {MARKER_NAME} says format {marker.format!r}, not {FORMAT!r}")
    if marker.version != FORMAT_VERSION:
        raise _foreign(directory, f"it has format version {marker.version}, this flexkvd reads {FORMAT_VERSION}")
    return marker


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _foreign(directory: Path, why: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DIRECTORY_FOREIGN,
        f"{directory} does not belong to this SSD tier: {why}. Nothing in it was changed: "
        "configure an empty directory, or delete this one's content if nobody needs it",
    )


def _write_marker(directory: Path) -> Marker:
    marker = Marker(FORMAT, FORMAT_VERSION, uuid.uuid4().hex)
    partial = directory / _PARTIAL_NAME
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(marker))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / MARKER_NAME)
    sync_directory(directory)
    return marker


def _lock(directory: Path) -> int:
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise FlexKVError(
            ErrorCode.DIRECTORY_LOCKED,
            f"{directory} is in use by process {holder or 'unknown'}: stop that daemon, or configure another directory",
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd
