"""What a caller of the asyncio client holds in hand: the twin of `client.handles`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from flexkv_py.client import requests
from flexkv_py.client.calls import Handle, Registration, Reply
from flexkv_py.client.requests import TicketProgress
from flexkv_py.client.rows import AttachedRequest
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import BlockKey
from flexkv_py.wire.messages import Cancel, ClientMessage, Detach, Done, Pages, Progress, Release, Run, Wait


class Owner(Protocol):
    """The client that a handle was given out by."""

    timeout_s: float

    @property
    def chunk_count(self) -> int: ...

    async def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply: ...

    async def forget(self, memory: AsyncMemory) -> None: ...

    def take_pages(self, row: AttachedRequest, version_max: int | None) -> list[Pages]: ...

    def acknowledge(self, row: AttachedRequest, version: int) -> None: ...

    async def attach_on(self, row: AttachedRequest, slices: Sequence[bytes]) -> None: ...

    def forget_row(self, row: AttachedRequest) -> None: ...


class AsyncMemory:
    """Registered memory. Stays usable over any number of reconnects, until `unregister`."""

    def __init__(self, client: Owner, registration: Registration, pages_per_block: int) -> None:
        self.registration = registration
        self._client = client
        self._pages_per_block = pages_per_block

    async def unregister(self) -> None:
        """Return once no running copy touches it and the daemon has closed it."""
        await self._client.forget(self)

    def pack_pages(self, pages: Sequence[int], block_count: int) -> bytes:
        """The pages of `block_count` whole blocks, as the wire carries them."""
        return requests.pack_block_pages(pages, block_count, self._pages_per_block)


class AsyncLease:
    """Keeps a matched prefix usable, in an `async with` until its end."""

    def __init__(self, client: Owner, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    async def release(self) -> None:
        """Give it back. Raises DAEMON_LOST where the daemon was lost, and the lease with it."""
        await self._client.ask_about(self._handle, Release(0, self._handle.id), Done)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: object, *_: object) -> None:
        with requests.giving_back(failure):
            await self.release()


@dataclass(frozen=True)
class AsyncMatchResult:
    """`length` usable leading keys, in `runs` by the slowest tier they need; `lease` if one was asked for."""

    length: int
    runs: list[Run]
    lease: AsyncLease | None


class AsyncTicket:
    """One running load, save, prefetch or flush. Dies with the connection it was opened on."""

    def __init__(self, client: Owner, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    async def wait(self, chunk: int | None = None, timeout_s: float | None = None) -> TicketProgress:
        """Wait for the end, or until chunks 0..`chunk` are in the worker; see `flexkv_py.client.Ticket.wait`."""
        clock = asyncio.get_running_loop()
        wire_chunk = requests.check_chunk(chunk, self._client.chunk_count)
        end_s = requests.wait_end_s(clock.time(), timeout_s)
        while True:
            part = requests.slice_wait(clock.time(), end_s, self._client.timeout_s)
            request = Wait(0, self._handle.id, wire_chunk, requests.milliseconds(part.hold_s, "timeout_s"))
            progress = await self._client.ask_about(self._handle, request, Progress, part.reply_by_s)
            if requests.answers_wait(progress, chunk) or clock.time() >= end_s:
                return requests.progress_of(progress)

    async def cancel(self) -> None:
        """Want it no more: it ends at once, copies in flight run to their end (see `AsyncClient.fence`)."""
        await self._client.ask_about(self._handle, Cancel(0, self._handle.id), Done)


class AsyncRowRequest:
    """A running request that reads rows of its blocks in the mapped arena; see `flexkv_py.client.RowRequest`."""

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
        """What changed in its table since the last time, up to `version_max`, oldest first."""
        return self._client.take_pages(self._row, version_max)

    def ack(self, version: int) -> None:
        """No step that could see the table before `version` is in flight; never waits. Raises BAD_ARGUMENT."""
        self._client.acknowledge(self._row, version)

    async def extend(self, keys: Sequence[BlockKey]) -> None:
        """Attach the blocks that follow those attached so far."""
        await self._client.attach_on(self._row, requests.attach_slices(keys))

    async def detach(self) -> None:
        """Give everything back, whether the daemon still hears of it or not; no step that reads it may be in flight."""
        try:
            await self._client.ask_about(Handle(self.request, self._row.life), Detach(0, self.request), Done)
        except FlexKVError as error:
            if error.code not in (ErrorCode.DAEMON_LOST, ErrorCode.CANCELLED):
                raise
        self._client.forget_row(self._row)
