"""The blocking client: what an inference worker calls, from any number of threads.

Owns what the caller holds in hand: memories, tickets, leases, requests of the row path. When to connect is
`client.connected`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from flexkv_py.client import requests
from flexkv_py.client.arena import ArenaMap
from flexkv_py.client.calls import Handle, Registration, lost_meanwhile
from flexkv_py.client.connected import ConnectedClient
from flexkv_py.client.gates import Gates, over_s
from flexkv_py.client.handles import Lease, MatchResult, Memory, RowRequest, Ticket
from flexkv_py.client.link import Link
from flexkv_py.client.rows import AttachedRequest
from flexkv_py.client.sockets import close_descriptors
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.wire.messages import (
    Attach,
    Attached,
    DaemonMessage,
    Detach,
    DeviceAllocation,
    Done,
    Fence,
    Flush,
    GateArray,
    LayerLayout,
    Load,
    MapArena,
    Match,
    Matched,
    Opened,
    Pages,
    Ping,
    Prefetch,
    RegisterMemory,
    Reset,
    Save,
    Segments,
    UnregisterMemory,
)


class Client(ConnectedClient):
    """A worker's (or scheduler's) connection to the daemon.

    Every method may be called by any thread, and raises FlexKVError only. A call that gets no reply in
    `timeout_s` raises DEADLINE_EXCEEDED. When the daemon is lost, running calls and every ticket and
    lease raise DAEMON_LOST; the next call connects again, and registered memories come back by themselves.
    """

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
        return self._share([requests.duplicate(descriptor)], request)

    def register_device_memory(
        self,
        device: str,
        allocations: Sequence[DeviceAllocation],
        *,
        page_count: int,
        page_tokens: int,
        layout: Sequence[LayerLayout],
        descriptors: Sequence[int] = (),
    ) -> Memory:
        """Share memory of a CUDA device, named by its UUID, by IPC handles (`flexkv_tiers.memory.tensors` makes them).

        `descriptors` of physical memory go with the allocations without a handle, in order; they stay the caller's.
        Offsets of the layout go on through the allocations. Memory that moved is unregistered and registered again.
        """
        length = sum(each.length for each in allocations)
        request = RegisterMemory(
            0, length, page_count, page_tokens, list(layout), device=device, allocations=list(allocations)
        )
        return self._share(requests.duplicates(allocations, descriptors), request)

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

    def load(
        self,
        keys: Sequence[BlockKey],
        pages: Sequence[int],
        memory: Memory,
        deadline_s: float = 10.0,
        gates: Gates | None = None,
    ) -> Ticket:
        """Promote `keys` and copy them into `pages` of `memory`: whole blocks, in the order of the keys.

        Each of `gates`, which lie in `memory`, is opened once its chunk is there for every key, and at the latest
        when the load is over or the daemon is lost: also where this raises.
        """
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        deadline_ms = requests.milliseconds(deadline_s, "deadline_s")

        def build(name: int, array: GateArray | None = None) -> Load:
            return Load(0, packed, places, name, deadline_ms, array)

        if gates is None:
            opened, life = self._ask_on(memory, build, Opened)
        else:
            opened, life = self._ask_gated(memory, build, gates, deadline_s)
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
        low_priority: bool = False,
        retention_s: float = 0.0,
        after: bytes = b"",
    ) -> Ticket:
        """Copy `pages` of `memory` out as the chain `keys` after `parent`; `ack`: how deep before `stored`.

        After `retention_s` (0: never) the daemon drops the blocks from every tier. With `after`, the handle of an
        inter-process event on the memory's device, nothing is read before what was recorded there has been reached.
        """
        retention_ms = requests.milliseconds(retention_s, "retention_s")
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        above, deadline_ms = requests.pack_keys([parent]), requests.milliseconds(deadline_s, "deadline_s")
        event = requests.event_handle(after)

        def build(name: int) -> Save:
            if event:
                self._session.check_ordered()
            hints = skip_below, high_priority, low_priority, retention_ms
            return Save(0, packed, places, name, above, deadline_ms, ack, *hints, event)

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
        """Return once no running copy touches `pages` (none given: any page) of `memory`.

        A session can be lost while the daemon and its copies go on: then it asks once more over a new connection,
        which the daemon admits when those copies have ended.
        """
        packed = requests.pack_pages(pages)
        self.connect()  # a back-off's DAEMON_LOST would say nothing of the daemon
        try:
            self._ask_on(memory, lambda name: Fence(0, name, packed), Done)
        except FlexKVError:
            if self._link is not None and not self._link.lost:
                raise
            self.connect()
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

    # ------------------------------------------------------------- row path

    def map_arena(self, *, writable: bool = False) -> ArenaMap:
        """The daemon's arena, mapped once in its life. `writable` needs a trust group configured `shared`."""
        with self._mapping:
            deadline_s = self._deadline_s()
            link, boot = self._linked(deadline_s), self._session.greeted.boot
            known = self._arena
            if known is not None and known.boot == boot and known.writable >= writable:
                return known
            arena = ArenaMap(boot, writable=writable)
            while not arena.complete:
                arena.add(*link.fetch(MapArena(0, len(arena.segments), writable), Segments, deadline_s))
            self._arena = arena
            return arena

    def attach(self, request: int, keys: Sequence[BlockKey]) -> RowRequest:
        """Let `request`, a number of the caller's choice, read the blocks `keys` in the arena once they are granted."""
        first, *rest = requests.attach_slices(keys)
        self.map_arena()
        deadline_s = self._deadline_s()
        link = self._linked(deadline_s)
        with self._lock:
            row = self._session.rows.open(request, link.life, self._session.greeted.session)
        try:
            attached = link.exchange(Attach(0, request, first), Attached, deadline_s)
            with self._lock:
                row.begin(attached)
            self._attach_on(row, rest)
        except BaseException:
            with self._lock:
                self._session.give_up(row)
            raise
        return RowRequest(self, row)

    def page_changes(self) -> list[Pages]:
        """What changed in the tables of all attached requests since the last time; never waits."""
        self._alive_link().drain()
        self._alive_link()  # the end may just have come
        with self._lock:
            return self._session.rows.take_all()

    def wait_for_pages(self, timeout_s: float) -> bool:
        """Whether there are changes to take, or a `ReplayRefused` for `poll`, waiting for them at most so long."""
        end_s = time.monotonic() + requests.milliseconds(timeout_s, "timeout_s") / 1000
        return self._alive_link().wait_for_pages(end_s)

    def report(self, entries: bytes = b"", absents: bytes = b"", replayed: bytes = b"", misses: bytes = b"") -> None:
        """Tell what the indexers selected (see `wire.messages.Report`); never waits.

        Of more than `REPORT_PAGES_MAX` entries those with the largest counts go.
        """
        message = requests.report_of(entries, absents, replayed, misses)
        link = self._alive_link()
        with self._lock:
            self._session.rows.report(message)
        link.post()

    # --------------------------------------------------------- for handles

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

    def take_pages(self, row: AttachedRequest, version_max: int | None) -> list[Pages]:
        """Page changes of one request. Raises why its life is over."""
        if self._link is not None:
            self._link.drain()
        with self._lock:
            return self._session.rows.take(row, version_max)

    def acknowledge(self, row: AttachedRequest, version: int) -> None:
        """Send an ack without waiting for anything."""
        with self._lock:
            self._session.rows.acknowledge(row, version)
        if self._link is not None:
            self._link.post()

    def extend_row(self, row: AttachedRequest, keys: Sequence[BlockKey]) -> None:
        """Attach further blocks to a request."""
        self._attach_on(row, requests.attach_slices(keys))

    def _share(self, descriptors: list[int], request: RegisterMemory) -> Memory:
        """Register memory for this and every later life; owns the descriptors."""
        registration = Registration(descriptors, request, Handle(0, 0))
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

    def _ask_gated(
        self, memory: Memory, build: Callable[[int, GateArray], Load], gates: Gates, load_s: float
    ) -> tuple[Opened, int]:
        """`_ask_on` for a load with gates, which are open soon after `load_s` from now, whatever comes of it."""
        deadline_s, end_s = self._deadline_s(), over_s(time.monotonic(), load_s)
        link = self._linked(deadline_s)
        handle = self._session.known(memory.registration)
        return link.load_gated(gates, end_s, partial(build, handle.id), deadline_s, handle), link.life

    def _attach_on(self, row: AttachedRequest, slices: Sequence[bytes]) -> None:
        for packed in slices:
            message = Attach(0, row.request, packed, row.block_count)
            row.block_count = self.ask_about(Handle(row.request, row.life), message, Attached).block_count

    def detach_row(self, row: AttachedRequest) -> None:
        """Let go of a request, whether the daemon still hears of it or not."""
        try:
            self.ask_about(Handle(row.request, row.life), Detach(0, row.request), Done)
        except FlexKVError as error:
            if error.code not in (ErrorCode.DAEMON_LOST, ErrorCode.CANCELLED):
                raise
        with self._lock:
            self._session.rows.forget(row)

    def _alive_link(self) -> Link:
        """The connection as it is. Raises DAEMON_LOST where there is none: what is attached died with it."""
        self._check_usable()
        if self._link is None or self._link.lost:
            raise lost_meanwhile(self._session.parting)
        return self._link
