"""What makes a directory ours: the marker, the lock, and the names of segment files.

Nothing is created, changed or removed in a directory before it is known to be ours or empty, and
nothing but `flexkv.*` and `segment*` files ever is. Several directories make one set (stripes); which do, `stripe_set`
decides from their markers. All calls block. What segments hold is no concern of this module.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.open_files import is_out_of_files, out_of_files
from flexkv_tiers.ssd.format import DIRECTORY_ID_BYTES
from flexkv_tiers.ssd.stripe_set import MARKER_VERSION, MARKER_VERSIONS_READ, Marker, SetPlan, plan_set

log = logging.getLogger(__name__)

FORMAT = "flexkv-ssd"
MARKER_NAME = "flexkv.json"
HOLDER_NAME = "flexkv.lock"
"""The process id of the daemon that came last, for people; the lock itself is on the directory."""
_PARTIAL_NAME = "flexkv.json.partial"
PROBE_NAME = "flexkv.probe"
PARTIAL_SEGMENT_NAME = "segment.partial"
_NOT_FOREIGN = {HOLDER_NAME, _PARTIAL_NAME, PROBE_NAME, "lost+found"}  # what an interrupted first start leaves
_OWN_FILES = (MARKER_NAME, HOLDER_NAME, _PARTIAL_NAME, PROBE_NAME, PARTIAL_SEGMENT_NAME)
_ENTRY_CURE = (
    "let it be a file that the daemon's user owns and may read and write; if nobody needs what it holds, remove it"
)
_MARKER_BYTES_MAX = 64 * 1024
_ID = re.compile(rf"[0-9a-f]{{{2 * DIRECTORY_ID_BYTES}}}")
_SEGMENT_NAME = re.compile(r"segment-(\d{6,})\.kv")
_CURE_OF_MARKED = "configure an empty directory, or delete this one's content if nobody needs it"
"""Not for a directory without a marker: it may be `/`."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment met at start."""

    number: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """A directory that is ours: its id, and its descriptor, which holds the lock."""

    directory: Path
    id: bytes
    lock: int

    def is_in_place(self) -> bool:
        """Whether the path still leads to this directory, marker included: not emptied, moved or mounted over."""
        try:
            return (
                os.path.samestat(os.fstat(self.lock), self.directory.stat()) and (self.directory / MARKER_NAME).exists()
            )
        except OSError:
            return False


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"segment-{number:06d}.kv"


def acquire(directories: Sequence[Path], *, forget_missing: bool = False) -> list[Held]:
    """Make the directories of one set ours, all or none.

    `forget_missing` goes on without members that are not there. Raises FlexKVError: BAD_CONFIG, those of
    `plan_set`, DIRECTORY_LOCKED, DIRECTORY_NOT_WRITABLE, DISK_FULL.
    """
    look(directories, forget_missing=forget_missing)  # before a directory is made: what is refused stays untouched
    locks: list[int] = []
    try:
        for directory in directories:
            with coded(directory):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                locks.append(_lock(directory, fcntl.LOCK_EX))
        markers = [_read_coded(directory) for directory in directories]
        plan = plan_set(directories, markers, forget_missing=forget_missing, new_id=_new_id)
        _write_markers(directories, markers, plan)
        for directory in directories:
            _tell_holder(directory)
        return [
            Held(directory, bytes.fromhex(its_id), lock)
            for directory, its_id, lock in zip(directories, plan.ids, locks, strict=True)
        ]
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise


def look(directories: Sequence[Path], *, forget_missing: bool) -> SetPlan:
    """The set that `acquire` would make of these directories now. Changes nothing. Raises FlexKVError as it would."""
    _check_apart(directories)
    markers = [_read_coded(directory) for directory in directories]
    return plan_set(directories, markers, forget_missing=forget_missing, new_id=_new_id)


def hold_to_read(directory: Path) -> Held:
    """Keep daemons off a directory that is an SSD tier's, whatever set it is of; needs no right to write.

    Raises FlexKVError: DIRECTORY_UNREADABLE, DIRECTORY_FOREIGN, DIRECTORY_LOCKED.
    """
    with coded(directory, unreadable):
        if not directory.is_dir():
            raise _os_error(errno.ENOTDIR if directory.exists() else errno.ENOENT)
        lock = _lock(directory, fcntl.LOCK_SH)
        try:
            if (marker := _read_marker(directory)) is None:
                raise FlexKVError(
                    ErrorCode.DIRECTORY_FOREIGN,
                    f"{directory} is empty, or its first start was interrupted: no SSD tier has used it yet. "
                    "Name a directory of [ssd], and see that its disk is mounted",
                )
        except BaseException:
            os.close(lock)
            raise
        return Held(directory, bytes.fromhex(marker.id), lock)


def holder(directory: Path) -> str | None:
    """The sentence with which a start would be refused now because a daemon uses the directory; None: nobody does.

    Tries a lock for a moment, as `flexkv verify` takes it. Raises FlexKVError as `acquire` does.
    """
    if not directory.exists():
        return None
    try:
        with coded(directory):
            os.close(_lock(directory, fcntl.LOCK_SH))
    except FlexKVError as error:
        if error.code is not ErrorCode.DIRECTORY_LOCKED:
            raise
        return str(error)
    return None


@contextmanager
def coded(directory: Path, code: Callable[[Path, OSError], FlexKVError] | None = None) -> Iterator[None]:
    """Errors of the system become coded ones, by `refusal` unless told otherwise."""
    try:
        yield
    except OSError as error:
        raise (code or refusal)(directory, error) from error


def _read_coded(directory: Path) -> Marker | None:
    with coded(directory):
        return _read_marker(directory) if directory.exists() else None


def _check_apart(directories: Sequence[Path]) -> None:
    """No directory may be, or lie in, another one of the list. Raises FlexKVError(BAD_CONFIG)."""
    for one, other in combinations(directories, 2):
        first, second = (Path(os.path.realpath(each)) for each in (one, other))
        is_same = first == second or (os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other))
        if is_same or first in second.parents or second in first.parents:
            how = "are one directory" if is_same else "lie one within the other"
            raise FlexKVError(
                ErrorCode.BAD_CONFIG,
                f"[ssd] directory: {one} and {other} {how}: name one directory per disk, each apart from the others",
            )


def inspect(directory: Path) -> None:
    """Find out without a change whether one directory can be used. Raises FlexKVError(DIRECTORY_NOT_WRITABLE)."""
    with coded(directory):
        place = existing(directory)
        if not place.is_dir():
            raise _os_error(errno.ENOTDIR)
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            raise _os_error(errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES)
        for name in _OWN_FILES:
            if (directory / name).is_dir():
                raise _os_error(errno.EISDIR, directory / name)
        for segment in segments(directory) if place == directory else ():
            path = segment_path(directory, segment.number)
            if not os.access(path, os.R_OK | os.W_OK):
                raise _os_error(errno.EACCES, path)


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
    if is_out_of_files(error):
        return out_of_files(f"{_culprit(directory, error)} cannot be opened", error)
    if (culprit := _culprit(directory, error)) != directory:
        return FlexKVError(ErrorCode.DIRECTORY_NOT_WRITABLE, f"cannot use {culprit} ({error.strerror}): {_ENTRY_CURE}")
    return FlexKVError(
        ErrorCode.DIRECTORY_NOT_WRITABLE,
        f"cannot use {directory} for the SSD tier ({error.strerror}): "
        "make it a directory the daemon's user may write, or configure another",
    )


def unreadable(directory: Path, error: OSError) -> FlexKVError:
    """The coded error for a directory that cannot be read."""
    culprit = _culprit(directory, error)
    if is_out_of_files(error):
        return out_of_files(f"{culprit} cannot be opened", error)
    cures = {
        errno.ENOENT: "check the path, and that its disk is mounted",
        errno.ENOTDIR: "name the directory itself, as in [ssd] directory",
    }
    cure = cures.get(error.errno or 0, "run this as a user who may read it and its files, such as the daemon's")
    return FlexKVError(ErrorCode.DIRECTORY_UNREADABLE, f"{culprit} cannot be read ({error.strerror}): {cure}")


def _culprit(directory: Path, error: OSError) -> Path:
    """What the system complained of: an entry of the directory, else the directory itself."""
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes | os.PathLike) else directory
    return named if named.parent == directory else directory


def segments(directory: Path) -> list[SegmentFile]:
    """Segment files in the order of their numbers."""
    with os.scandir(directory) as entries:
        found = [
            SegmentFile(int(match[1]), entry.stat().st_size)
            for entry in entries
            if (match := _SEGMENT_NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False)
        ]
    return sorted(found, key=lambda segment: segment.number)


def not_files(directory: Path) -> list[int]:
    """Numbers of segments in whose place lies a directory, a link or the like: no daemon opens them. Raises OSError."""
    with os.scandir(directory) as entries:
        return sorted(
            int(match[1])
            for entry in entries
            if (match := _SEGMENT_NAME.fullmatch(entry.name)) and not entry.is_file(follow_symlinks=False)
        )


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
        why = f"it holds {sorted(names)[0]!r} but no {MARKER_NAME}"
        raise _foreign(directory, why, "name an empty directory, or one that an SSD tier uses")
    with path.open("rb") as file:
        raw = file.read(_MARKER_BYTES_MAX)
    try:
        marker = msgspec.json.decode(raw, type=Marker)
    except msgspec.DecodeError as error:
        raise _foreign(directory, f"its {MARKER_NAME} cannot be read ({error})") from error
    if marker.format != FORMAT:
        raise _foreign(directory, f"its {MARKER_NAME} says format {marker.format!r}, not {FORMAT!r}")
    if marker.version not in MARKER_VERSIONS_READ:
        known = " and ".join(map(str, MARKER_VERSIONS_READ))
        raise _foreign(directory, f"its {MARKER_NAME} has version {marker.version}, this flexkvd reads {known}")
    if not all(map(_ID.fullmatch, (marker.id, marker.stripe_set, *marker.members))):
        raise _foreign(directory, f"its {MARKER_NAME} has an id that is not of {DIRECTORY_ID_BYTES} bytes")
    return marker


def _new_id() -> str:
    return secrets.token_hex(DIRECTORY_ID_BYTES)


def _os_error(code: int, path: Path | None = None) -> OSError:
    return OSError(code, os.strerror(code), path)


def _foreign(directory: Path, why: str, cure: str = _CURE_OF_MARKED) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DIRECTORY_FOREIGN,
        f"{directory} does not belong to this SSD tier: {why}. Nothing in it was changed: {cure}",
    )


def _write_markers(directories: Sequence[Path], markers: Sequence[Marker | None], plan: SetPlan) -> None:
    """Say in every directory who belongs to the set. Raises FlexKVError.

    Whoever joins gets its id first, in a marker that claims nothing: a list never names a directory that would seem
    missing if this were interrupted.
    """
    if not plan.is_changed:
        return
    for directory, marker, its_id in zip(directories, markers, plan.ids, strict=True):
        with coded(directory):
            if directory in plan.outdated:
                _remove_segments(directory)
            if marker is None or marker.id != its_id:
                _write_marker(directory, Marker(FORMAT, MARKER_VERSION, its_id, plan.stripe_set))
    for directory, its_id in zip(directories, plan.ids, strict=True):
        with coded(directory):
            named = Marker(FORMAT, MARKER_VERSION, its_id, plan.stripe_set, plan.generation, plan.ids)
            _write_marker(directory, named)


def _write_marker(directory: Path, marker: Marker) -> None:
    partial = directory / _PARTIAL_NAME
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(marker))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / MARKER_NAME)
    sync_directory(directory)


def _remove_segments(directory: Path) -> None:
    found = segments(directory)
    log.warning("%s is emptied of %d segments: its set went on without it", directory, len(found))
    for segment in found:
        segment_path(directory, segment.number).unlink()


def _lock(directory: Path, kind: int) -> int:
    """Lock the directory itself: no file in it that somebody may delete. Exclusively to use it, shared to read it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise FlexKVError(
            ErrorCode.DIRECTORY_LOCKED,
            f"{directory} is in use by {_holder(directory)}, or configure another directory",
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _tell_holder(directory: Path) -> None:
    with suppress(OSError):  # on a full disk nobody is named, and the lock holds all the same
        (directory / HOLDER_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")


def _holder(directory: Path) -> str:
    """Who seems to hold the lock, and what to do; the file may be gone, or of a daemon that was killed."""
    with suppress(OSError, ValueError):
        process = int((directory / HOLDER_NAME).read_text(encoding="ascii"))
        if Path(f"/proc/{process}").exists():
            return f"process {process}: stop that daemon"
    return "another daemon, or by flexkv verify: stop that one, or wait"
