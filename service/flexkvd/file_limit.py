"""How many files a daemon of this configuration has open, beside how many it may.

Owns the arithmetic and its sentences; `flexkv_tiers.open_files` knows the limit. Called by `preflight`, for
`--check-config` and before every start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers import open_files
from flexkvd.config import Config
from flexkvd.stores import ssd_wanted

ARENA_SEGMENT_FILES = 3
"""Its descriptor, that of its mapping, and a third while a byte worker takes it over."""
CLIENT_FILES = 3
"""A client's connection, one memory it registers, and its process, which is watched on the row path."""
OTHER_FILES = 128
"""Logs, listeners, event loop, locks, pipes of byte workers, the REST API, S3 connections, and some to spare."""


@dataclass(frozen=True, slots=True)
class FilesNeeded:
    """Open files by what needs them."""

    arena: int
    segments: int
    clients: int

    @property
    def least(self) -> int:
        """Those without which not even the tiers work."""
        return self.arena + self.segments + OTHER_FILES

    @property
    def all(self) -> int:
        return self.least + self.clients

    def __str__(self) -> str:
        return (
            f"{self.all} files ({self.segments} segments of [ssd], {self.arena} for the arena, {self.clients} for "
            f"clients as [limits] sessions_max allows, {OTHER_FILES} others)"
        )


def files_needed(config: Config) -> FilesNeeded:
    """Open files when all tiers are full and every client has come. Raises FlexKVError for an unreadable directory."""
    segments = 0
    if config.ssd is not None:
        from flexkv_tiers.ssd.inspection import segment_count  # noqa: PLC0415 - only a daemon with a disk tier needs it

        segments = segment_count(ssd_wanted(config.ssd))
    arena = config.dram.bytes // config.dram.segment_bytes * ARENA_SEGMENT_FILES
    return FilesNeeded(arena, segments, config.limits.sessions_max * CLIENT_FILES)


def check(config: Config) -> None:
    """Raises FlexKVError(OUT_OF_FILES) when the tiers alone need more files than the process may open."""
    needed, limit = files_needed(config), open_files.limit()
    if needed.least > limit:
        raise FlexKVError(
            ErrorCode.OUT_OF_FILES,
            f"this configuration opens up to {needed}, but the process may open {limit} (RLIMIT_NOFILE, hard): "
            f"{open_files.CURE}, or have fewer and larger segments ([ssd] and [dram] segment_bytes)",
        )


def warnings(config: Config) -> Iterator[str]:
    """Where the tiers fit, though not all clients do."""
    needed, limit = files_needed(config), open_files.limit()
    if needed.all > limit:
        yield (
            f"this configuration opens up to {needed}, but the process may open {limit} (RLIMIT_NOFILE, hard), "
            f"so that clients will be turned away when it is busy: {open_files.CURE}, or lower [limits] sessions_max"
        )
