"""What a caller of the blocking client holds in hand: memories, leases, tickets.

They own no state of the protocol: each names something of the daemon and asks its client about it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexkv_py.client import requests
from flexkv_py.client.requests import TicketProgress
from flexkv_py.client.session import Handle, Registration, Reply
from flexkv_py.wire.messages import Cancel, ClientMessage, Done, Progress, Release, Run, Wait


class Owner(Protocol):
    """The client that a handle was given out by."""

    timeout_s: float

    @property
    def chunk_count(self) -> int: ...

    def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply: ...

    def forget(self, memory: Memory) -> None: ...


class Memory:
    """Registered memory. Stays usable over any number of reconnects, until `unregister`."""

    def __init__(self, client: Owner, registration: Registration, pages_per_block: int) -> None:
        self.registration = registration
        self._client = client
        self._pages_per_block = pages_per_block

    def unregister(self) -> None:
        """Return once no running copy touches it and the daemon has closed it."""
        self._client.forget(self)

    def pack_pages(self, pages: Sequence[int], block_count: int) -> bytes:
        """The pages of `block_count` whole blocks, as the wire carries them."""
        return requests.pack_block_pages(pages, block_count, self._pages_per_block)


class Lease:
    """Keeps a matched prefix usable."""

    def __init__(self, client: Owner, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    def release(self) -> None:
        """Give it back. Raises DAEMON_LOST where the daemon was lost, and the lease with it."""
        self._client.ask_about(self._handle, Release(0, self._handle.id), Done)


@dataclass(frozen=True)
class MatchResult:
    """`length` usable leading keys, in `runs` by the slowest tier they need; `lease` if one was asked for."""

    length: int
    runs: list[Run]
    lease: Lease | None


class Ticket:
    """One running load, save, prefetch or flush. Dies with the connection it was opened on."""

    def __init__(self, client: Owner, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    def wait(self, chunk: int | None = None, timeout_s: float | None = None) -> TicketProgress:
        """Wait for the end, or until chunks 0..`chunk` of every key are in the worker.

        After `timeout_s` (None: as long as the ticket lives) it returns how far the ticket is: look at
        `done` and `chunks` before you believe any byte. Raises DAEMON_LOST when the daemon is lost.
        """
        wire_chunk = requests.check_chunk(chunk, self._client.chunk_count)
        end_s = requests.wait_end_s(time.monotonic(), timeout_s)
        while True:
            part = requests.slice_wait(time.monotonic(), end_s, self._client.timeout_s)
            request = Wait(0, self._handle.id, wire_chunk, requests.milliseconds(part.hold_s, "timeout_s"))
            progress = self._client.ask_about(self._handle, request, Progress, part.reply_by_s)
            if requests.answers_wait(progress, chunk) or time.monotonic() >= end_s:
                return requests.progress_of(progress)

    def cancel(self) -> None:
        """Want it no more: it ends at once, copies in flight run to their end (see `Client.fence`)."""
        self._client.ask_about(self._handle, Cancel(0, self._handle.id), Done)
