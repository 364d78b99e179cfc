"""A client's connection, on a loop: the twin of `client.connected`.

Owns when to connect and what a new connection is told first. `client.aio` has the calls, `client.aio_link` the
socket, `client.session` what is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from flexkv_py.client import requests
from flexkv_py.client.aio_link import AsyncLink
from flexkv_py.client.arena import ArenaMap
from flexkv_py.client.calls import Handle, Registration, Reply, lost_meanwhile, still_connecting
from flexkv_py.client.session import Session
from flexkv_py.client.sockets import connect_socket, enlist, forget_memories, forked
from flexkv_py.errors import FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import NamespaceDigest
from flexkv_py.wire.messages import ClientMessage, Registered


class AsyncConnectedClient:
    """What every call of `AsyncClient` rests on."""

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
        self._mapping = asyncio.Lock()  # one task maps the arena, the others wait for it
        self._arena: ArenaMap | None = None  # of the life of the daemon that was spoken to last, or an earlier one
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

    async def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply:
        """Ask about a ticket or lease. Never connects: what it names would be void on a new connection."""
        self._check_usable()
        self._session.require(handle)
        if self._link is None:
            raise lost_meanwhile(self._session.parting)
        deadline_s = self._deadline_s() if reply_by_s is None else reply_by_s
        return await self._link.exchange(message, expect, deadline_s, handle)

    def after_fork(self) -> None:
        """The parent goes on with this connection; the child must neither use it nor keep it open."""
        self._refusal = forked()
        if self._link is not None:
            self._link.close_in_fork()
            self._link = None
        forget_memories(self._session)

    def alive_link(self) -> AsyncLink:
        """The connection as it is. Raises DAEMON_LOST where there is none: what is attached died with it."""
        self._check_usable()
        if self._link is None or self._link.lost:
            raise lost_meanwhile(self._session.parting)
        return self._link

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
        self, registration: Registration, build: Callable[[int], ClientMessage], expect: type[Reply]
    ) -> tuple[Reply, int]:
        """Like `_ask`, for a message built with the memory's present id: connecting anew has renewed it."""
        deadline_s = self._deadline_s()
        link = await self._linked(deadline_s)
        handle = self._session.known(registration)
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
        registered = await link.exchange(request, Registered, deadline_s, descriptors=registration.descriptors)
        registration.handle = Handle(registered.memory, link.life)
