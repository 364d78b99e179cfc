"""Resets of namespaces, from the order until nothing is left in any tier, over as many lives as that takes.

Owns how planner, shared stores and the log take part; what each forgets is its own business. Called by
`requests`, and at start by `parts` for what the last life left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flexkv_py.core.messages import NamespaceReset
from flexkv_py.keys import NamespaceDigest
from flexkv_tiers.background import tell_bug
from flexkv_tiers.base import SharedStore
from flexkvd.engine import Engine
from flexkvd.reset_log import ResetLog
from flexkvd.sessions import Sessions

log = logging.getLogger(__name__)

KNOWN_BLOCKS = "known blocks"
"""The part of the planner: what it knows of the namespace is dropped everywhere, and nothing reads it any more."""


@dataclass(slots=True)
class Reset:
    """One that is not carried out yet; `parts` end one by one, by the name of what they are to clear."""

    namespace: NamespaceDigest
    parts: Mapping[str, asyncio.Future[None]]
    begun_ns: int
    outlives_restart: bool = False  # it is written down

    @property
    def waits_for(self) -> list[str]:
        return [name for name, part in self.parts.items() if not part.done()]


class Resets:
    """Each is the daemon's own (session 0): it goes on when whoever asked for it is gone."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        shared: Mapping[str, SharedStore],
        reset_log: ResetLog | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`shared`: by the tier's name. Without `reset_log` a restart forgets what is outstanding."""
        self._engine = engine
        self._shared = shared
        self._log = reset_log
        self._loop = loop
        self._numbers = 0
        self._forgotten: dict[int, asyncio.Future[None]] = {}  # end when the planner holds nothing any more
        self._running: dict[asyncio.Task[None], Reset] = {}
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
        wipes = {tier: store.reset(namespace) for tier, store in self._shared.items()}
        reset = Reset(namespace, {KNOWN_BLOCKS: forgotten, **wipes}, self._engine.now_ns())
        task = self._loop.create_task(self._run(reset, then, is_logged))
        self._running[task] = reset
        task.add_done_callback(self._ended)
        self._engine.post(NamespaceReset(0, self._numbers, namespace, self._engine.now_ns()))

    def close(self) -> None:
        """Leave what runs to the next life."""
        for task in self._running:
            task.cancel()

    @property
    def outstanding(self) -> int:
        """Resets that are not carried out yet."""
        return len(self._running)

    def status(self) -> dict[str, object]:
        """How many are outstanding, since when, how many wait for what, and how many a restart goes on with."""
        resets, now_ns = self._running.values(), self._engine.now_ns()
        return {
            "outstanding": len(resets),
            "oldest_s": (now_ns - min((reset.begun_ns for reset in resets), default=now_ns)) / 1e9,
            "waits_for": dict(self._waits_for()),
            "outlive_restart": sum(reset.outlives_restart for reset in resets),
        }

    def sentence(self) -> str:
        """What is outstanding, for `/readyz`; empty if nothing is."""
        if not self._running:
            return ""
        return f"{len(self._running)} not carried out yet, waiting for {_listed(self._waits_for())}"

    def _waits_for(self) -> Counter[str]:
        return Counter(part for reset in self._running.values() for part in reset.waits_for)

    async def _run(self, reset: Reset, then: Callable[[], None], is_logged: bool) -> None:
        namespace = reset.namespace
        after_restart = await self._write_down(reset, is_logged)
        log.info("reset of namespace %s waits for %s; %s", namespace.hex(), _listed(reset.waits_for), after_restart)
        await asyncio.gather(*reset.parts.values())
        if self._log is not None:
            try:
                await self._log.end(namespace)
            except OSError as error:
                log.warning("a restart would repeat this reset, because its end cannot be written down: %s", error)
        log.info("reset of namespace %s is carried out", namespace.hex())
        then()

    async def _write_down(self, reset: Reset, is_logged: bool) -> str:
        """Have the next life know of it; says whether it will."""
        if self._log is None:
            return "a restart forgets it, for there is no daemon.state_directory: repeat it then"
        try:
            if not is_logged:
                await self._log.begin(reset.namespace)
        except OSError as error:
            log.warning("a restart would forget this reset, because it cannot be written down: %s", error)
            return "a restart forgets it: repeat it then"
        reset.outlives_restart = True
        return "a restart goes on with it"

    def _planner_forgot(self, number: int) -> None:
        forgotten = self._forgotten.pop(number)
        if not forgotten.done():  # else the daemon is ending
            forgotten.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            tell_bug("a reset", error, task)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names) or "nothing more"
