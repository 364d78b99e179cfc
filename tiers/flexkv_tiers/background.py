"""Tasks that nobody awaits: kept alive, waited for at the end, and heard at once when a bug ends one.

A `TierFault` is data: it is told elsewhere, or met again by whoever comes next. Anything else is a bug, after
which the state of the part is in doubt: it goes to the loop's exception handler, and the daemon's ends the daemon.
Every part of the tiers that starts tasks of its own has one `Background`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from flexkv_tiers.base import TierFault

T = TypeVar("T")


class Background:
    """The tasks of `owner`, named so in the log."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run beside everything else. Whoever wants the outcome may await the task as well."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Wait until nothing runs any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            tell_bug(self._owner, error, task)


def tell_bug(owner: str, error: BaseException, task: asyncio.Task[Any] | None = None) -> None:
    """Let the loop's exception handler hear of an error that is no fault; others are none of its business."""
    if not isinstance(error, TierFault):
        context = {"message": f"a bug in {owner}", "exception": error, "task": task}
        asyncio.get_running_loop().call_exception_handler(context)
