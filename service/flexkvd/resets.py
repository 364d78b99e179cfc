"""Resets of namespaces, from the order until nothing is left in any tier, over as many lives as that takes.

Owns how planner, shared stores and the log take part; what each forgets is its own business. Called by
`requests`, and at start by `parts` for what the last life left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from flexkv_py.core.messages import NamespaceReset
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.background import tell_bug
from flexkv_tiers.base import SharedStore
from flexkvd.engine import Engine
from flexkvd.reset_log import ResetLog
from flexkvd.sessions import Sessions

log = logging.getLogger(__name__)


class Resets:
    """Each is the daemon's own (session 0): it goes on when whoever asked for it is gone."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        shared: Sequence[SharedStore],
        reset_log: ResetLog | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Without `reset_log` a restart forgets what is outstanding."""
        self._engine = engine
        self._shared = shared
        self._log = reset_log
        self._loop = loop
        self._numbers = 0
        self._forgotten: dict[int, asyncio.Future[None]] = {}  # end when the planner holds nothing any more
        self._running: set[asyncio.Task[None]] = set()
        sessions.on_own_done = self._planner_forgot

    def go_on(self) -> None:
        """Begin again what the last life left; before anything of it can be found."""
        for namespace in self._log.left_over if self._log else ():
            log.warning("the reset of namespace %s goes on: the last life did not end it", namespace.hex())
            self._begin(namespace, lambda: None, is_logged=True)

    def begin(self, namespace: NamespaceDigest, then: Callable[[], None]) -> None:
        """From this call on nothing saved so far is served; `then` is called when none of it is left anywhere.

        The planner lets go of blocks while the log is still being written, or all would wait for a disk. A kill within
        these milliseconds leaves a reset half done that no life goes on with; nobody was told that it was done.
        """
        self._begin(namespace, then, is_logged=False)

    def _begin(self, namespace: NamespaceDigest, then: Callable[[], None], *, is_logged: bool) -> None:
        self._numbers += 1
        forgotten = self._forgotten[self._numbers] = self._loop.create_future()
        wipes = [store.reset(namespace) for store in self._shared]
        task = self._loop.create_task(self._run(namespace, [forgotten, *wipes], then, is_logged))
        self._running.add(task)
        task.add_done_callback(self._ended)
        self._engine.post(NamespaceReset(0, self._numbers, namespace, self._engine.now_ns()))

    def close(self) -> None:
        """Leave what runs to the next life."""
        for task in self._running:
            task.cancel()

    async def _run(
        self,
        namespace: NamespaceDigest,
        parts: Sequence[asyncio.Future[None]],
        then: Callable[[], None],
        is_logged: bool,
    ) -> None:
        if self._log is not None and not is_logged:
            try:
                await self._log.begin(namespace)
            except OSError as error:
                log.warning("a restart would forget this reset, because it cannot be written down: %s", error)
        await asyncio.gather(*parts)
        if self._log is not None:
            try:
                await self._log.end(namespace)
            except OSError as error:
                log.warning("a restart would repeat this reset, because its end cannot be written down: %s", error)
        then()

    def _planner_forgot(self, number: int) -> None:
        forgotten = self._forgotten.pop(number)
        if not forgotten.done():  # else the daemon is ending
            forgotten.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            tell_bug("a reset", error, task)
