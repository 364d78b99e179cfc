"""Registered memories: which tickets use one, and when it may be closed.

Owns the daemon's mapping of a worker's memory until its last copy has ended. Whoever waits for copies
to end (fence, unregister, a dead session) waits here.
"""

from __future__ import annotations

from collections.abc import Callable

from flexkv_tiers.memory import WorkerMemory
from flexkvd.tickets import Pages, Ticket

Release = Callable[[WorkerMemory, Callable[[], None]], None]
"""Closes a mapping and says when that is done."""


class Fence:
    """Answered once no ticket that was open when it was set touches its pages any more."""

    __slots__ = ("answer", "pages", "tickets")

    def __init__(self, pages: Pages | None, tickets: list[Ticket], answer: Callable[[], None]) -> None:
        self.pages = pages
        self.tickets = tickets
        self.answer = answer

    def passed(self) -> bool:
        """Forget the tickets that touch the pages no more; true when none is left."""
        self.tickets = [ticket for ticket in self.tickets if ticket.touches(self.pages)]
        return not self.tickets


class RegisteredMemory:
    """One memory of one session.

    `tickets` are those that are not settled: a copy of them runs here or may still start.
    """

    __slots__ = ("_on_closed", "_release", "fences", "mapping", "number", "tickets")

    def __init__(self, number: int, mapping: WorkerMemory, release: Release) -> None:
        self.number = number
        self.mapping = mapping
        self._release = release
        self.tickets: dict[int, Ticket] = {}
        self.fences: list[Fence] = []
        self._on_closed: Callable[[], None] | None = None

    def fence(self, pages: Pages | None, answer: Callable[[], None]) -> None:
        """Call `answer` once no copy touches `pages` (None: any page); at once if none does."""
        fence = Fence(pages, list(self.tickets.values()), answer)
        if fence.passed():
            answer()
        else:
            self.fences.append(fence)

    def progressed(self, ticket: Ticket) -> None:
        """A copy of `ticket` ended, or the ticket did."""
        if ticket.settled:
            self.tickets.pop(ticket.number, None)
        if self.fences:
            passed = [fence for fence in self.fences if fence.passed()]
            self.fences = [fence for fence in self.fences if fence not in passed]
            for fence in passed:
                fence.answer()
        self._close_if_idle()

    def close(self, on_closed: Callable[[], None]) -> None:
        """Unmap after the last copy; the caller has seen to it that no new one comes."""
        self._on_closed = on_closed
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._on_closed is not None and not self.tickets:
            on_closed, self._on_closed = self._on_closed, None
            self._release(self.mapping, on_closed)
