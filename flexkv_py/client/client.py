"""The blocking client: what an inference worker calls, from any number of threads.

Owns when to connect (by itself, on the next call after a loss, with back-off) and what the caller holds
in hand: memories, tickets, leases. Protocol state is `client.session`, the shared socket `client.link`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from flexkv_py.client import requests
from flexkv_py.client.handles import Lease, MatchResult, Memory, Ticket
from flexkv_py.client.link import Link
from flexkv_py.client.session import Handle, Registration, Reply, Session, lost_meanwhile, still_connecting
from flexkv_py.client.sockets import close_descriptors, connect_socket, enlist, forget_memories, forked
from flexkv_py.errors import FlexKVError
from flexkv_py.geometry import Geometry
from flexkv_py.keys import ROOT, BlockKey, NamespaceDigest
from flexkv_py.wire.messages import (
    ClientMessage,
    DaemonMessage,
    DeviceAllocation,
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
    Registered,
    RegisterMemory,
    Reset,
    Save,
    UnregisterMemory,
)


class Client:
    """A worker's (or scheduler's) connection to the daemon.

    Every method may be called by any thread, and raises FlexKVError only. A call that gets no reply in
    `timeout_s` raises DEADLINE_EXCEEDED. When the daemon is lost, running calls and every ticket and
    lease raise DAEMON_LOST; the next call connects again, and registered memories come back by themselves.
    """

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

    # ---------------------------------------------------------------- calls

    def keys(self, tokens: Sequence[int], parent: BlockKey = ROOT) -> list[BlockKey]:
        """Keys of every full block of `tokens`, chained from `parent`. Raises BAD_ARGUMENT."""
        return requests.keys_of(self.namespace, tokens, self._geometry.tokens_per_block, parent)

    def register_memory(
        self,
        descriptor: int,
        *,
        bytes: int,  # noqa: A002  # the wire's word
        page_count: int,
        page_tokens: int,
        layout: Sequence[LayerLayout] = (),
        kind: str = "paged",
    ) -> Memory:
        """Share a memfd (sealed against shrinking) with the daemon; the client keeps its own duplicate."""
        request = RegisterMemory(0, bytes, page_count, page_tokens, list(layout), kind)
        return self._share(requests.duplicate(descriptor), request)

    def register_device_memory(
        self,
        device: str,
        allocations: Sequence[DeviceAllocation],
        *,
        page_count: int,
        page_tokens: int,
        layout: Sequence[LayerLayout],
    ) -> Memory:
        """Share memory of a CUDA device, named by its UUID, by IPC handles (`flexkv_tiers.memory.tensors` makes them).

        Offsets of the layout go on through the allocations in order. Memory that moved is unregistered and
        registered again, with new handles.
        """
        length = sum(each.length for each in allocations)
        request = RegisterMemory(
            0, length, page_count, page_tokens, list(layout), device=device, allocations=list(allocations)
        )
        return self._share(-1, request)

    def match(self, keys: Sequence[BlockKey], shards: Sequence[int] = (), hold_s: float = 0.0) -> MatchResult:
        """Longest usable prefix of `keys` in all `shards` (none: this client's own).

        With `hold_s` above 0 it stays usable so long, until its lease is released or this session ends.
        """
        request = Match(
            0, requests.pack_keys(keys), requests.shard_list(shards), requests.milliseconds(hold_s, "hold_s")
        )
        matched, life = self._ask(request, Matched)
        lease = Lease(self, Handle(matched.lease, life)) if matched.lease else None
        return MatchResult(matched.length, matched.runs, lease)

    def load(self, keys: Sequence[BlockKey], pages: Sequence[int], memory: Memory, deadline_s: float = 10.0) -> Ticket:
        """Promote `keys` and copy them into `pages` of `memory`: whole blocks, in the order of the keys."""
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        deadline_ms = requests.milliseconds(deadline_s, "deadline_s")
        opened, life = self._ask_on(memory, lambda name: Load(0, packed, places, name, deadline_ms), Opened)
        return Ticket(self, Handle(opened.ticket, life))

    def save(
        self,
        keys: Sequence[BlockKey],
        pages: Sequence[int],
        memory: Memory,
        parent: BlockKey = ROOT,
        deadline_s: float = 10.0,
        ack: str = "dram",
        skip_below: bool = False,
        high_priority: bool = False,
    ) -> Ticket:
        """Copy `pages` of `memory` out as the chain `keys` after `parent`; `ack`: how deep before `stored`."""
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        above, deadline_ms = requests.pack_keys([parent]), requests.milliseconds(deadline_s, "deadline_s")

        def build(name: int) -> Save:
            return Save(0, packed, places, name, above, deadline_ms, ack, skip_below, high_priority)

        opened, life = self._ask_on(memory, build, Opened)
        return Ticket(self, Handle(opened.ticket, life))

    def prefetch(self, keys: Sequence[BlockKey], deadline_s: float = 10.0) -> Ticket:
        """Promote `keys` to DRAM; nothing is copied into the worker."""
        request = Prefetch(0, requests.pack_keys(keys), requests.milliseconds(deadline_s, "deadline_s"))
        opened, life = self._ask(request, Opened)
        return Ticket(self, Handle(opened.ticket, life))

    def flush(self, to_tier: str = "ssd", deadline_s: float = 60.0) -> Ticket:
        """Copy everything of this client's namespace down to `to_tier`."""
        opened, life = self._ask(Flush(0, to_tier, requests.milliseconds(deadline_s, "deadline_s")), Opened)
        return Ticket(self, Handle(opened.ticket, life))

    def fence(self, memory: Memory, pages: Sequence[int] = ()) -> None:
        """Return once no running copy touches `pages` (none given: any page) of `memory`."""
        packed = requests.pack_pages(pages)
        self._ask_on(memory, lambda name: Fence(0, name, packed), Done)

    def reset(self, epoch: int) -> None:
        """Forget everything saved under this geometry and tenant at `epoch`; the daemon goes on if the time is up."""
        with requests.goes_on_unanswered():
            self._ask(Reset(0, epoch), Done)

    def ping(self) -> None:
        """One round trip."""
        self._ask(Ping(0), Done)

    def poll(self) -> list[DaemonMessage]:
        """What the daemon said of its own accord since the last poll, oldest first; never waits."""
        link = self._link
        if link is not None:
            link.drain()
        with self._lock:
            return self._session.take_daemon_messages()

    # ---------------------------------------------- for handles, and the insides

    def ask_about(
        self, handle: Handle, message: ClientMessage, expect: type[Reply], reply_by_s: float | None = None
    ) -> Reply:
        """Ask about a ticket or lease. Never connects: what it names would be void on a new connection."""
        self._check_usable()
        with self._lock:
            self._session.require(handle)
        link = self._link
        if link is None:
            raise lost_meanwhile()
        return link.exchange(message, expect, self._deadline_s() if reply_by_s is None else reply_by_s, handle)

    def forget(self, memory: Memory) -> None:
        """Unregister `memory` and close its duplicate, whether the daemon still hears of it or not."""
        registration = memory.registration
        try:
            self._ask_on(memory, lambda name: UnregisterMemory(0, name), Done)
        finally:
            with self._connecting:  # a thread that connects may be sending the descriptor just now
                if registration in self._session.registrations:
                    self._session.registrations.remove(registration)
                    close_descriptors(registration)

    def after_fork(self) -> None:
        """The parent goes on with this connection; the child must neither use it nor keep it open."""
        self._refusal = forked()
        self._lock, self._connecting = threading.Lock(), threading.Lock()  # vanished threads may hold the old ones
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

    def _share(self, descriptor: int, request: RegisterMemory) -> Memory:
        """Register memory for this and every later life; owns the descriptor."""
        registration = Registration(descriptor, request, Handle(0, 0))
        try:
            deadline_s = self._deadline_s()
            link = self._linked(deadline_s)
            self._register(link, registration, deadline_s)
            with self._lock:
                self._session.adopt(registration)
        except BaseException:
            close_descriptors(registration)
            raise
        return Memory(self, registration, requests.pages_per_block(request, self._geometry))

    def _register(self, link: Link, registration: Registration, deadline_s: float) -> None:
        request = msgspec.structs.replace(registration.request)
        registered = link.exchange(request, Registered, deadline_s, descriptors=registration.descriptors)
        registration.handle = Handle(registered.memory, link.life)
