"""Tickets as the shell sees them: how far the copies are, who waits, what may still touch pages.

Owns progress and waiters; owns no decision (the planner opens and ends tickets). Used by `requests`
(opens, waits), `executor` (notes copies) and `sessions` (ends).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flexkv_py.core.messages import Outcome, RequestRefused, TicketFinished, TicketKind, Tier
from flexkv_py.wire.messages import Progress
from flexkv_tiers.lanes.base import AwaitedEvent
from flexkv_tiers.memory.worker import PageTable, WorkerMemory
from flexkvd.ordering import TicketGates

Pages = npt.NDArray[np.uint32]
"""Some page numbers of a memory, shape [pages]."""

USABLE = frozenset({Outcome.LOADED, Outcome.STORED, Outcome.PRESENT})


class CopiedMemory(Protocol):
    """What a ticket copies into or out of. It keeps `tickets` until they are settled."""

    mapping: WorkerMemory
    tickets: dict[int, Ticket]

    def progressed(self, ticket: Ticket) -> None: ...


class Waiter:
    """One `Wait` request: `answer` is called once, when `chunk` is in or the ticket is over.

    `timer` is what answers it when neither happens in time.
    """

    __slots__ = ("answer", "chunk", "timer")

    def __init__(self, chunk: int, answer: Callable[[], None], timer: asyncio.TimerHandle) -> None:
        self.chunk = chunk
        self.answer = answer
        self.timer = timer


class Ticket:
    """One running or finished load, save, prefetch or flush.

    `pages` has one row of page numbers per key, shape [keys, pages_per_block]; None where nothing is copied.
    `masks[position]` has a bit for every chunk of that key that was copied; `counts[chunk]` counts keys.
    `copies` counts blocks handed to the lanes whose end is still to come.
    """

    __slots__ = (
        "after",
        "chunk_count",
        "copies",
        "counts",
        "finished",
        "first_chunk_ns",
        "gates",
        "key_count",
        "kind",
        "masks",
        "memory",
        "number",
        "opened_ns",
        "pages",
        "ready",
        "refusal",
        "session",
        "to_tier",
        "waiters",
    )

    def __init__(
        self,
        number: int,
        session: int,
        kind: TicketKind,
        key_count: int,
        chunk_count: int,
        opened_ns: int,
        memory: CopiedMemory | None = None,
        pages: PageTable | None = None,
        to_tier: Tier | None = None,
    ) -> None:
        self.number = number
        self.session = session
        self.kind = kind
        self.key_count = key_count
        self.chunk_count = chunk_count
        self.opened_ns = opened_ns
        self.memory = memory
        self.pages = pages
        self.to_tier = to_tier
        """How deep a save or flush shall reach."""
        self.masks = [0] * key_count if memory is not None else []
        self.counts = [0] * chunk_count
        self.ready = 0
        """Chunks 0..ready-1 of every key are copied."""
        self.first_chunk_ns = 0
        """When `ready` became 1; 0: it has not."""
        self.copies = 0
        self.finished: TicketFinished | None = None
        self.refusal: RequestRefused | None = None
        """Why the planner did not open it."""
        self.waiters: list[Waiter] = []
        self.gates: TicketGates | None = None
        """Opened chunk by chunk as its copies end."""
        self.after: AwaitedEvent | None = None
        """What its copies wait for in the worker."""

    @property
    def over(self) -> bool:
        return self.finished is not None

    @property
    def tier(self) -> str:
        """How deep it reached: the slowest tier that blocks were taken from, or the one it was to reach."""
        if self.to_tier is not None:
            return self.to_tier.name.lower()
        deepest = max(self.finished.tiers, default=0) if self.finished is not None else 0
        return Tier(deepest).name.lower() if deepest else "none"

    @property
    def settled(self) -> bool:
        """Over, and no copy of it touches the worker's pages any more."""
        return self.finished is not None and not self.copies

    def note_copied(self, positions: list[int], chunks: list[int], now_ns: int) -> None:
        """These chunks of the keys at these positions are on the other side."""
        masks, counts = self.masks, self.counts
        for chunk in chunks:
            bit = 1 << chunk
            for position in positions:
                if not masks[position] & bit:  # a promotion that is tried again may bring a chunk twice
                    masks[position] |= bit
                    counts[chunk] += 1
        while self.ready < self.chunk_count and self.counts[self.ready] == self.key_count:
            self.ready += 1
        if self.ready and not self.first_chunk_ns:
            self.first_chunk_ns = now_ns
        if self.waiters:
            self._answer()

    def finish(self, finished: TicketFinished) -> None:
        """The planner ended it."""
        assert self.finished is None, "a ticket ends once"
        self.finished = finished
        if self.gates is not None:
            self.copies += 1  # the memory stays until the last gate is open
            self.gates.give_up(partial(self.copies_ended, 1))
        self._answer()
        if self.memory is not None:
            self.memory.progressed(self)

    def copies_ended(self, count: int) -> None:
        """So many of the blocks handed to the lanes have ended, well or not."""
        self.copies -= count
        assert self.copies >= 0
        if self.memory is not None:
            self.memory.progressed(self)

    def abandon(self) -> None:
        """Its session is gone: nobody will wait for it or ask about it."""
        for waiter in self.waiters:
            waiter.timer.cancel()
        self.waiters.clear()
        if self.finished is None:
            self.finish(TicketFinished(self.session, self.number, self.kind, [], "the session ended", 0, 0, b""))

    def reached(self, chunk: int) -> bool:
        """Whether a wait for `chunk` (negative: for the end) need wait no longer."""
        return self.finished is not None or (0 <= chunk < self.ready)

    def touches(self, pages: Pages | None) -> bool:
        """Whether a copy of it runs on these pages (None: on any page) or may still start."""
        if self.settled or self.pages is None:
            return False
        whole = (1 << self.chunk_count) - 1
        rest = [position for position, mask in enumerate(self.masks) if mask != whole]
        if pages is None or not rest:
            return bool(rest)
        return bool(np.isin(self.pages[rest], pages).any())

    def progress(self, request: int) -> Progress:
        """The reply to a `Wait`."""
        finished = self.finished
        if finished is None:
            whole = (1 << self.chunk_count) - 1
            return Progress(request, self.number, False, self.ready, _leading(mask == whole for mask in self.masks))
        return Progress(
            request,
            self.number,
            True,
            self.ready,
            _leading(outcome in USABLE for outcome in finished.outcomes),
            [outcome.value for outcome in finished.outcomes],
            finished.detail,
            -(-finished.retry_after_ns // 1_000_000),
            finished.stored,
            finished.tiers,
        )

    def _answer(self) -> None:
        due = [waiter for waiter in self.waiters if self.reached(waiter.chunk)]
        if due:
            self.waiters = [waiter for waiter in self.waiters if not self.reached(waiter.chunk)]
            for waiter in due:
                waiter.timer.cancel()
                waiter.answer()


def _leading(flags: Iterable[bool]) -> int:
    """How many flags are true before the first false."""
    return sum(1 for _ in takewhile(bool, flags))
