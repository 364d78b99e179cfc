"""A client's connection, for threads: made by itself on the next call after a loss, with back-off.

Owns when to connect and what a new connection is told first. `client.client` has the calls, `client.link`
the shared socket, `client.session` what is believed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from flexkv_py.client import requests
from flexkv_py.client.arena import ArenaMap
from flexkv_py.client.calls import Handle, Registration, Reply, lost_meanwhile, still_connecting
from flexkv_py.client.handles import Memory
from flexkv_py.client.link import Link
from flexkv_py.client.session import Session
from flexkv_py.client.sockets import connect_socket, enlist, forget_memories, forked
from flexkv_py.errors import FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import NamespaceDigest
from flexkv_py.wire.messages import ClientMessage, Registered


class ConnectedClient:
    """What every call of `Client` rests on."""

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
        self._lock = threading.Lock()  # guards the session and the link's state
        self._connecting = threading.Lock()  # one thread connects, the others wait for it
        self._link: Link | None = None  # published once greeted and all memories are registered
        self._refusal: FlexKVError | None = None  # set for good when closed, or in a forked child
        self._mapping = threading.Lock()  # one thread maps the arena, the others wait for it
        self._arena: ArenaMap | None = None  # of the life of the daemon that was spoken to last, or an earlier one
        enlist(self)

    # ----------------------------------------------------------- connection

    def connect(self) -> None:
        """Connect now, whatever the back-off says; without it the first call connects."""
        self._linked(self._deadline_s(), patient=False)

    def close(self) -> None:
        """End the session: the daemon gives up its tickets, leases and memories."""
        with self._connecting:
            self._refusal = self._refusal or requests.closed()
            if self._link is not None:
                self._link.close("this client was closed")
                self._link = None
            forget_memories(self._session)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def namespace(self) -> NamespaceDigest:
        """What this client's keys are derived from; known from the first connection on."""
        if self._session.welcome is None:
            self.connect()
        return NamespaceDigest(self._session.greeted.namespace)

    @property
    def boot(self) -> bytes:
        """Names the daemon's life this client last spoke to; another one means it was restarted."""
        if self._session.welcome is None:
            self.connect()
        return self._session.greeted.boot

    @property
    def chunk_count(self) -> int:
        return self._geometry.chunk_count

    def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply:
        """Ask about a ticket or lease. Never connects: what it names would be void on a new connection."""
        self._check_usable()
        with self._lock:
            self._session.require(handle)
        link = self._link
        if link is None:
            raise lost_meanwhile(self._session.parting)
        return link.exchange(message, expect, self._deadline_s() if reply_by_s is None else reply_by_s, handle)

    def after_fork(self) -> None:
        """The parent goes on with this connection; the child must neither use it nor keep it open."""
        self._refusal = forked()
        self._lock, self._connecting = threading.Lock(), threading.Lock()  # vanished threads may hold the old ones
        self._mapping = threading.Lock()
        if self._link is not None:
            self._link.close_in_fork()
            self._link = None
        forget_memories(self._session)

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise FlexKVError(self._refusal.code, self._refusal.message)

    def _deadline_s(self) -> float:
        return time.monotonic() + self.timeout_s

    def _ask(self, message: ClientMessage, expect: type[Reply]) -> tuple[Reply, int]:
        """The reply, and the life in which it was given."""
        deadline_s = self._deadline_s()
        link = self._linked(deadline_s)
        return link.exchange(message, expect, deadline_s), link.life

    def _ask_on(self, memory: Memory, build: Callable[[int], ClientMessage], expect: type[Reply]) -> tuple[Reply, int]:
        """Like `_ask`, for a message built with the memory's present id: connecting anew has renewed it."""
        deadline_s = self._deadline_s()
        link = self._linked(deadline_s)
        handle = self._session.known(memory.registration)
        return link.exchange(build(handle.id), expect, deadline_s, handle), link.life

    def _linked(self, deadline_s: float, *, patient: bool = True) -> Link:
        """The connection, made anew if it is lost. A `patient` caller keeps to the back-off."""
        link = self._link
        if link is not None and not link.lost:
            return link
        if not self._connecting.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise still_connecting()
        try:
            if self._link is None or self._link.lost:
                self._link = self._connect(deadline_s, patient=patient)
            return self._link
        finally:
            self._connecting.release()

    def _connect(self, deadline_s: float, *, patient: bool) -> Link:
        """Try once, unless it was tried in vain just before."""
        self._check_usable()
        backoff = self._session.backoff
        if patient:
            backoff.check(time.monotonic())
        try:
            link = self._greeted(deadline_s)
        except FlexKVError as error:
            backoff.failed(time.monotonic(), error)
            raise
        backoff.succeeded()
        return link

    def _greeted(self, deadline_s: float) -> Link:
        """A new connection that knows this client and all its memories."""
        connection = connect_socket(self._path, max(0.001, deadline_s - time.monotonic()))
        link = Link(connection, self._session, self._lock)
        try:
            welcome = link.greet(deadline_s)
            with self._lock:
                self._session.accept(welcome)
            for registration in list(self._session.registrations):
                self._register(link, registration, deadline_s)
        except BaseException:
            link.close("the greeting failed")
            raise
        return link

    def _register(self, link: Link, registration: Registration, deadline_s: float) -> None:
        request = msgspec.structs.replace(registration.request)
        registered = link.exchange(request, Registered, deadline_s, descriptors=registration.descriptors)
        registration.handle = Handle(registered.memory, link.life)
