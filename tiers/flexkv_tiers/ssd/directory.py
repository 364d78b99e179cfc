"""What makes a directory ours: the marker, the lock, and the names of segment files.

Nothing is created, changed or removed in a directory before it is known to be ours or empty, and
nothing but `flexkv.*` and `segment*` files ever is. Several directories make one set (stripes); each
marker says which set and which place in it. All calls block. What segments hold is no concern of this module.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.ssd.format import DIRECTORY_ID_BYTES, FORMAT_VERSION

FORMAT = "flexkv-ssd"
MARKER_NAME = "flexkv.json"
LOCK_NAME = "flexkv.lock"
_PARTIAL_NAME = "flexkv.json.partial"
PROBE_NAME = "flexkv.probe"
PARTIAL_SEGMENT_NAME = "segment.partial"
_NOT_FOREIGN = {LOCK_NAME, _PARTIAL_NAME, PROBE_NAME, "lost+found"}  # what an interrupted first start leaves
_MARKER_BYTES_MAX = 64 * 1024
_ID = re.compile(rf"[0-9a-f]{{{2 * DIRECTORY_ID_BYTES}}}")
_SEGMENT_NAME = re.compile(r"segment-(\d{6,})\.kv")


class Marker(msgspec.Struct):
    """Content of `flexkv.json`. `id` tells one life of a directory from the next; `stripe_set` its set."""

    format: str
    version: int
    id: str
    stripe_set: str = ""
    position: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment met at start."""

    number: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """A directory that is ours: its id, and the descriptor that holds its lock."""

    directory: Path
    id: bytes
    lock: int


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"segment-{number:06d}.kv"


def acquire(directories: Sequence[Path]) -> list[Held]:
    """Make the directories of one set ours, all or none.

    Raises FlexKVError: DIRECTORY_FOREIGN, DIRECTORY_LOCKED, DIRECTORY_NOT_WRITABLE, DISK_FULL.
    """
    locks: list[int] = []
    try:
        for directory in directories:  # before a lock file is made: a foreign directory stays untouched
            with _coded(directory):
                directory.mkdir(parents=True, exist_ok=True)
                _read_marker(directory)
        markers = []
        for directory in directories:
            with _coded(directory):
                locks.append(_lock(directory))
                markers.append(_read_marker(directory))
        stripe_set = _check_set(directories, markers)
        held = []
        for position, (directory, marker) in enumerate(zip(directories, markers, strict=True)):
            with _coded(directory):
                kept = marker or _write_marker(directory, stripe_set, position, len(markers))
                held.append(Held(directory, bytes.fromhex(kept.id), locks[position]))
        return held
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise


def acquire_existing(directory: Path) -> Held:
    """Lock a directory that is an SSD tier's already, whatever set it is of. Raises FlexKVError as `acquire`."""
    with _coded(directory):
        if not directory.is_dir():
            raise _os_error(errno.ENOENT)
        if _read_marker(directory) is None:
            raise _foreign(directory, f"it has no {MARKER_NAME}")
        lock = _lock(directory)
        marker = _read_marker(directory)
        assert marker is not None
        return Held(directory, bytes.fromhex(marker.id), lock)


@contextmanager
def _coded(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(directory, error) from error


def _check_set(directories: Sequence[Path], markers: Sequence[Marker | None]) -> str:
    """The set all these directories belong to, each in its place; a new one when none has a marker yet."""
    known = [(position, marker) for position, marker in enumerate(markers) if marker is not None]
    stripe_set = known[0][1].stripe_set if known else secrets.token_hex(DIRECTORY_ID_BYTES)
    for position, marker in known:
        if (marker.stripe_set, marker.position, marker.count) != (stripe_set, position, len(markers)):
            raise FlexKVError(
                ErrorCode.DIRECTORY_FOREIGN,
                f"{directories[position]} is directory {marker.position + 1} of {marker.count} of set "
                f"{marker.stripe_set[:8]}, but is configured as {position + 1} of {len(markers)} of set "
                f"{stripe_set[:8]}: list the directories of one set in their order, or empty those that shall join",
            )
    return stripe_set


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
            SegmentFile(int(match[1]), entry.stat().st_size)
            for entry in entries
            if (match := _SEGMENT_NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda segment: segment.number)


def file_system_bytes(directory: Path) -> int:
    """Size of the file system; 0 for one without a size of its own."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize


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
    if not _ID.fullmatch(marker.id) or not _ID.fullmatch(marker.stripe_set):
        raise _foreign(directory, f"its {MARKER_NAME} has no id of {DIRECTORY_ID_BYTES} bytes")
    return marker


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _foreign(directory: Path, why: str) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DIRECTORY_FOREIGN,
        f"{directory} does not belong to this SSD tier: {why}. Nothing in it was changed: "
        "configure an empty directory, or delete this one's content if nobody needs it",
    )


def _write_marker(directory: Path, stripe_set: str, position: int, count: int) -> Marker:
    marker = Marker(FORMAT, FORMAT_VERSION, secrets.token_hex(DIRECTORY_ID_BYTES), stripe_set, position, count)
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
