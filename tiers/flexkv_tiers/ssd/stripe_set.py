"""Which directories make one set, decided from their markers alone. Pure.

Every marker lists the ids of all members of its set as of a generation, which rises whenever the list changes. The
list of the highest generation counts: a directory it names holds what it held, in whatever order directories are
configured; one it does not name was left out once and is out of date. `directory` reads and writes the markers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flexkv_py.errors import ErrorCode, FlexKVError

MARKER_VERSION = 3
MARKER_VERSIONS_READ = 2, MARKER_VERSION
"""Version 2 had a count and no list at first; those with a list had that number too for a while."""


class Marker(msgspec.Struct, omit_defaults=True):
    """Content of `flexkv.json`. `id` tells one life of a directory from the next.

    Generation 0, with an empty list of members, is a directory that is about to join its set, or one that was last used
    before there were lists: `count` of those says how many directories the set has.
    """

    format: str
    version: int
    id: str
    stripe_set: str = ""
    generation: int = 0
    members: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class SetPlan:
    """The set that the configured directories make. `ids` are in their order."""

    stripe_set: str
    generation: int
    ids: tuple[str, ...]
    is_changed: bool
    """Whether markers have to be written."""
    forgotten_count: int = 0
    """Members that are not there, and that no later start believes."""
    outdated: tuple[Path, ...] = ()
    """Directories that were left out once: what they hold is to be removed before they join again."""


def plan_set(
    directories: Sequence[Path], markers: Sequence[Marker | None], *, forget_missing: bool, new_id: Callable[[], str]
) -> SetPlan:
    """The set these directories make; `markers` has None for one that is empty or not there.

    Without a member that its list names, or its count says there is, it is refused, unless `forget_missing`.
    Directories that are added while all members are there just join.

    Raises FlexKVError: DIRECTORY_FOREIGN, DIRECTORY_MISSING, DIRECTORY_OUTDATED.
    """
    marked = {path: marker for path, marker in zip(directories, markers, strict=True) if marker is not None}
    if not marked:
        return SetPlan(new_id(), 1, tuple(new_id() for _ in directories), is_changed=True)
    _check_one_set(marked)
    newest = max(marked.values(), key=lambda marker: (marker.generation, marker.count))
    members = newest.members or tuple(marker.id for marker in marked.values())
    missing_count = _missing_count(marked, newest)
    outdated = {
        path: marker
        for path, marker in marked.items()
        if (marker.generation or marker.count) and marker.id not in members
    }
    _check_lineage(marked, newest, outdated)
    if outdated and not forget_missing:
        raise _outdated(next(iter(outdated)))
    if missing_count and not forget_missing:
        raise _missing(missing_count, newest, [path for path in directories if path not in marked])
    ids = tuple(marker.id if marker and marker.id in members else new_id() for marker in markers)
    is_changed = set(ids) != set(members) or any(
        (marker.version, marker.members) != (MARKER_VERSION, members) for marker in marked.values()
    )
    generation = newest.generation + (set(ids) != set(newest.members))
    return SetPlan(newest.stripe_set, generation, ids, is_changed, missing_count, tuple(outdated))


def _check_one_set(marked: dict[Path, Marker]) -> None:
    (first, known), *others = marked.items()
    for path, marker in others:
        if marker.stripe_set != known.stripe_set:
            raise FlexKVError(
                ErrorCode.DIRECTORY_FOREIGN,
                f"{path} is of set {marker.stripe_set[:8]}, {first} of set {known.stripe_set[:8]}: list the "
                "directories of one set in [ssd] directory, or delete the content of those that shall join another",
            )
        if marker.id == known.id:
            raise FlexKVError(
                ErrorCode.DIRECTORY_FOREIGN,
                f"{path} is a copy of {first}: delete the content of the copy, or take it out of [ssd] directory",
            )


def _missing_count(marked: dict[Path, Marker], newest: Marker) -> int:
    """How many of the set's directories are not there, by its list, or else by its count.

    Raises FlexKVError(DIRECTORY_OUTDATED).
    """
    if newest.members:
        return len(set(newest.members) - {marker.id for marker in marked.values()})
    counted = [path for path, marker in marked.items() if marker.count]
    if len(counted) > newest.count and counted:
        raise _apart(counted[-1], counted[0])
    return newest.count - len(counted)


def _check_lineage(marked: dict[Path, Marker], newest: Marker, outdated: dict[Path, Marker]) -> None:
    """Two parts of a set that each went on without the other: which one missed a reset, nobody can tell."""
    current = {marker.id for marker in marked.values() if marker.id in newest.members}
    for path, marker in outdated.items():
        shares_none = marker.generation and current.isdisjoint(marker.members)
        if marker.generation >= newest.generation or shares_none:
            raise _apart(path, next(each for each, its in marked.items() if its is newest))


def _apart(path: Path, other: Path) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DIRECTORY_OUTDATED,
        f"{path} and {other} went on without each other, so one of them is out of date and nobody can tell "
        "which: delete the content of the one that was used first, or of both",
    )


def _missing(count: int, newest: Marker, empty: Sequence[Path]) -> FlexKVError:
    total = len(newest.members) or newest.count
    where = f"there is nothing in {', '.join(map(str, empty))}" if empty else "[ssd] directory does not list it"
    return FlexKVError(
        ErrorCode.DIRECTORY_MISSING,
        f"of the {total} directories of SSD set {newest.stripe_set[:8]} {count} cannot be found: "
        f"{where}. Mount its disk, or list it again; if it is lost for good, "
        'set [ssd] missing_directory = "forget" to go on without what it held',
    )


def _outdated(path: Path) -> FlexKVError:
    return FlexKVError(
        ErrorCode.DIRECTORY_OUTDATED,
        f"{path} was missing when its SSD set went on without it, so what it holds is out of date: "
        'set [ssd] missing_directory = "forget" to have it emptied at start, or empty it and start again',
    )
