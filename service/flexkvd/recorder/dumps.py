"""Dumps on disk: written when the daemon meets a bug, and when it is asked by a signal. The newest few are kept.

Owns their names and number. Nothing that goes wrong here goes further: who writes a dump is in trouble already.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from flexkv_py.errors import FlexKVError
from flexkvd.recorder.replay import words_of
from flexkvd.recorder.ring import Recorder

log = logging.getLogger(__name__)

SUFFIX = ".record"
UNFINISHED = ".part"
FILE_MODE = 0o600
"""A dump names the blocks of every tenant."""
DIRECTORY_MODE = 0o700


class Dumps:
    """`directory` None: there is no place for them."""

    def __init__(self, recorder: Recorder, directory: Path | None, kept_max: int) -> None:
        self._recorder = recorder
        self._directory = directory
        self._kept_max = kept_max

    def on_bug(self, failure: BaseException | None) -> None:
        """The daemon is about to stop: write down how it came there."""
        if self._recorder.capacity_bytes:
            self._write("bug", words_of(failure) if failure else "")

    def on_signal(self) -> None:
        """Somebody sent the signal for it."""
        self._write("signal", "")

    def _write(self, why: str, failure: str) -> None:
        if self._directory is None:
            log.warning("no dump of the flight recorder: name a place by [recorder] directory")
            return
        try:
            path = self._directory / _name(why)
            write_private(path, self._recorder.dump(why, failure))
            log.warning("the flight recorder's dump is in %s: play it with `flexkv replay-record`", path)
            self._forget_old(self._directory)
        except (OSError, FlexKVError) as error:
            log.error("no dump of the flight recorder: %s", error)
        except Exception:
            log.exception("a bug while the flight recorder was dumped")

    def _forget_old(self, directory: Path) -> None:
        ours = sorted(directory.glob(f"flexkvd-*{SUFFIX}"))
        for old in [*ours[: -self._kept_max], *directory.glob(f"flexkvd-*{SUFFIX}{UNFINISHED}")]:
            old.unlink(missing_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Write a file only its owner can read, whole or not at all. Raises OSError."""
    path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _name(why: str) -> str:
    now = datetime.now(UTC)
    return f"flexkvd-{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03}Z-{why}{SUFFIX}"
