"""One fdatasync for all who wait for one: each gets a sync that began after it asked.

Used by every engine; how a sync is begun is the engine's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flexkv_tiers.diskio.base import DiskFuture
from flexkv_tiers.diskio.files import DiskFile


class GroupSyncs:
    """The syncs of all files. `begin` starts one, never while another of the same file runs."""

    def __init__(self, begin: Callable[[DiskFile], DiskFuture[None]]) -> None:
        self._begin = begin
        self._waiting: dict[DiskFile, list[DiskFuture[None]]] = {}
        """Exactly the files a sync of which runs, each with those who asked since it began."""

    @property
    def running(self) -> bool:
        """Whether somebody waits for a sync; also while one has ended and those who waited have yet to hear of it."""
        return bool(self._waiting)

    def wait(self, file: DiskFile) -> DiskFuture[None]:
        """Ends when everything written to the file so far is durable. Raises TierFault."""
        future: DiskFuture[None] = DiskFuture()
        waiting = self._waiting.get(file)
        if waiting is None:
            self._start(file, [future])
        else:
            waiting.append(future)
        return future

    def _start(self, file: DiskFile, group: list[DiskFuture[None]]) -> None:
        self._waiting[file] = []
        self._begin(file).add_done_callback(partial(self._end, file, group))

    def _end(self, file: DiskFile, group: list[DiskFuture[None]], synced: asyncio.Future[None]) -> None:
        waiting = self._waiting.pop(file)
        if waiting:
            self._start(file, waiting)
        error = synced.exception()
        for future in group:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
