"""The asyncio client: the blocking one's twin for programs that live on a loop.

Owns what the caller holds in hand. All it believes is in `client.session`, which it shares with the blocking
client; when to connect is `client.aio_connected`'s. Use it from one loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from flexkv_py.client import requests
from flexkv_py.client.aio_connected import AsyncConnectedClient
from flexkv_py.client.aio_handles import AsyncLease, AsyncMatchResult, AsyncMemory, AsyncRowRequest, AsyncTicket
from flexkv_py.client.arena import ArenaMap
from flexkv_py.client.calls import Handle, Registration
from flexkv_py.client.gates import Gates, over_s
from flexkv_py.client.rows import AttachedRequest
from flexkv_py.client.sockets import close_descriptors
from flexkv_py.errors import FlexKVError
from flexkv_py.keys import ROOT, BlockKey
from flexkv_py.wire.messages import (
    Attach,
    Attached,
    DaemonMessage,
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


class AsyncClient(AsyncConnectedClient):
    """`flexkv_py.client.Client` with `await`: same calls, same errors, for one event loop."""

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
        request = RegisterMemory(0, bytes, page_count, page_tokens, list(layout), kind)
        return await self._share([requests.duplicate(descriptor)], request)

    async def register_device_memory(
        self,
        device: str,
        allocations: Sequence[DeviceAllocation],
        *,
        page_count: int,
        page_tokens: int,
        layout: Sequence[LayerLayout],
        descriptors: Sequence[int] = (),
    ) -> AsyncMemory:
        """Share memory of a CUDA device, named by its UUID, by IPC handles (`flexkv_tiers.memory.tensors` makes them).

        `descriptors` of physical memory go with the allocations without a handle, in order; they stay the caller's.
        Offsets of the layout go on through the allocations. Memory that moved is unregistered and registered again.
        """
        length = sum(each.length for each in allocations)
        request = RegisterMemory(
            0, length, page_count, page_tokens, list(layout), device=device, allocations=list(allocations)
        )
        return await self._share(requests.duplicates(allocations, descriptors), request)

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
        self,
        keys: Sequence[BlockKey],
        pages: Sequence[int],
        memory: AsyncMemory,
        deadline_s: float = 10.0,
        gates: Gates | None = None,
    ) -> AsyncTicket:
        """Promote `keys` and copy them into `pages` of `memory`, opening `gates`; see `Client.load`."""
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        deadline_ms = requests.milliseconds(deadline_s, "deadline_s")

        def build(name: int, array: GateArray | None = None) -> Load:
            return Load(0, packed, places, name, deadline_ms, array)

        if gates is None:
            opened, life = await self._ask_on(memory.registration, build, Opened)
        else:
            opened, life = await self._ask_gated(memory, build, gates, deadline_s)
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
        low_priority: bool = False,
        retention_s: float = 0.0,
        after: bytes = b"",
    ) -> AsyncTicket:
        """Copy `pages` of `memory` out as the chain `keys` after `parent`; see `flexkv_py.client.Client.save`."""
        retention_ms = requests.milliseconds(retention_s, "retention_s")
        packed, places = requests.pack_keys(keys), memory.pack_pages(pages, len(keys))
        above, deadline_ms = requests.pack_keys([parent]), requests.milliseconds(deadline_s, "deadline_s")
        event = requests.event_handle(after)

        def build(name: int) -> Save:
            if event:
                self._session.check_ordered()
            hints = skip_below, high_priority, low_priority, retention_ms
            return Save(0, packed, places, name, above, deadline_ms, ack, *hints, event)

        opened, life = await self._ask_on(memory.registration, build, Opened)
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
        """Return once no running copy touches `pages` (none given: any page) of `memory`; like `Client.fence`."""
        packed = requests.pack_pages(pages)
        await self.connect()
        try:
            await self._ask_on(memory.registration, lambda name: Fence(0, name, packed), Done)
        except FlexKVError:
            if self._link is not None and not self._link.lost:
                raise
            await self.connect()
            await self._ask_on(memory.registration, lambda name: Fence(0, name, packed), Done)

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

    # ------------------------------------------------------------- row path

    async def map_arena(self, *, writable: bool = False) -> ArenaMap:
        """The daemon's arena, mapped once in its life. `writable` needs a trust group configured `shared`."""
        async with self._mapping:
            deadline_s = self._deadline_s()
            link, boot = await self._linked(deadline_s), self._session.greeted.boot
            known = self._arena
            if known is not None and known.boot == boot and known.writable >= writable:
                return known
            arena = ArenaMap(boot, writable=writable)
            while not arena.complete:
                arena.add(*await link.fetch(MapArena(0, len(arena.segments), writable), Segments, deadline_s))
            self._arena = arena
            return arena

    async def attach(self, request: int, keys: Sequence[BlockKey]) -> AsyncRowRequest:
        """Let `request`, a number of the caller's choice, read the blocks `keys` in the arena once they are granted."""
        first, *rest = requests.attach_slices(keys)
        await self.map_arena()
        deadline_s = self._deadline_s()
        link = await self._linked(deadline_s)
        row = self._session.rows.open(request, link.life, self._session.greeted.session)
        try:
            row.begin(await link.exchange(Attach(0, request, first), Attached, deadline_s))
            await self.attach_on(row, rest)
        except BaseException:
            self._session.give_up(row)
            raise
        return AsyncRowRequest(self, row)

    def page_changes(self) -> list[Pages]:
        """What changed in the tables of all attached requests since the last time."""
        self.alive_link().post()
        return self._session.rows.take_all()

    async def wait_for_pages(self, timeout_s: float) -> bool:
        """Whether there are changes to take, or a `ReplayRefused` for `poll`, waiting for them at most so long."""
        now_s = asyncio.get_running_loop().time()
        return await self.alive_link().wait_for_pages(now_s + requests.milliseconds(timeout_s, "timeout_s") / 1000)

    def report(self, entries: bytes = b"", absents: bytes = b"", replayed: bytes = b"", misses: bytes = b"") -> None:
        """Tell what the indexers selected; see `flexkv_py.client.Client.report`."""
        message = requests.report_of(entries, absents, replayed, misses)
        link = self.alive_link()
        self._session.rows.report(message)
        link.post()

    # ---------------------------------------------------------- for handles

    def take_pages(self, row: AttachedRequest, version_max: int | None) -> list[Pages]:
        """Page changes of one request. Raises why its life is over."""
        self._post()
        return self._session.rows.take(row, version_max)

    def acknowledge(self, row: AttachedRequest, version: int) -> None:
        """Send an ack without waiting for anything."""
        self._session.rows.acknowledge(row, version)
        self._post()

    def _post(self) -> None:
        if self._link is not None:
            self._link.post()

    async def attach_on(self, row: AttachedRequest, slices: Sequence[bytes]) -> None:
        """Attach the blocks that follow, so many at a time."""
        for packed in slices:
            message = Attach(0, row.request, packed, row.block_count)
            row.block_count = (await self.ask_about(Handle(row.request, row.life), message, Attached)).block_count

    def forget_row(self, row: AttachedRequest) -> None:
        """Nothing is read of this request any more."""
        self._session.rows.forget(row)

    async def forget(self, memory: AsyncMemory) -> None:
        """Unregister `memory` and close its duplicate, whether the daemon still hears of it or not."""
        registration = memory.registration
        try:
            await self._ask_on(memory.registration, lambda name: UnregisterMemory(0, name), Done)
        finally:
            async with self._connecting:  # a task that connects may be sending the descriptor just now
                if registration in self._session.registrations:
                    self._session.registrations.remove(registration)
                    close_descriptors(registration)

    async def _ask_gated(
        self, memory: AsyncMemory, build: Callable[[int, GateArray], Load], gates: Gates, load_s: float
    ) -> tuple[Opened, int]:
        """`_ask_on` for a load with gates; see `client.client`."""
        deadline_s, end_s = self._deadline_s(), over_s(asyncio.get_running_loop().time(), load_s)
        link = await self._linked(deadline_s)
        handle = self._session.known(memory.registration)
        return await link.load_gated(gates, end_s, partial(build, handle.id), deadline_s, handle), link.life

    async def _share(self, descriptors: list[int], request: RegisterMemory) -> AsyncMemory:
        """Register memory for this and every later life; owns the descriptors."""
        registration = Registration(descriptors, request, Handle(0, 0))
        try:
            deadline_s = self._deadline_s()
            link = await self._linked(deadline_s)
            await self._register(link, registration, deadline_s)
            self._session.adopt(registration)
        except BaseException:
            close_descriptors(registration)
            raise
        return AsyncMemory(self, registration, requests.pages_per_block(request, self._geometry))
