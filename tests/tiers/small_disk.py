"""A file system of a test's own: small, one that refuses direct I/O, or one that turns read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@contextmanager
def mounted(kind: str, options: str, place: Path) -> Iterator[Path]:
    """Mount a file system of this kind where only a child process sees it; reach it through that process.

    Needs no rights of root: the child has a user and mount namespace of its own, and the mount is
    gone with it.
    """
    with _shell(f"mount -t {kind} -o {options} none {place}", f"a {kind}") as (directory, _):
        yield directory / place.relative_to("/")


@dataclass(frozen=True)
class ReadOnlySwitch:
    """A directory that can be turned read-only for whatever is opened or made from then on, and back."""

    directory: Path
    read_only: Callable[[], None]
    writable: Callable[[], None]


@contextmanager
def switchable(place: Path) -> Iterator[ReadOnlySwitch]:
    """A tmpfs at `place`, mounted as by `mounted`; a read-only mount of itself can be put over it."""
    with _shell(f"mount -t tmpfs none {place}", "a tmpfs") as (root, order):
        yield ReadOnlySwitch(
            root / place.relative_to("/"),
            lambda: order(f"mount --bind {place} {place} && mount -o remount,bind,ro {place}"),
            lambda: order(f"umount {place}"),
        )


@contextmanager
def _shell(first: str, what: str) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A shell in namespaces of its own that has run `first`: its root, and a way to have it run more."""
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    ) as child:
        assert child.stdin is not None

        def run(command: str) -> bool:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{command} && echo done || echo failed\n")
            return child.stdout.readline() == "done\n"

        def order(command: str) -> None:
            assert run(command), command

        try:
            if not run(first):
                pytest.skip(f"this system lets nobody mount {what} in a namespace of its own")
            yield Path(f"/proc/{child.pid}/root"), order
        finally:
            child.stdin.close()
            child.wait(10)
