"""Which directories of the SSD tier take writes, and when none does: then the tier is down. Pure.

`SsdStore` tells of every write, `Mender` of probes. A full disk is no failure: it serves, and may have room again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flexkv_py.core.messages import Fault
from flexkv_tiers.base import TierFault

FAILURES_IN_ROW_MAX = 3
"""A directory that failed so many writes one after the other fails, until one succeeds."""
PAUSE_S = 1.0
"""A directory that failed a write is left alone for so long while others work."""


@dataclass(slots=True)
class _Directory:
    failures: int = 0
    failed_at_s: float = -PAUSE_S
    because: str = ""


class Health:
    """Of `count` directories. `changed` hears when the tier goes down, and when it is up again."""

    def __init__(self, count: int, changed: Callable[[bool, str], None]) -> None:
        self._changed = changed
        self._directories = [_Directory() for _ in range(count)]

    def failed(self, number: int, fault: TierFault, asked_s: float, now_s: float) -> None:
        """A write that was asked for at `asked_s` failed. Those that fail together are one failure."""
        if fault.fault is not Fault.IO:
            return
        directory, was_down = self._directories[number], self.down
        if asked_s >= directory.failed_at_s:
            directory.failures += 1
        directory.failed_at_s, directory.because = now_s, fault.detail
        if self.down and not was_down:
            self._changed(False, self.because)

    def wrote(self, number: int) -> None:
        """The directory took a write."""
        directory = self._directories[number]
        if directory.failures:
            was_down, directory.failures = self.down, 0
            if was_down:
                self._changed(True, "a directory of it takes writes again")

    def failing(self, number: int) -> str:
        """Why a directory fails; empty when it does not."""
        directory = self._directories[number]
        return directory.because if directory.failures >= FAILURES_IN_ROW_MAX else ""

    def paused(self, now_s: float) -> list[bool]:
        """Directories that failed a moment ago; none when all did."""
        paused = [each.failures > 0 and now_s < each.failed_at_s + PAUSE_S for each in self._directories]
        return [False] * len(paused) if all(paused) else paused

    @property
    def down(self) -> bool:
        """Whether every directory fails."""
        return all(each.failures >= FAILURES_IN_ROW_MAX for each in self._directories)

    @property
    def because(self) -> str:
        """What the last of them failed with."""
        return max(self._directories, key=lambda each: each.failed_at_s).because
