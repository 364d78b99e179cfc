"""Collects deletes into batches: what is asked while one batch runs makes the next.

Deletes come in bursts (eviction, a namespace reset) and one request takes a thousand, so this costs a
lone delete nothing and a burst a thousandth of the requests. Owned by the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flexkv_tiers.background import Background, tell_bug
from flexkv_tiers.s3.messages import DELETE_COUNT_MAX

_OWNER = "the S3 tier"


class DeleteBatches:
    """`send` deletes up to DELETE_COUNT_MAX names at once; what it raises fails the whole batch."""

    def __init__(self, send: Callable[[list[str]], Awaitable[object]]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[None]] = {}  # names that are in no batch yet
        self._running: asyncio.Task[None] | None = None
        self._background = Background(_OWNER)

    async def delete(self, name: str) -> None:
        """Wait until a batch with this name is through. Raises TierFault."""
        done = self._waiting.get(name)
        if done is None:
            done = self._waiting[name] = asyncio.get_running_loop().create_future()
        if self._running is None:
            self._running = self._background.spawn(self._run())
        await asyncio.shield(done)  # others may wait for the same name

    async def settled(self) -> None:
        """Wait until nothing waits any more."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        while self._waiting:
            names = list(self._waiting)[:DELETE_COUNT_MAX]
            batch = [self._waiting.pop(name) for name in names]
            try:
                await self._send(names)
            except Exception as error:  # whatever it is, everybody who waits is told
                tell_bug(_OWNER, error)
                for done in batch:
                    done.set_exception(error)
                    done.exception()  # a caller that was cancelled never looks at it
            else:
                for done in batch:
                    done.set_result(None)
        self._running = None
