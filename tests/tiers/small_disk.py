"""A file system of a test's own: small, or one that refuses direct I/O."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(kind: str, options: str, place: Path) -> Iterator[Path]:
    """Mount a file system of this kind where only a child process sees it; reach it through that process.

    Needs no rights of root: the child has a user and mount namespace of its own, and the mount is
    gone with it.
    """
    command = f"mount -t {kind} -o {options} none {place} && echo mounted && exec cat"
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != b"mounted\n":
            pytest.skip(f"this system lets nobody mount a {kind} in a namespace of its own")
        try:
            yield Path(f"/proc/{child.pid}/root") / place.relative_to("/")
        finally:
            child.stdin.close()
            child.wait(10)
