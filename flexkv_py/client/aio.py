"""The asyncio client: the blocking one's twin for programs that live on a loop.

Owns when to connect, and what the caller holds in hand. All it believes is in `client.session`, which
it shares with the blocking client; the socket is `client.aio_link`'s. Use it from one loop only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from flexkv_py.client import requests
from flexkv_py.client.aio_link import AsyncLink
from flexkv_py.client.calls import Handle, Registration, Reply, lost_meanwhile, still_connecting
from flexkv_py.client.requests import TicketProgress
from flexkv_py.client.session import Session
from flexkv_py.client.sockets import connect_socket, enlist, forget_memories, forked
from flexkv_py.errors import FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkv_py.wire.messages import (
    Cancel,
    ClientMessage,
    DaemonMessage,
    Done,
    Fence,
    Flush,
    LayerLayout,
    Load,
    Match,
    Matched,
    Opened,
    Ping,
    Prefetch,
    Progress,
    Registered,
    RegisterMemory,
    Release,
    Reset,
    Run,
    Save,
    UnregisterMemory,
    Wait,
)


class AsyncClient:
    """`flexkv_py.client.Client` with `await`: same calls, same errors, for one event loop."""

    def __init__(
        self,
        path: str | Path,
        geometry: Geometry,
        *,
        role: str = "worker",
        instance: str = "",
        shard: int = 0,
        tenant: str = "default",
        epoch: int = 0,
        token: str = "",
        timeout_s: float = 5.0,
    ) -> None:
        self._path = requests.check_path(path)
        self._geometry = geometry
        self.timeout_s = timeout_s
        self._session = Session(requests.hello_of(geometry, role, instance, shard, tenant, epoch, token))
        self._connecting = asyncio.Lock()  # one task connects, the others wait for it
        self._link: AsyncLink | None = None  # published once greeted and all memories are registered
        self._refusal: FlexKVError | None = None  # set for good when closed, or in a forked child
        enlist(self)

    # ----------------------------------------------------------- connection

    async def connect(self) -> None:
        """Connect now, whatever the back-off says; without it the first call connects."""
        await self._linked(self._deadline_s(), patient=False)

    async def close(self) -> None:
        """End the session: the daemon gives up its tickets, leases and memories."""
        async with self._connecting:
            self._refusal = self._refusal or requests.closed()
            if self._link is not None:
                self._link.lose("this client was closed")
                self._link = None
            forget_memories(self._session)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    @property
    def namespace(self) -> NamespaceDigest:
        """What this client's keys are derived from; connect first."""
        return NamespaceDigest(self._session.greeted.namespace)

    @property
    def boot(self) -> bytes:
        """Names the daemon's life this client last spoke to; connect first."""
        return self._session.greeted.boot

    @property
    def chunk_count(self) -> int:
        return self._geometry.chunk_count

    # ---------------------------------------------------------------- calls

    def keys(self, tokens: Sequence[int], parent: BlockKey = ROOT) -> list[BlockKey]:
        """Keys of every full block of `tokens`, chained from `parent`; connect first."""
        return requests.keys_of(self.namespace, tokens, self._geometry.tokens_per_block, parent)

    async def register_memory(
        self,
        descriptor: int,
        *,
        bytes: int,  # noqa: A002  # the wire's word
        page_count: int,
        page_tokens: int,
        layout: Sequence[LayerLayout] = (),
        kind: str = "paged",
    ) -> AsyncMemory:
        """Share a memfd (sealed against shrinking) with the daemon; the client keeps its own duplicate."""
        duplicate = requests.duplicate(descriptor)
        try:
            deadline_s = self._deadline_s()
            link = await self._linked(deadline_s)
            request = RegisterMemory(0, bytes, page_count, page_tokens, list(layout), kind)
            registration = Registration(duplicate, request, Handle(0, link.life))
            await self._register(link, registration, deadline_s)
            self._session.adopt(registration)
        except BaseException:
            os.close(duplicate)
            raise
        return AsyncMemory(self, registration, requests.pages_per_block(request, self._geometry))

    async def match(
        self, keys: Sequence[BlockKey], shards: Sequence[int] = (), hold_s: float = 0.0
    ) -> AsyncMatchResult:
        """Longest usable prefix of `keys` in all `shards`; with `hold_s` it stays usable so long."""
        request = Match(
            0, requests.pack_keys(keys), requests.shard_list(shards), requests.milliseconds(hold_s, "hold_s")
        )
        matched, life = await self._ask(request, Matched)
        lease = AsyncLease(self, Handle(matched.lease, life)) if matched.lease else None
        return AsyncMatchResult(matched.length, matched.runs, lease)

    async def load(
        self, keys: Sequence[BlockKey], pages: Sequence[int], memory: AsyncMemory, deadline_s: float = 10.0
    ) -> AsyncTicket:
        """Promote `keys` and copy them into `pages` of `memory`: whole blocks, in the order of the keys."""
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        deadline_ms = requests.milliseconds(deadline_s, "deadline_s")
        opened, life = await self._ask_on(memory, lambda name: Load(0, packed, places, name, deadline_ms), Opened)
        return AsyncTicket(self, Handle(opened.ticket, life))

    async def save(
        self,
        keys: Sequence[BlockKey],
        pages: Sequence[int],
        memory: AsyncMemory,
        parent: BlockKey = ROOT,
        deadline_s: float = 10.0,
        ack: str = "dram",
        skip_below: bool = False,
        high_priority: bool = False,
    ) -> AsyncTicket:
        """Copy `pages` of `memory` out as the chain `keys` after `parent`; `ack`: how deep before `stored`."""
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        above, deadline_ms = requests.pack_keys([parent]), requests.milliseconds(deadline_s, "deadline_s")

        def build(name: int) -> Save:
            return Save(0, packed, places, name, above, deadline_ms, ack, skip_below, high_priority)

        opened, life = await self._ask_on(memory, build, Opened)
        return AsyncTicket(self, Handle(opened.ticket, life))

    async def prefetch(self, keys: Sequence[BlockKey], deadline_s: float = 10.0) -> AsyncTicket:
        """Promote `keys` to DRAM; nothing is copied into the worker."""
        request = Prefetch(0, requests.pack_keys(keys), requests.milliseconds(deadline_s, "deadline_s"))
        opened, life = await self._ask(request, Opened)
        return AsyncTicket(self, Handle(opened.ticket, life))

    async def flush(self, to_tier: str = "ssd", deadline_s: float = 60.0) -> AsyncTicket:
        """Copy everything of this client's namespace down to `to_tier`."""
        opened, life = await self._ask(Flush(0, to_tier, requests.milliseconds(deadline_s, "deadline_s")), Opened)
        return AsyncTicket(self, Handle(opened.ticket, life))

    async def fence(self, memory: AsyncMemory, pages: Sequence[int] = ()) -> None:
        """Return once no running copy touches `pages` (none given: any page) of `memory`."""
        packed = requests.pack_pages(pages)
        await self._ask_on(memory, lambda name: Fence(0, name, packed), Done)

    async def reset(self, epoch: int) -> None:
        """Forget everything saved under this geometry and tenant at `epoch`; the daemon goes on if the time is up."""
        with requests.goes_on_unanswered():
            await self._ask(Reset(0, epoch), Done)

    async def ping(self) -> None:
        """One round trip."""
        await self._ask(Ping(0), Done)

    def poll(self) -> list[DaemonMessage]:
        """What the daemon said of its own accord since the last poll, oldest first."""
        return self._session.take_daemon_messages()

    # ---------------------------------------------- for handles, and the insides

    async def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply:
        """Ask about a ticket or lease. Never connects: what it names would be void on a new connection."""
        self._check_usable()
        self._session.require(handle)
        if self._link is None:
            raise lost_meanwhile()
        deadline_s = self._deadline_s() if reply_by_s is None else reply_by_s
        return await self._link.exchange(message, expect, deadline_s, handle)

    async def forget(self, memory: AsyncMemory) -> None:
        """Unregister `memory` and close its duplicate, whether the daemon still hears of it or not."""
        registration = memory.registration
        try:
            await self._ask_on(memory, lambda name: UnregisterMemory(0, name), Done)
        finally:
            async with self._connecting:  # a task that connects may be sending the descriptor just now
                if registration in self._session.registrations:
                    self._session.registrations.remove(registration)
                    os.close(registration.descriptor)

    def after_fork(self) -> None:
        """The parent goes on with this connection; the child must neither use it nor keep it open."""
        self._refusal = forked()
        if self._link is not None:
            self._link.close_in_fork()
            self._link = None
        forget_memories(self._session)

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise FlexKVError(self._refusal.code, self._refusal.message)

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout_s

    async def _ask(self, message: ClientMessage, expect: type[Reply]) -> tuple[Reply, int]:
        """The reply, and the life in which it was given."""
        deadline_s = self._deadline_s()
        link = await self._linked(deadline_s)
        return await link.exchange(message, expect, deadline_s), link.life

    async def _ask_on(
        self, memory: AsyncMemory, build: Callable[[int], ClientMessage], expect: type[Reply]
    ) -> tuple[Reply, int]:
        """Like `_ask`, for a message built with the memory's present id: connecting anew has renewed it."""
        deadline_s = self._deadline_s()
        link = await self._linked(deadline_s)
        handle = self._session.known(memory.registration)
        return await link.exchange(build(handle.id), expect, deadline_s, handle), link.life

    async def _linked(self, deadline_s: float, *, patient: bool = True) -> AsyncLink:
        """The connection, made anew if it is lost. A `patient` caller keeps to the back-off."""
        if self._link is not None and not self._link.lost:
            return self._link
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise still_connecting() from None
        try:
            if self._link is None or self._link.lost:
                self._link = await self._connect(deadline_s, patient=patient)
            return self._link
        finally:
            self._connecting.release()

    async def _connect(self, deadline_s: float, *, patient: bool) -> AsyncLink:
        """Try once, unless it was tried in vain just before."""
        self._check_usable()
        backoff, clock = self._session.backoff, asyncio.get_running_loop()
        if patient:
            backoff.check(clock.time())
        try:
            link = await self._greeted(deadline_s)
        except FlexKVError as error:
            backoff.failed(clock.time(), error)
            raise
        backoff.succeeded()
        return link

    async def _greeted(self, deadline_s: float) -> AsyncLink:
        """A new connection that knows this client and all its memories."""
        link = AsyncLink(connect_socket(self._path, 0), self._session)  # a Unix socket connects at once or not
        try:
            self._session.accept(await link.greet(deadline_s))
            for registration in list(self._session.registrations):
                await self._register(link, registration, deadline_s)
        except BaseException:
            link.lose("the greeting failed")
            raise
        return link

    async def _register(self, link: AsyncLink, registration: Registration, deadline_s: float) -> None:
        request = msgspec.structs.replace(registration.request)
        descriptors = [registration.descriptor]
        registered = await link.exchange(request, Registered, deadline_s, descriptors=descriptors)
        registration.handle = Handle(registered.memory, link.life)


class AsyncMemory:
    """Registered memory. Stays usable over any number of reconnects, until `unregister`."""

    def __init__(self, client: AsyncClient, registration: Registration, pages_per_block: int) -> None:
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
    """Keeps a matched prefix usable."""

    def __init__(self, client: AsyncClient, handle: Handle) -> None:
        self._client = client
        self._handle = handle

    async def release(self) -> None:
        """Give it back. Raises DAEMON_LOST where the daemon was lost, and the lease with it."""
        await self._client.ask_about(self._handle, Release(0, self._handle.id), Done)


@dataclass(frozen=True)
class AsyncMatchResult:
    """`length` usable leading keys, in `runs` by the slowest tier they need; `lease` if one was asked for."""

    length: int
    runs: list[Run]
    lease: AsyncLease | None


class AsyncTicket:
    """One running load, save, prefetch or flush. Dies with the connection it was opened on."""

    def __init__(self, client: AsyncClient, handle: Handle) -> None:
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
