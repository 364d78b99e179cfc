"""What a caller of the blocking client holds in hand: memories, leases, tickets, requests of the row path.

They own no state of the protocol: each names something of the daemon and asks its client about it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from flexkv_py.client import requests
from flexkv_py.client.calls import Handle, Registration, Reply
from flexkv_py.client.requests import TicketProgress
from flexkv_py.client.rows import AttachedRequest
from flexkv_py.keys import BlockKey
from flexkv_py.wire.messages import Cancel, ClientMessage, Done, Pages, Progress, Release, Run, Wait


class Owner(Protocol):
    """The client that a handle was given out by."""

    timeout_s: float

    @property
    def chunk_count(self) -> int: ...

    def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply: ...

    def forget(self, memory: Memory) -> None: ...

    def take_pages(self, row: AttachedRequest, version_max: int | None) -> list[Pages]: ...

    def acknowledge(self, row: AttachedRequest, version: int) -> None: ...

    def extend_row(self, row: AttachedRequest, keys: Sequence[BlockKey]) -> None: ...

    def detach_row(self, row: AttachedRequest) -> None: ...


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
    """Keeps a matched prefix usable, in a `with` until its end."""

    def __init__(self, client: Owner, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    def release(self) -> None:
        """Give it back. Raises DAEMON_LOST where the daemon was lost, and the lease with it."""
        self._client.ask_about(self._handle, Release(0, self._handle.id), Done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        with requests.giving_back(failure):
            self.release()


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


class RowRequest:
    """A running request that reads rows of its blocks in the mapped arena. Dies with the connection.

    After a loss every call but `detach` raises what ended it (DAEMON_LOST, ACK_OVERDUE …); the mapped rows stay as
    they are, so a request can finish on the table it has. It is held until `detach`, or until this process ends.
    """

    def __init__(self, client: Owner, row: AttachedRequest) -> None:
        self._client = client
        self._row = row

    @property
    def request(self) -> int:
        """The caller's number of it."""
        return self._row.request

    @property
    def block_count(self) -> int:
        """How many blocks are attached."""
        return self._row.block_count

    @property
    def version(self) -> int:
        """The table's version as far as it was taken; other ranks may have brought it to one before the first."""
        return self._row.taken

    def pages(self, version_max: int | None = None) -> list[Pages]:
        """What changed in its table since the last time, oldest first; never waits.

        Ranks that decode together agree on a version that all have seen, and take up to it (`version_max`).
        """
        return self._client.take_pages(self._row, version_max)

    def ack(self, version: int) -> None:
        """No step that could see the table before `version` is in flight; never waits. Raises BAD_ARGUMENT."""
        self._client.acknowledge(self._row, version)

    def extend(self, keys: Sequence[BlockKey]) -> None:
        """Attach the blocks that follow those attached so far."""
        self._client.extend_row(self._row, keys)

    def detach(self) -> None:
        """Give everything back; no step that reads rows of it may be in flight."""
        self._client.detach_row(self._row)
